"""The keyword arguments of the doors are the fields of the options that they make."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from fused_resnet import InputError
from fused_resnet.options import RunKeywords, RunOptions, TuneKeywords, TuneLimits, apart


def test_keywords_and_options_have_the_same_names_and_types():
    assert get_type_hints(RunKeywords) == get_type_hints(RunOptions)
    assert get_type_hints(TuneKeywords) == get_type_hints(RunOptions) | get_type_hints(TuneLimits)


def test_keywords_are_told_apart():
    runs, limits = apart({"max_plans": 3, "budget": "2m", "only": ["cpu_conv2d"]})
    assert RunOptions(**runs) == RunOptions(max_plans=3)
    assert (limits.seconds, limits.families, limits.jobs) == (120.0, ("cpu_conv2d",), None)


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"jobs": -1}, {"budget": "soon"}, {"only": "cpu_conv2d"}])
def test_limits_that_no_run_can_have_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        apart(wrong)


def test_an_option_that_does_not_exist_is_named():
    assert {field.name for field in fields(RunOptions)}.isdisjoint(field.name for field in fields(TuneLimits))
    with pytest.raises(TypeError, match="graph"):
        RunOptions(graph=False)
