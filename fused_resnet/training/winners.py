"""The tuned kernels of a database for single problems."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch

from autotune.core import device_name
from autotune.ir import Epilogue, Form, Problem, all_forms, forms, limit_us, parse
from autotune.ir.operators import Conv2dWgrad, Convolution, Elementwise
from autotune.libraries import aten, cudnn_names
from autotune.runtime import Candidate, KernelChoice, choices, usable_devices
from fused_resnet.training.step_plans import CLOSE, faster_ways, planned_kernels
from tuning_db import open_reader
from tuning_db.location import file_of, is_address

PublicKey = str | os.PathLike[str]


@dataclass(frozen=True)
class Solution:
    """The kernel for a pass: the form in which it computes the pass, and the layout in which it reads the weight."""

    form: Form
    layout: str


class Winners:
    """The kernels of ours and plans of cuDNN that a database knows to be faster than torch's operators.

    The kernel that the plan of a step names for a problem comes before those that are faster alone, unless it is far
    slower than these.

    Args:
        database: Path or URL of the database.
        trusted_keys: Public keys, one of which must have signed it.
        uses_plans: Whether the plans of steps count.
    """

    def __init__(self, database: str, trusted_keys: Sequence[PublicKey] = (), *, uses_plans: bool = True) -> None:
        self.database, self._trusted_keys, self._uses_plans = database, tuple(trusted_keys), uses_plans
        self._solutions: dict[tuple[str, torch.device], tuple[Solution, ...]] = {}
        self._planned: dict[torch.device, Mapping[str, Candidate]] = {}

    def solutions(self, problem: Convolution, device: torch.device) -> tuple[Solution, ...]:
        """Return the ways to compute a pass, tuned at its very sizes, that beat torch's operator, the fastest first.

        Raises:
            DatabaseError: The database cannot be read.
        """
        key = str(problem), device
        if key not in self._solutions:
            self._solutions[key] = self._ranked(problem, device)
        return self._solutions[key]

    def fused_layout(self, problem: Problem, parts: Sequence[Problem], device: torch.device) -> str | None:
        """Return the layout of the weight of the kernel that computes several problems at once.

        It is None if there is no such kernel that was timed, or if the parts one after the other are as fast. Raises as
        `solutions` does.

        Args:
            problem: The problem with all parts.
            parts: The parts. Of an input gradient the faster form counts.
            device: The device.
        """
        return self._layout_if_faster(problem, sum(self._best_us(one, device) for one in parts), device)

    def layout_with_pointwise(self, problem: Convolution, alone: Convolution, device: torch.device) -> str | None:
        """Return the layout of the weight of the kernel that computes a pass and a pointwise operator on its result.

        It is None if there is no such kernel that was timed, or if it is no faster than the pass alone and an operator
        that reads and writes the result at the memory's rate. Raises as `solutions` does.

        Args:
            problem: The problem with both.
            alone: The pass. Of an input gradient the faster form counts.
            device: The device.
        """
        n, h, w, c = problem.output_shape
        dtype = "f32" if problem.dtype == "tf32" else problem.dtype
        pointwise = Elementwise(n=n, h=h, w=w, c=c, dtype=dtype, epilogue=Epilogue(("relu",)))
        apart = self._best_us(alone, device) + (self.limit_us(pointwise, device) or 0.0)
        return self._layout_if_faster(problem, apart, device)

    def _layout_if_faster(self, problem: Problem, us: float, device: torch.device) -> str | None:
        """Return the layout of the weight of the kernel for a problem; None if none is faster than some time."""
        found = self.kernels(problem, device)
        fastest = min((one.expected_us or inf for one in found), default=inf)
        return layout_of(found[0].candidate) if fastest < us else None

    def _best_us(self, problem: Problem, device: torch.device) -> float:
        """Return the shortest time of anything that solves a problem, in any form; infinity if nothing was timed."""
        problems = all_forms(problem)
        with open_reader(self.database, self._trusted_keys) as store:
            for row, _ in usable_devices(store, device):
                times = [us for one in problems if (us := store.best_us(row, str(one))) is not None]
                if times:
                    return min(times)
        return inf

    def _ranked(self, problem: Convolution, device: torch.device) -> tuple[Solution, ...]:
        limit = self._us_to_beat(problem, device)
        found = [(form, choice) for form in forms(problem) for choice in self.kernels(form.problem, device)]
        close_us = _close_us([choice for _, choice in found])

        def place(kernel: tuple[Form, KernelChoice]) -> tuple[bool, float]:
            form, choice = kernel
            return not self._is_planned(form.problem, choice, close_us, device), choice.expected_us or inf

        ranked = [(form, one) for form, one in sorted(found, key=place) if (one.expected_us or inf) < limit]
        return tuple(dict.fromkeys(Solution(form, layout_of(one.candidate)) for form, one in ranked))

    def _us_to_beat(self, problem: Convolution, device: torch.device) -> float:
        """Return the time that a kernel must beat: of torch's operator; 0 if that is not known.

        Where plans of cuDNN were timed, which torch runs, too, the fastest of all is taken, so there is no limit.
        """
        for timed in self._times(problem, device):
            if aten.FAMILY in timed:
                return timed[aten.FAMILY] or 0.0
            if cudnn_names.FAMILY in timed:
                return inf
        return 0.0

    def trains(self, device: torch.device) -> bool:
        """Return whether there is a kernel for a weight gradient; raises as `solutions` does."""
        with open_reader(self.database, self._trusted_keys) as store:
            texts = [text for text in store.problem_texts() if text.startswith(f"{Conv2dWgrad.operator} ")]
        return any(self.solutions(_gradient(text), device) for text in texts)

    def kernels(self, problem: Problem, device: torch.device) -> list[KernelChoice]:
        """Return the tuned kernels and plans of cuDNN for a problem: that of a step's plan, then the fastest first.

        Raises as `solutions` does.
        """
        with open_reader(self.database, self._trusted_keys) as store:
            found = [choice for choice in choices(store, problem, device) if choice.source.startswith("tuned")]
        solvers = [choice for choice in found if _is_solver(choice.candidate)]
        close_us = _close_us(solvers)
        return sorted(solvers, key=lambda one: not self._is_planned(problem, one, close_us, device))

    def choice(self, problem: Problem, device: torch.device, layout: str = "") -> KernelChoice | None:
        """Return the fastest kernel for a problem, with its time; raises as `solutions` does.

        Args:
            problem: The problem.
            device: The device.
            layout: The layout in which it reads the weight; empty for any.
        """
        found = self.kernels(problem, device)
        return next((one for one in found if layout in ("", layout_of(one.candidate))), None)

    def torch_us(self, problem: Problem, device: torch.device) -> float | None:
        """Return the time of torch's operator for a problem; None if it was not timed."""
        return next((timed[aten.FAMILY] for timed in self._times(problem, device) if aten.FAMILY in timed), None)

    def limit_us(self, problem: Problem, device: torch.device) -> float | None:
        """Return the least time of a problem by the device's peak rates; None if the database does not know these."""
        with open_reader(self.database, self._trusted_keys) as store:
            row = next((row for row, _ in usable_devices(store, device)), None)
            return limit_us(problem, row.flops_per_us, row.bytes_per_us) if row else None

    def _times(self, problem: Problem, device: torch.device) -> list[dict[str, float | None]]:
        """Return the time of the fastest candidate of each family, for each device whose code runs here."""
        with open_reader(self.database, self._trusted_keys) as store:
            return [
                {one.kernel.family: one.median_us for one in reversed(store.ranking(row, str(problem)))}
                for row, _ in usable_devices(store, device)
            ]

    def _is_planned(self, problem: Problem, choice: KernelChoice, close_us: float, device: torch.device) -> bool:
        """Return whether the plan of a step names a kernel that takes at most `close_us` alone."""
        if not self._uses_plans or (choice.expected_us or inf) > close_us:
            return False
        if device not in self._planned:
            with open_reader(self.database, self._trusted_keys) as store:
                row = next((row for row, _ in usable_devices(store, device)), None)
                self._planned[device] = planned_kernels(store, row) if row else {}
        return self._planned[device].get(str(problem)) == choice.candidate

    def faster_ways(self, device: torch.device, is_compiled: bool) -> Mapping[str, str]:
        """Return the ways in which torch runs steps faster than our kernels do; raises as `solutions` does.

        Args:
            device: The device; times of another one say nothing about it.
            is_compiled: Whether Inductor can compile.
        """
        if not self._uses_plans:
            return {}
        with open_reader(self.database, self._trusted_keys) as store:
            row = store.device(device_name(device))
            return faster_ways(store, row, is_compiled) if row else {}

    def stamp(self) -> str | None:
        """Return a text that changes with the database; None if it is on a server, whose state has no such text."""
        if is_address(self.database):
            return None
        status = file_of(self.database).stat()
        return f"{self.database} {status.st_size} {status.st_mtime_ns}"


def _close_us(known: Sequence[KernelChoice]) -> float:
    """Return the longest time alone with which the kernel of a plan comes before the fastest one."""
    return CLOSE * min((one.expected_us or inf for one in known), default=inf)


def layout_of(candidate: Candidate) -> str:
    """Return the layout in which a kernel reads the weight; torch's own if it names none, also for one without."""
    default = "krsc" if candidate.kind == cudnn_names.KIND else "kcrs"
    return candidate.weight_layouts.get("weight", default)


def _is_solver(candidate: Candidate) -> bool:
    return candidate.native or candidate.kind == cudnn_names.KIND


def _gradient(text: str) -> Conv2dWgrad:
    problem = parse(text)
    assert isinstance(problem, Conv2dWgrad)
    return problem
