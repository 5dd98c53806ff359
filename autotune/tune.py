"""The whole loop: which candidates to try, built, verified, timed and recorded until trials or time run out.

Every trial is committed as it ends. A run begins by reading what the database already holds, so a run that was
stopped goes on where it was. A compiled kernel serves every problem with its epilogue and is timed for all of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

from autotune import abi, build, emit, paths, toolchain
from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.errors import AutotuneError
from autotune.families import family, serving
from autotune.families.base import Config, Family, Kernel
from autotune.measure import Result
from autotune.problem import Convolution, Problem
from autotune.progress import Progress
from autotune.search import Study
from autotune.settle import settle_network
from autotune.vendor import aten, cudnn
from autotune.vendor_plans import plan_rows
from autotune.worker import Worker
from fused_resnet.binding import Candidate
from fused_resnet.candidates import candidate
from fused_resnet.graph import Network
from fused_resnet.selection import shortlist
from tuning_db import Store
from tuning_db.schema import Device, KernelRow, Library

FINALISTS = 6
PLANS = 3
"""Plans of cuDNN that are finalists beside them."""
FINAL_ROUNDS = 15


@dataclass(frozen=True)
class Options:
    """trials: configs a family may try for one problem; budget: seconds for the search; jobs: compilers at once.

    allow: names of families.base.PERMISSIONS. only: names of the families that may try; all if empty.
    vendor: whose plans are candidates on a GPU: "cudnn" or "none".
    """

    arch: Architecture
    target: str
    trials: int
    budget: float
    jobs: int
    seed: int = 0
    allow: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    vendor: str = cudnn.FAMILY


@dataclass
class Space:
    """The search of one family for one problem."""

    problem: Problem
    family: Family
    study: Study
    arch: Architecture
    target: str

    def kernel(self, config: Config) -> Kernel:
        """The kernel of a config, for this problem's dtype and epilogue."""
        return Kernel.of(self.family.name, config, self.problem.dtype, self.problem.epilogue, self.target)

    def serves(self, kernel: Kernel) -> bool:
        """Whether a kernel belongs to this space."""
        mine = (self.family.name, self.problem.dtype, self.problem.epilogue)
        return (kernel.family, kernel.dtype, kernel.epilogue) == mine

    def launches(self, kernel: Kernel) -> list[dict[str, int]]:
        """The launch values worth timing for this problem; none if the kernel does not fit it."""
        if self.family.fits(self.problem, kernel.values, self.arch):
            return []
        names = [parameter.name for parameter in self.family.launch_parameters]
        launches = self.family.launches(self.problem, kernel.values, self.arch)
        return [{name: launch[name] for name in names} for launch in launches]


