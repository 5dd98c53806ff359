"""Rules of families as requirements: each states what must hold, in words that are shown to users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autotune.ir import BYTE_FORMATS, MAX_PRODUCTS

Rules = Iterator[str | None]
"""The results of `require`, in an order in which each may rely on those before it."""


def require(holds: object, requirement: str) -> str | None:
    """Return None if a requirement holds, else its words.

    Args:
        holds: Whether it does, by its truth value.
        requirement: What must hold, in plain words, such as "c must be a multiple of 8".
    """
    return None if holds else requirement


def require_no_overflow(dtype: str, products: int) -> str | None:
    """Require that no sum of a convolution overflows. products: those of a sum, r*s*c of a group."""
    form = BYTE_FORMATS.get(dtype)
    return require(
        form is None or not form.overflows(products),
        f"r*s*c must be less than {MAX_PRODUCTS} in {dtype}, so that no sum overflows int32",
    )


def first_unmet(rules: Iterable[str | None]) -> str | None:
    """Return the words of the first requirement that does not hold, or None if all hold."""
    return next(filter(None, rules), None)
