"""Objectives of a search, and the Pareto front of several objectives."""

import pytest

from autotune.ir import parse
from autotune.tuner.objectives import objective_values

PROBLEM = parse("gemm m=256 n=128 k=64 dtype=f16")
OPERANDS = 2 * (256 * 64 + 128 * 64 + 256 * 128)  # bytes of x, weight and y


def test_time_is_the_median():
    assert objective_values(("time",), PROBLEM, 12.5, {}) == (12.5,)


def test_memory_counts_operands_and_workspace():
    found = objective_values(("time-workspace",), PROBLEM, 2.0, {"workspace_bytes": 1000})
    assert found == pytest.approx((2.0 * (OPERANDS + 1000) / 2**20,))
    [without] = objective_values(("time-workspace",), PROBLEM, 2.0, {"workspace_bytes": 0})
    assert without > 0, "no workspace is no free lunch"


def test_several_objectives_are_several_values():
    details = {"energy_uj": 30.0, "workspace_bytes": 0}
    assert objective_values(("time", "energy"), PROBLEM, 2.0, details) == (2.0, 30.0)


@pytest.mark.parametrize("names", [("energy",), ("time-workspace",), ("time", "energy")])
def test_what_was_not_measured_has_no_value(names):
    assert objective_values(names, PROBLEM, 2.0, {}) is None
    assert objective_values(names, PROBLEM, None, {"energy_uj": 1.0, "workspace_bytes": 1}) is None
