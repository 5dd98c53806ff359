"""Sets of layers to compare with cuDNN: files with one problem a line."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.core import AutotuneError
from autotune.ir import Problem
from autotune.ir.operators import Conv2d
from autotune_cli.layers.known_sets import LAYERS, known_sets
from autotune_cli.problem_file import read_problems


def layer_set(name: str, only: str | None) -> tuple[Path, list[Problem]]:
    """Return the file of a set and its problems.

    Args:
        name: The name of a set, or a file of problems.
        only: A regular expression; a problem is kept if its title or its text has a match. None keeps all.

    Raises:
        AutotuneError: There is no such set or file, it has a mistake, or no problem matches `only`.
    """
    path = LAYERS / f"{name}.txt" if (LAYERS / f"{name}.txt").is_file() else Path(name)
    if not path.is_file():
        raise AutotuneError(f"'{name}' is no set of layers: choose {', '.join(known_sets())} or a file of problems")
    problems = list(dict.fromkeys(read_problems(path)))
    try:
        pattern = re.compile(only or "")
    except re.error as problem:
        raise AutotuneError(f"--only '{only}' is no regular expression: {problem}") from problem
    wanted = [problem for problem in problems if pattern.search(title(problem)) or pattern.search(str(problem))]
    if not wanted:
        raise AutotuneError(f"no layer of {path} matches --only '{only}'")
    return path, wanted


def title(problem: Problem) -> str:
    """Return a short text for a layer: window/stride channels @size, batch, and unusual fields."""
    words = [problem.short_name, f"n{getattr(problem, 'n', '')}"]
    if isinstance(problem, Conv2d):
        words += [f"d{problem.dilation[0]}"] * (max(problem.dilation) > 1)
        words += [str(problem.epilogue)] * (str(problem.epilogue) != "bias,relu")
    return " ".join(words)
