"""The tuned kernels of a database for single problems."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any, TypeVar

import torch

from autotune.core import device_name
from autotune.ir import Epilogue, Form, Problem, all_forms, forms, limit_us, parse
from autotune.ir.operators import Conv2dWgrad, Convolution, Elementwise
from autotune.libraries import aten, cudnn_names
from autotune.runtime import Candidate, KernelChoice, Ranking, rankings, usable_devices
from fused_resnet.training.kernels.step_plans import CLOSE, StepPlans
from tuning_db import open_reader
from tuning_db.location import file_of, is_address
from tuning_db.protocols import Database, Device

PublicKey = str | os.PathLike[str]
Found = TypeVar("Found")
P = TypeVar("P", bound=Problem)


@dataclass(frozen=True)
class Solution:
    """The kernel for a pass: the form in which it computes the pass, and the layout in which it reads the weight."""

    form: Form
    layout: str


class Winners:
    """The kernels of ours and plans of cuDNN that a database knows to be faster than torch's operators.

    The kernel that the plan of a step names for a problem comes before those that are faster alone, unless it is far
    slower than these. What was read once is kept, so an object serves the compilation of one step. All methods raise
    DatabaseError if the database cannot be read.

    Args:
        database: Path or URL of the database.
        trusted_keys: Public keys, one of which must have signed it.
        uses_plans: Whether the plans of steps count.
    """

    def __init__(self, database: str, trusted_keys: Sequence[PublicKey] = (), *, uses_plans: bool = True) -> None:
        self.database, self._trusted_keys, self._uses_plans = database, tuple(trusted_keys), uses_plans
        self._known: dict[Hashable, Any] = {}
        self._thread = threading.local()  # a reader is for one thread

    def renewed(self) -> Winners:
        """Return the kernels of the database as it is now."""
        return Winners(self.database, self._trusted_keys, uses_plans=self._uses_plans)

    @contextmanager
    def reading(self) -> Iterator[Callable[[], Database]]:
        """Let one reader answer all that this thread asks within; it is opened for the first question.

        Yields:
            A function that returns the open database.
        """
        if outer := getattr(self._thread, "store", None):
            yield outer
            return
        with ExitStack() as stack:
            store = cache(lambda: stack.enter_context(open_reader(self.database, self._trusted_keys)))
            self._thread.store = store
            try:
                yield store
            finally:
                del self._thread.store

    def read(self, problems: Iterable[Problem], device: torch.device) -> None:
        """Read all that the compilation of a step asks for: its problems and the plans, through one reader."""
        with self.reading():
            self._plans(device)
            for problem in problems:
                self._rankings(problem, device)

    def solutions(self, problem: Convolution, device: torch.device) -> tuple[Solution, ...]:
        """Return the ways to compute a pass, tuned at its very sizes, that beat torch's operator, the best first.

        The best candidates of the forms come first, then the second ones: the order of candidates within a form is that
        of its ranking, because a time that no finals have checked may be too short.
        """
        with self.reading():
            limit, ways = self._us_to_beat(problem, device), {form.problem: form for form in forms(problem)}
            found = [(place, way, one) for way in ways for place, one in enumerate(self._solvers(way, device))]
            in_order = sorted(found, key=lambda each: (each[0], _us(each[2])))
            ranked = self._planned_first([(way, choice) for _, way, choice in in_order], device)
            faster = ((way, one.candidate) for way, one in ranked if _us(one) < limit)
            return tuple(dict.fromkeys(Solution(ways[way], layout_of(one)) for way, one in faster))

    def fused_layout(
        self, problem: Problem, parts: Sequence[Problem], device: torch.device, *, with_pointwise: bool = False
    ) -> str | None:
        """Return the layout of the weight of the kernel that computes several problems at once.

        It is None if there is no such kernel that was timed, or if the parts one after the other are as fast.

        Args:
            problem: The problem with all parts.
            parts: The parts. Of an input gradient the faster form counts.
            device: The device.
            with_pointwise: Whether another part is an operator that reads and writes the result at the memory's rate.
        """
        apart = sum(self._best_us(one, device) for one in parts)
        if with_pointwise:
            n, h, w, c = problem.output_shape
            dtype = "f32" if problem.dtype == "tf32" else problem.dtype
            pointwise = Elementwise(n=n, h=h, w=w, c=c, dtype=dtype, epilogue=Epilogue(("relu",)))
            apart += self.limit_us(pointwise, device) or 0.0
        found = self.kernels(problem, device)
        return layout_of(found[0].candidate) if min(map(_us, found), default=inf) < apart else None

    def trains(self, device: torch.device) -> bool:
        """Return whether there is a kernel for a weight gradient."""
        with self.reading() as store:
            texts = [text for text in store().problem_texts() if text.startswith(f"{Conv2dWgrad.operator} ")]
            return any(isinstance(one, Conv2dWgrad) and self.solutions(one, device) for one in map(parse, texts))

    def kernels(self, problem: Problem, device: torch.device, layout: str = "") -> list[KernelChoice]:
        """Return the tuned kernels and plans of cuDNN for a problem: that of a step's plan, then the fastest first.

        Args:
            problem: The problem.
            device: The device.
            layout: The layout in which they read the weight; empty for any.
        """
        with self.reading():
            ranked = self._planned_first([(problem, one) for one in self._solvers(problem, device)], device)
        return [one for _, one in ranked if layout in ("", layout_of(one.candidate))]

    def torch_us(self, problem: Problem, device: torch.device) -> float | None:
        """Return the time of torch's operator for a problem; None if it was not timed."""
        rows = (row for one in self._rankings(problem, device) for row in one.timed)
        return next((row.median_us for row in rows if row.kernel.family == aten.FAMILY), None)

    def limit_us(self, problem: Problem, device: torch.device) -> float | None:
        """Return the least time of a problem by the device's peak rates; None if the database does not know these."""
        row = self._device(device)
        return limit_us(problem, row.flops_per_us, row.bytes_per_us) if row else None

    def faster_ways(self, device: torch.device, is_compiled: bool) -> Mapping[str, str]:
        """Return the ways in which torch runs steps faster than our kernels do.

        Args:
            device: The device; times of another one say nothing about it.
            is_compiled: Whether Inductor can compile.
        """
        row = self._device(device)
        return self._plans(device).faster_ways(is_compiled) if row and row.name == device_name(device) else {}

    def stamp(self) -> str | None:
        """Return a text that changes with the database; None if it is on a server, whose state has no such text."""
        if is_address(self.database):
            return None
        status = file_of(self.database).stat()
        return f"{self.database} {status.st_size} {status.st_mtime_ns}"

    def _read(self, what: Hashable, read: Callable[[Database], Found]) -> Found:
        """Return what `read` reads, which is read once."""
        if what not in self._known:
            with self.reading() as store:
                self._known[what] = read(store())
        found: Found = self._known[what]
        return found

    def _rankings(self, problem: Problem, device: torch.device) -> list[Ranking]:
        def loaded(store: Database) -> list[Ranking]:
            return [replace(one, choices=list(one.choices)) for one in rankings(store, problem, device)]

        return self._read((str(problem), device), loaded)

    def _device(self, device: torch.device) -> Device | None:
        """Return the first kind of device whose code runs here."""
        return self._read(device, lambda store: next((row for row, _ in usable_devices(store, device)), None))

    def _plans(self, device: torch.device) -> StepPlans:
        row = self._device(device) if self._uses_plans else None
        return self._read(("plans", device), lambda store: StepPlans.read(store, row)) if row else StepPlans()

    def _solvers(self, problem: Problem, device: torch.device) -> list[KernelChoice]:
        found = [choice for one in self._rankings(problem, device) for choice in one.choices]
        return [one for one in found if one.candidate.native or one.candidate.kind == cudnn_names.KIND]

    def _best_us(self, problem: Problem, device: torch.device) -> float:
        """Return the shortest time of anything that solves a problem, in any form; infinity if nothing was timed."""
        with self.reading():
            of_forms = [self._rankings(one, device) for one in all_forms(problem)]
        of_devices = ([one.best_us for one in same if one.best_us is not None] for same in zip(*of_forms, strict=True))
        return next((min(times) for times in of_devices if times), inf)

    def _us_to_beat(self, problem: Convolution, device: torch.device) -> float:
        """Return the time that a kernel must beat: of torch's operator; 0 if that is not known.

        Where plans of cuDNN were timed, which torch runs, too, the fastest of all is taken, so there is no limit.
        """
        for one in self._rankings(problem, device):
            families = {row.kernel.family for row in one.timed}
            if aten.FAMILY in families:
                return self.torch_us(problem, device) or 0.0
            if cudnn_names.FAMILY in families:
                return inf
        return 0.0

    def _planned_first(
        self, found: Sequence[tuple[P, KernelChoice]], device: torch.device
    ) -> list[tuple[P, KernelChoice]]:
        """Return kernels in their order, but first those that plans of steps name, unless they are far slower alone."""
        close_us, planned = CLOSE * min((_us(one) for _, one in found), default=inf), self._plans(device).kernels
        return sorted(found, key=lambda one: _us(one[1]) > close_us or planned.get(str(one[0])) != one[1].candidate)


def _us(choice: KernelChoice) -> float:
    return choice.expected_us or inf


def layout_of(candidate: Candidate) -> str:
    """Return the layout in which a kernel reads the weight; torch's own if it names none, also for one without."""
    default = "krsc" if candidate.kind == cudnn_names.KIND else "kcrs"
    return candidate.weight_layouts.get("weight", default)
