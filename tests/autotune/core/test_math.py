"""Rounding up, Pareto fronts, byte sizes as text."""

import itertools
import random
from fractions import Fraction
from math import ceil

import pytest

from autotune.core import ceil_div, format_bytes, pareto_front, round_up


@pytest.mark.parametrize(("a", "b"), [(0, 3), (1, 3), (3, 3), (4, 3), (-4, 3), (2**80 + 1, 2**40), (7, 1)])
def test_division_rounds_up_exactly(a, b):
    assert ceil_div(a, b) == ceil(Fraction(a, b))


def test_rounding_up_gives_the_next_multiple():
    for size, multiple in itertools.product(range(40), (1, 7, 16)):
        expected = next(n for n in range(size, size + multiple) if n % multiple == 0)
        assert round_up(size, multiple) == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_pareto_front_has_the_points_that_no_other_dominates(seed):
    rng = random.Random(seed)
    points = [(rng.randrange(8), rng.randrange(8)) for _ in range(30)]
    front = pareto_front(points)
    assert front == sorted(front)
    kept = [points[i] for i in front]
    assert len(kept) == len(set(kept)) > 0
    for one, other in itertools.permutations(kept, 2):
        assert not (other[0] <= one[0] and other[1] <= one[1])
    for point in set(points) - set(kept):
        assert any(a <= point[0] and b <= point[1] for a, b in kept)


def test_of_equal_points_the_first_is_on_the_front():
    assert pareto_front([(1, 2), (0, 3), (1, 2)]) == [0, 1]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (2**31, "2.0 GiB")],
)
def test_byte_sizes_are_in_the_largest_unit_that_they_fill(count, text):
    assert format_bytes(count) == text
