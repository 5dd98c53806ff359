"""What a search makes smaller, and what a trade-off between several objectives is."""

import itertools
import random

import pytest

from autotune.ir import parse
from autotune.tuner.objectives import undominated, value

PROBLEM = parse("gemm m=256 n=128 k=64 dtype=f16")
OPERANDS = 2 * (256 * 64 + 128 * 64 + 256 * 128)  # bytes of x, weight and y


def test_time_is_the_median():
    assert value(("time",), PROBLEM, 12.5, {}) == 12.5


def test_memory_counts_operands_and_workspace():
    found = value(("time-workspace",), PROBLEM, 2.0, {"workspace_bytes": 1000})
    assert found == pytest.approx(2.0 * (OPERANDS + 1000) / 2**20)
    assert value(("time-workspace",), PROBLEM, 2.0, {"workspace_bytes": 0}) > 0, "no workspace is no free lunch"


def test_several_objectives_are_a_product():
    details = {"energy_uj": 30.0, "workspace_bytes": 0}
    assert value(("time", "energy"), PROBLEM, 2.0, details) == 60.0


@pytest.mark.parametrize("names", [("energy",), ("time-workspace",), ("time", "energy")])
def test_what_was_not_measured_has_no_value(names):
    assert value(names, PROBLEM, 2.0, {}) is None
    assert value(names, PROBLEM, None, {"energy_uj": 1.0, "workspace_bytes": 1}) is None


@pytest.mark.parametrize("seed", range(5))
def test_undominated_points_are_those_that_no_other_beats(seed):
    rng = random.Random(seed)
    points = [(rng.randrange(8), rng.randrange(8)) for _ in range(30)]
    kept = [points[i] for i in undominated(points)]
    assert len(kept) == len(set(kept)) > 0
    for one, other in itertools.permutations(kept, 2):
        assert not (other[0] <= one[0] and other[1] <= one[1])
    for point in set(points) - set(kept):
        assert any(a <= point[0] and b <= point[1] for a, b in kept)
