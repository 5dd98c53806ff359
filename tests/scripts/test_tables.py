"""Texts of the tables that several subcommands print."""

import pytest

from autotune.tuner import Failure
from autotune_cli.tables import failure_counts

pytestmark = pytest.mark.unit


def test_failures_are_counted_by_kind_the_most_frequent_first():
    found = [
        Failure("a 64x64", "does not compile", "error: expected a ';'", 2),
        Failure("b 32x32", "wrong", "y has a relative error of 0.5", 30),
        Failure("c 32x32", "wrong", "y has a relative error of 0.1", 4),
    ]
    assert failure_counts(found) == "36 candidates failed (34 wrong, 2 does not compile)"
