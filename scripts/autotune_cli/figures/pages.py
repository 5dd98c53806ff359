"""Numbers in pages: each has the id of its figure behind it, in a comment that no reader sees."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.core import AutotuneError

NUMBER = re.compile(r"(?P<number>\d+(?:\.\d+)?x?)<!--f:(?P<id>[^\s>]+)-->")
_LOOSE = re.compile(r"(?<![\w.-])\d[\d.,]*")
_UNREAD = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->")
WITHOUT_ID = ("batch",)
"""Headings of columns whose numbers are no figures."""


def pages(root: Path) -> list[Path]:
    """Return the pages of a repository that may hold figures."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def updated(page: str, text: Callable[[str], str]) -> str:
    """Return a page in which each number with an id is what `text` returns for the id."""
    return NUMBER.sub(lambda found: f"{text(found['id'])}<!--f:{found['id']}-->", page)


def differing(page: str, text: Callable[[str], str]) -> Iterator[str]:
    """Yield a sentence for each number with an id that is not what `text` returns for the id."""
    for number, line in enumerate(page.splitlines(), start=1):
        for found in NUMBER.finditer(line):
            try:
                right = text(found["id"])
            except AutotuneError as error:
                yield f"line {number}: {error}"
                continue
            if found["number"] != right:
                yield f"line {number}: {found['id']} is {right} in its record, not {found['number']}"


def unnamed(page: str) -> Iterator[str]:
    """Yield a sentence for each cell of a table that has a number without an id; heads and first cells are labels."""
    heads: list[str] = []
    for number, line in enumerate(page.splitlines(), start=1):
        if not line.startswith("|"):
            heads = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not heads:
            heads = cells
            continue
        for head, cell in list(zip(heads, cells, strict=False))[1:]:
            if head not in WITHOUT_ID and (loose := _LOOSE.search(_UNREAD.sub("", NUMBER.sub("", cell)))):
                yield f"line {number}: {loose[0]} has no id"