class Tuning:
    """One run over some problems. Without a worker it compiles the prior's best and times nothing.

    compiled, compile_seconds: kernels that this run compiled, and the seconds of one core that their units took.
    """

    def __init__(
        self, store: Store, problems: Iterable[Problem], options: Options, worker: Worker | None, progress: Progress
    ) -> None:
        self.store, self.options, self.worker, self.progress = store, options, worker, progress
        self.problems = list(dict.fromkeys(problems))
        self.deadline = time.monotonic() + options.budget
        self.kernels: dict[Kernel, KernelRow] = {}
        self.compiled, self.compile_seconds = 0, 0.0

    def run(self) -> None:
        """Search every problem, then settle between finalists. Raises ToolchainError, WorkerError, DatabaseError."""
        toolchain.for_target(self.options.target)  # without a compiler, say so before anything else
        self.progress.total(len(self.problems))
        self.progress.stage("reading what is known")
        for problem in self.problems:
            self.store.put_problem(str(problem))
        self._recall()
        if self.worker is None:
            self.progress.stage("compiling the prior's best")
            for _ in self._built({kernel for space in self.spaces for kernel in self._asked(space)}):
                pass
            return
        self.progress.stage("timing torch's operators")
        for problem in self.problems:
            self._time_torch(problem)
        self._time_vendor()
        self.progress.stage("searching")
        while self._time_left() and (wanted := {kernel for space in self.spaces for kernel in self._asked(space)}):
            with closing(self._built(wanted)) as built:
                for kernel in built:
                    for space in self.spaces:
                        if space.serves(kernel):
                            self._time_kernel(space, kernel)
                    if not self._time_left():
                        break
        self.progress.stage("settling between finalists")
        for problem in self.problems:
            self._settle(problem)

    def settle_inside(self, network: Network) -> None:
        """On a GPU, choose between the finalists of a tuned network's layers once more, inside its CUDA graph."""
        if self.worker and self.options.arch.is_cuda:
            self.progress.stage("settling inside the network")
            settle_network(self.store, self.device, self.worker, network)

    @cached_property
    def device(self) -> Device:
        """The device's row; measures its limits the first time."""
        assert self.worker
        facts = self.worker.facts()
        return self.store.put_device(
            facts.name,
            facts.target,
            flops_per_us=facts.flops_per_us,
            bytes_per_us=facts.bytes_per_us,
            details={**facts.details, "processors": facts.processors},
        )

    @cached_property
    def spaces(self) -> list[Space]:
        """A search for each problem and family that serves it."""
        arch = self.options.arch
        spaces = []
        for problem in self.problems:
            for found in serving(problem, arch):
                if self.options.only and found.name not in self.options.only:
                    continue
                configs = found.configs_for(problem, arch, self.options.allow)
                study = Study(configs, lambda c, f=found, p=problem: f.cost(p, c, arch), self.options.seed)  # type: ignore[misc]
                spaces.append(Space(problem, found, study, arch, self.options.target))
        return spaces

    def _time_left(self) -> bool:
        return time.monotonic() < self.deadline

    # -- what is known already -------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Read compiled kernels and, where there is a device, their times; forget those whose source has changed."""
        for known in self.store.kernels(self.options.target):
            kernel = None if known.family == aten.FAMILY else _kernel_of(known)
            if kernel and known.source == emit.source_digest(kernel):
                self.kernels[kernel] = known
        if self.worker is None:
            return
        by_id = {row.id: kernel for kernel, row in self.kernels.items()}
        for space in self.spaces:
            best: dict[Kernel, float | None] = {
                kernel: None for kernel, known in self.kernels.items() if known.error and space.serves(kernel)
            }
            for row in self.store.measurements(self.device, str(space.problem)):
                if row.kernel_id in by_id and space.serves(by_id[row.kernel_id]):
                    times = [t for t in (best.get(by_id[row.kernel_id]), row.median_us) if t is not None]
                    best[by_id[row.kernel_id]] = min(times, default=None)
            for kernel, value in best.items():
                space.study.tell(kernel.values, value)

    # -- searching -------------------------------------------------------------------------------------------

    def _asked(self, space: Space) -> Iterator[Kernel]:
        """The next kernels that a space wants: a batch large enough to keep the compilers busy."""
        batch = max(4, self.options.jobs // 2)
        for config in space.study.ask(min(batch, self.options.trials - space.study.told)):
            yield space.kernel(config)

    def _built(self, wanted: set[Kernel]) -> Generator[Kernel]:
        """Kernels as they become ready: first those that the database holds, then those that are compiled now."""
        yield from (kernel for kernel in wanted if kernel in self.kernels and not self.kernels[kernel].error)
        missing = sorted((kernel for kernel in wanted if kernel not in self.kernels), key=str)
        if not missing:
            return
        self.progress.compiling(len(missing))
        with closing(build.build(missing, self.options.jobs)) as built:
            for outcome in built:
                self._record_build(outcome)
                self.compile_seconds += outcome.seconds
                self.compiled += len(outcome.unit.kernels) if outcome.path and outcome.seconds else 0
                self.progress.compiled(len(outcome.unit.kernels), 0 if outcome.path else len(outcome.unit.kernels))
                if outcome.path:
                    yield from outcome.unit.kernels

    def _record_build(self, outcome: build.Built) -> None:
        library = self._store_library(outcome) if outcome.path else None
        for kernel in outcome.unit.kernels:
            self.kernels[kernel] = self.store.put_kernel(
                _identity(kernel, emit.source_digest(kernel)),
                symbol=emit.symbol(kernel),
                weight_layouts=dict(family(kernel.family).weight_layouts(kernel.values)),
                library_id=library.id if library else None,
                error=outcome.error or None,
            )
            if outcome.error:
                for space in self.spaces:
                    if space.serves(kernel):
                        space.study.tell(kernel.values, None)

    def _store_library(self, outcome: build.Built) -> Library:
        assert outcome.path
        first = outcome.unit.kernels[0]
        return self.store.put_library(
            outcome.path.read_bytes(),
            kind=family(first.family).kind,
            target=first.target,
            compiler=outcome.unit.toolchain.compiler,
            flags=outcome.unit.toolchain.flags,
            cutlass=paths.cutlass_version(),
            abi_version=abi.ABI_VERSION,
        )

    # -- timing ----------------------------------------------------------------------------------------------

    def _time_kernel(self, space: Space, kernel: Kernel) -> None:
        launches = space.launches(kernel)
        row = self.kernels[kernel]
        if launches and not self._known(space, kernel):
            times = self._time(space.problem, row, [candidate(self.store, row, launch) for launch in launches])
            space.study.tell(kernel.values, min(times, default=None))
            if space.study.told >= self.options.trials:
                self.progress.done(str(space.problem))

    def _known(self, space: Space, kernel: Kernel) -> bool:
        return self.store.is_measured(self.device, str(space.problem), self.kernels[kernel])

    def _time_torch(self, problem: Problem) -> None:
        known = {row.kernel_id for row in self.store.measurements(self.device, str(problem))}
        for config in aten.configs(problem):
            kernel = Kernel.of(aten.FAMILY, config, problem.dtype, problem.epilogue, self.options.target)
            source = f"torch {self.device.details['torch']}"
            row = self.store.put_kernel(_identity(kernel, source), symbol="")
            if row.id not in known:
                self._time(problem, row, [candidate(self.store, row, {})])

    def _time_vendor(self) -> None:
        """List all of cuDNN's plans, then verify and time those that were not; say once why there are none."""
        if self.options.vendor != cudnn.FAMILY or not self.options.arch.is_cuda:
            return
        assert self.worker
        self.progress.stage("listing cuDNN's plans")
        plans: dict[Problem, list[KernelRow]] = {}
        reasons: dict[str, None] = {}
        for problem in self.problems:
            plans[problem], reason = plan_rows(self.store, self.worker, problem, self.options.target)
            reasons |= {reason: None} if reason and isinstance(problem, Convolution) else {}
        for reason in reasons:
            self.progress.stage(reason)
        self.progress.stage("timing cuDNN's plans")
        for problem, rows in plans.items():
            known = {row.kernel_id for row in self.store.measurements(self.device, str(problem))}
            left = [row for row in rows if row.library and row.id not in known]
            candidates = [candidate(self.store, row, {}) for row in left]
            for row, chosen, result in zip(left, candidates, self.worker.trial(problem, candidates), strict=True):
                self._record(problem, row, chosen, result)
            best = self.store.best_us(self.device, str(problem))
            self.progress.measured(str(problem), len(candidates), best)

    def _time(self, problem: Problem, row: KernelRow, candidates: list[Candidate]) -> list[float]:
        """Verify, time and record; returns the times of those that are right."""
        assert self.worker
        times = []
        for chosen, result in zip(candidates, self.worker.trial(problem, candidates), strict=True):
            self._record(problem, row, chosen, result)
            if result.median_us is not None:
                times.append(result.median_us)
        best = self.store.best_us(self.device, str(problem))
        self.progress.measured(str(problem), len(candidates), best)
        return times

    def _record(self, problem: Problem, row: KernelRow, chosen: Candidate, result: Result, final: bool = False) -> None:
        self.store.put_measurement(
            device_id=self.device.id,
            problem_id=self.store.put_problem(str(problem)).id,
            kernel_id=row.id,
            launch=dict(chosen.launch),
            status=result.status,
            error=result.error,
            relative_error=result.relative_error,
            median_us=result.median_us,
            spread_us=result.spread_us,
            samples_us=result.samples_us,
            final=final,
            details=result.details,
        )

    def _settle(self, problem: Problem) -> None:
        """Time the fastest few, and the best of torch's, in interleaved rounds; unless that was done for these."""
        assert self.worker
        ranked = self.store.ranking(self.device, str(problem), finals_first=False)
        best_of_torch = [row for row in ranked if row.kernel.family == aten.FAMILY][:1]
        finalists = shortlist(ranked, FINALISTS, PLANS)
        finalists += [row for row in best_of_torch if row not in finalists]
        settled = {
            (row.kernel_id, str(row.launch)) for row in self.store.ranking(self.device, str(problem)) if row.final
        }
        if all((row.kernel_id, str(row.launch)) in settled for row in finalists):
            return
        candidates = [candidate(self.store, row.kernel, row.launch) for row in finalists]
        results = self.worker.finals(problem, candidates, FINAL_ROUNDS)
        for row, chosen, result in zip(finalists, candidates, results, strict=True):
            if result.status == "ok":  # a failure of the whole round says nothing of any one of them
                self._record(problem, row.kernel, chosen, result, final=True)
        self.progress.measured(str(problem), 0, self.store.best_us(self.device, str(problem)))


def _identity(kernel: Kernel, source: str) -> dict[str, str]:
    """A kernel's key in the database. source: what its code was made from."""
    return {
        "family": kernel.family,
        "config": kernel.config,
        "dtype": kernel.dtype,
        "epilogue": str(kernel.epilogue),
        "target": kernel.target,
        "source": source,
    }


def _kernel_of(row: KernelRow) -> Kernel | None:
    """The kernel of a row; None if its family, its parameters or its epilogue are not this version's."""
    try:
        config = json.loads(row.config)
        if list(config) != [parameter.name for parameter in family(row.family).parameters]:
            return None
        return Kernel.of(row.family, config, row.dtype, Epilogue.parse(row.epilogue), row.target)
    except AutotuneError:
        return None
