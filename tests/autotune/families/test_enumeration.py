"""All families try the configs that they tried before; tests/support/enumerations.py --write records a change."""

import json

import enumerations
import pytest

from autotune.families import families

RECORDED = json.loads(enumerations.FILE.read_text())


def test_every_family_is_recorded():
    assert sorted(RECORDED) == sorted(families())


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_family_says_what_it_said(name):
    assert enumerations.digest(name) == RECORDED[name]
