"""The tuned kernels of a database for single problems."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from autotune.ir import Conv2dWgrad, Problem, parse
from autotune.libraries import aten
from autotune.runtime import Candidate, KernelChoice, choices
from tuning_db import reader

PublicKey = str | os.PathLike[str]


class Winners:
    """The kernels of ours that a database knows to be faster than torch's operators.

    Args:
        database: Path or URL of the database.
        trusted_keys: Public keys, one of which must have signed it.
    """

    def __init__(self, database: str, trusted_keys: Sequence[PublicKey] = ()) -> None:
        self.database, self._trusted_keys = database, tuple(trusted_keys)
        self._layouts: dict[tuple[str, torch.device], str | None] = {}

    def solves(self, problem: Problem, device: torch.device) -> bool:
        """Return whether there is a kernel for a problem, tuned at its very sizes; raises as `layout` does."""
        return self.layout(problem, device) is not None

    def layout(self, problem: Problem, device: torch.device) -> str | None:
        """Return the layout in which the fastest kernel for a problem reads its weight; None if there is no kernel.

        Raises:
            DatabaseError: The database cannot be read.
        """
        key = str(problem), device
        if key not in self._layouts:
            found = self.candidates(problem, device)
            self._layouts[key] = layout_of(found[0]) if found else None
        return self._layouts[key]

    def trains(self, device: torch.device) -> bool:
        """Return whether there is a kernel for a gradient by a weight; raises as `layout` does."""
        with reader(self.database, self._trusted_keys) as store:
            texts = [text for text in store.problem_texts() if text.startswith(f"{Conv2dWgrad.operator} ")]
        return any(self.solves(parse(text), device) for text in texts)

    def candidates(self, problem: Problem, device: torch.device) -> list[Candidate]:
        """Return the kernels for a problem, the fastest first, up to torch's operator; raises as `layout` does."""
        with reader(self.database, self._trusted_keys) as store:
            return list(_before_torch(choices(store, problem, device)))

    def stamp(self) -> str | None:
        """Return a text that changes with the database; None if it is on a server, whose state has no such text."""
        if "://" in self.database:
            return None
        status = Path(self.database).stat()
        return f"{self.database} {status.st_size} {status.st_mtime_ns}"


def layout_of(candidate: Candidate) -> str:
    """Return the layout in which a kernel reads the weight; torch's own if it names none, also for one without."""
    return candidate.weight_layouts.get("weight", "kcrs")


def _before_torch(found: Iterator[KernelChoice]) -> Iterator[Candidate]:
    for choice in found:
        if choice.candidate.family == aten.FAMILY or not choice.source.startswith("tuned"):
            return
        if choice.candidate.native:
            yield choice.candidate
