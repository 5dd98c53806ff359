"""Registered operators."""

import pytest

from autotune.core import ProblemError
from autotune.ir import (
    AvgPool2d,
)
from autotune.ir.problem import (
    register,
)


def test_an_operator_may_share_a_struct_with_the_same_fields_only():
    with pytest.raises(ProblemError, match="the struct at_pool2d has the fields n h w c r s p q"):
        register(type("Other", (AvgPool2d,), {"operator": "other", "sizes": "n h", "struct": "at_pool2d"}))
    assert type("Own", (AvgPool2d,), {"operator": "own", "sizes": "n h"}).struct == "at_own"
    assert type("Same", (AvgPool2d,), {"operator": "same"}).struct == "at_pool2d"
