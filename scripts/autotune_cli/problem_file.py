"""Reads files of problems."""

from __future__ import annotations

from pathlib import Path

from autotune.core import AutotuneError
from autotune.ir import Problem, parse


def read_problems(path: Path) -> list[Problem]:
    """Return the problems of a file with one problem a line, in which # starts a comment.

    Raises:
        AutotuneError: The file cannot be read, has no problem, or has a mistake, whose line the message names.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AutotuneError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        try:
            problems += [parse(text)] if text else []
        except AutotuneError as error:
            raise AutotuneError(f"{path}, line {number}: {error}") from error
    if not problems:
        raise AutotuneError(f"{path} contains no problem: write one a line, as docs/reference/problems.md shows")
    return problems
