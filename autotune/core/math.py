"""Arithmetic that several packages need: rounding up, Pareto fronts, byte sizes as text."""

from __future__ import annotations

from collections.abc import Sequence


def ceil_div(a: int, b: int) -> int:
    """Return the smallest integer that is at least a / b.

    Exact for integers of any size, unlike `math.ceil(a / b)`.
    """
    return -(-a // b)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `size`."""
    return ceil_div(size, multiple) * multiple


def pareto_front(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indices of the points that no other point dominates, in the order of `points`.

    A point dominates another if it is at most as large in every coordinate and smaller in at least one. Of equal
    points only the first is kept.

    Args:
        points: One tuple of objective values for each candidate, all of the same length; smaller is better.
    """
    front = []
    for i, point in enumerate(points):
        dominated = (
            all(a <= b for a, b in zip(other, point, strict=True)) and (other != point or j < i)
            for j, other in enumerate(points)
        )
        if not any(dominated):
            front.append(i)
    return front


def number(value: float) -> str:
    """Return a number with about three significant digits and no exponent."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def format_bytes(count: int) -> str:
    """Return a number of bytes as text in the largest binary unit that it fills, such as "1.5 MiB" or "512 B"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
