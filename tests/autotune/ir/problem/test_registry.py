"""Registered operators."""

import pytest

from autotune.core import ProblemError
from autotune.ir import OPERATORS
from autotune.ir.operators import AvgPool2d
from autotune.ir.problem import (
    register,
)


def test_an_operator_may_share_a_struct_with_the_same_fields_only():
    with pytest.raises(ProblemError, match="the struct at_pool2d has the fields n h w c r s p q"):
        register(type("Other", (AvgPool2d,), {"operator": "other", "sizes": "n h", "struct": "at_pool2d"}))
    assert type("Own", (AvgPool2d,), {"operator": "own", "sizes": "n h"}).struct == "at_own"
    assert type("Same", (AvgPool2d,), {"operator": "same"}).struct == "at_pool2d"


def test_no_operator_is_a_kind_of_another():
    """Families, torch's operators and references tell operators apart by their class."""
    kinds = OPERATORS.values()
    assert not [
        (one.operator, other.operator)
        for one in kinds
        for other in kinds
        if one is not other and issubclass(one, other)
    ]
