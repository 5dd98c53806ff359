"""Sets of layers: files with a problem in each line."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.core import AutotuneError
from autotune.ir import Conv2d, Problem, parse

LAYERS = Path(__file__).resolve().parents[3] / "benchmarks" / "layers"


def layer_set(name: str, only: str | None) -> tuple[Path, list[Problem]]:
    """The file of a set and its problems, those that `only` finds."""
    path = LAYERS / f"{name}.txt" if (LAYERS / f"{name}.txt").is_file() else Path(name)
    problems = read_problems(path)
    try:
        pattern = re.compile(only or "")
    except re.error as problem:
        raise AutotuneError(f"--only '{only}' is no regular expression: {problem}") from problem
    wanted = [problem for problem in problems if pattern.search(title(problem)) or pattern.search(str(problem))]
    if not wanted:
        raise AutotuneError(f"no layer of {path} fits --only '{only}'")
    return path, wanted


def read_problems(path: Path) -> list[Problem]:
    """The problems of a file, one a line, without what follows a #."""
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as problem:
        known = ", ".join(sorted(found.stem for found in LAYERS.glob("*.txt")))
        raise AutotuneError(f"'{path}' is no set of layers: choose {known} or a file of problems") from problem
    problems = list(dict.fromkeys(parse(line) for line in lines if line))
    if not problems:
        raise AutotuneError(f"'{path}' has no problem in it")
    return problems


def title(problem: Problem) -> str:
    """A layer in few characters: window/stride channels @size, batch, and what is unusual."""
    words = [problem.short_name, f"n{getattr(problem, 'n', '')}"]
    if isinstance(problem, Conv2d):
        words += [f"d{problem.dilation[0]}"] * (max(problem.dilation) > 1)
        words += [str(problem.epilogue)] * (str(problem.epilogue) != "bias,relu")
    return " ".join(words)
