"""Tables of text for a terminal: what `str` of an explanation consists of."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(lines: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Return the lines of a table, the first of them a heading with a rule below.

    Args:
        lines: The cells of each line.
        left: Numbers of the columns that are aligned to the left; the others are aligned to the right.
    """
    padded = [
        [cell.ljust(max(map(len, column))) if i in left else cell.rjust(max(map(len, column))) for cell in column]
        for i, column in enumerate(zip(*lines, strict=True))
    ]
    table = ["  ".join(line) for line in zip(*padded, strict=True)]
    table.insert(1, "-" * len(table[0]))
    return [line.rstrip() for line in table]


def number(value: float | None) -> str:
    """Return a number with one decimal; "?" if it is unknown."""
    return "?" if value is None else f"{value:.1f}"


def percent(value: float | None) -> str:
    """Return a share in percent; "?" if it is unknown."""
    return "?" if value is None else f"{100 * value:.0f} %"


def shortened(text: str, width: int) -> str:
    """Return a text of at most some characters; the last one stands for what is cut off."""
    return text if len(text) <= width else text[: width - 1] + "…"


def end_of(path: str, width: int) -> str:
    """Return the end of a path of at most some characters: the beginning is the same for many layers."""
    return path if len(path) <= width else "…" + path[1 - width :]
