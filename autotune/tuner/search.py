"""The search of a tuning run: trials that need no search, then compilers that work while kernels are measured.

The same loop drives compilers and devices (`Search`) and recorded ones (simulator.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from autotune.core import Deadline
from autotune.families import Kernel, serving
from autotune.ir import Problem
from autotune.search import Schedule, is_large
from autotune.tuner.plan import CopiedPlan, copy_plan, record_copied_plan
from autotune.tuner.run_context import RunContext
from autotune.tuner.trials import POLL_SECONDS, KernelTrials, LibraryTrials


class Compilers(Protocol):
    """Compile kernels in the background."""

    def idle_cores(self) -> int:
        """Return the number of translation units that compilers would start on at once."""

    def build(self, kernels: Sequence[Kernel], search_seconds: float) -> None:
        """Start to compile kernels; those that exist are ready at once.

        Args:
            kernels: The kernels; there may be none.
            search_seconds: Time that choosing them took.
        """

    def ready(self, wait: bool, until: Deadline) -> list[Kernel]:
        """Return kernels that became ready since the last call.

        Args:
            wait: Wait until there is one, unless none is being compiled.
            until: Wait no longer than this.
        """


class Devices(Protocol):
    """Measure kernels."""

    @property
    def places(self) -> Mapping[Problem, int]:
        """The number of the device that measures a problem."""

    def rooms(self) -> Sequence[int]:
        """Return how many candidates each device takes without a wait."""

    def measure(self, kernels: Sequence[Kernel]) -> None:
        """Measure kernels on the problems whose studies want them, and tell these studies.

        The last measurements may still be under way at return.
        """

    def wait(self) -> None:
        """Wait a moment, in which a measurement may end."""

    def finish(self) -> bool:
        """Wait for all measurements under way and tell the studies; return whether there were any."""


class SearchLoop:
    """Compiles and measures what the studies want.

    Args:
        schedule: Asks the studies.
        compilers: The compilers.
        devices: The devices.
        until: The deadline; nothing is started after it.
        weights: Returns the weights of the problems.
    """

    def __init__(
        self,
        schedule: Schedule,
        compilers: Compilers,
        devices: Devices,
        until: Deadline,
        weights: Callable[[], Mapping[Problem, float]] = dict,
    ) -> None:
        self._schedule, self._compilers, self._devices = schedule, compilers, devices
        self.until, self._weights = until, weights
        self._all_rest = False

    def run(self) -> None:
        """Ask, compile and measure until no study wants more or the time is over."""
        schedule, devices = self._schedule, self._devices
        while not self.until.is_over:
            if self._all_rest and not schedule.has_waiting:
                devices.finish()  # the studies wanted nothing: tell them all results before they are asked again
            asked = self._build()
            schedule.add(self.ready(wait=False))
            if not schedule.has_waiting:
                if devices.finish():
                    continue  # with these results the studies may want more
                schedule.add(self.ready(wait=True))
            if batch := schedule.next(devices.rooms(), devices.places):
                devices.measure(batch)
            elif schedule.has_waiting:
                devices.wait()
            elif not asked:
                break
        devices.finish()

    def ready(self, wait: bool) -> list[Kernel]:
        """Return kernels that became ready since the last call; `wait` until there is one, unless none is compiled."""
        return self._compilers.ready(wait, self.until)

    def _build(self) -> bool:
        """Ask for as many kernels as the compilers can start on; return whether any were wanted."""
        started = time.perf_counter()
        num_units = self._schedule.free_units(self._compilers.idle_cores())
        wanted = self._schedule.ask(num_units, self._weights()) if num_units else []
        self._all_rest = bool(num_units) and not wanted and self._schedule.asks_all
        if num_units:
            self._compilers.build(wanted, time.perf_counter() - started)
        return bool(wanted)


OPERATORS_SHARE = 0.3
"""Share of the search's time in which PyTorch's operators are timed, before anything else."""


class FirstTrials:
    """Tries what needs no search.

    Args:
        run: The run.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._builds_early = run.is_new

    def run(self) -> dict[str, CopiedPlan]:
        """Try plans of other databases, then PyTorch's operators, and wait until the spaces are enumerated.

        Returns:
            The plans that the networks begin with, by the keys of the networks.
        """
        run = self._run
        copied = self._copy_plans()
        run.progress.stage("timing PyTorch's operators")
        run.time_operators(self._build_between(self._operators_first()), run.phases.current.share(OPERATORS_SHARE))
        run.progress.stage("enumerating configs")
        while not run.enumerated.done():
            self._build_early()
            time.sleep(POLL_SECONDS)
        run.enumerated.result()
        return copied

    def _copy_plans(self) -> dict[str, CopiedPlan]:
        """Time and record plans of other databases or sizes for networks that have none in this database."""
        run, copied = self._run, dict[str, CopiedPlan]()
        for network in run.planned:
            if not run.store.plan(run.device, network.key) and (plan := copy_plan(network, run)):
                run.progress.stage("trying plans of other databases and sizes")
                copied[network.key] = plan
        run.queues.drain()
        for network in (one for one in run.planned if one.key in copied):
            plan, until = copied[network.key], run.phases.current
            with run.breakdown.charge("time"):
                record_copied_plan(run.store, run.device, run.workers[0], network, plan, until, run.progress.note)
        return copied

    def _operators_first(self) -> list[Problem]:
        """Return the problems whose operators are timed before the search: those that nothing else solves come first.

        On a GPU they are all, unless the options ask for the others. An operator takes cuDNN a fraction of a second to
        choose, and one that a kernel of ours replaces is seldom faster; their times wait for the end of the search.
        """
        options = self._run.options
        served = {problem: bool(serving(problem, options.arch)) for problem in self._run.problems}
        first = sorted(self._run.weights.sorted(), key=served.__getitem__)
        waits = options.arch.is_cuda and not options.baseline_first
        return [problem for problem in first if not (waits and served[problem])]

    def _build_between(self, problems: Iterable[Problem]) -> Iterator[Problem]:
        for problem in problems:
            self._build_early()
            yield problem

    def _build_early(self) -> None:
        """In a new database, start the first compilers as soon as enough spaces are enumerated.

        Any measurement of a database could change what is asked for first.
        """
        if self._builds_early and (kernels := self._run.study_manager.first_kernels()):
            self._run.builder.build(kernels)
            self._builds_early = False


LISTING_SHARE = 0.1
"""Share of the run in which a search that has ended waits for the rest of cuDNN's plans."""
OTHER_LAUNCHES_BATCH = 1
"""Kernels whose other launches are tried between two batches of kernels, in a large run."""
PLAN_BATCH = 1
"""cuDNN's plans that are timed between two batches of kernels; a kernel of ours is more often the fastest."""


class Search(SearchLoop):
    """Searches the spaces of all problems, and tries what needs no compiler.

    It tries a little of that between two batches of kernels, and all that there is time for while compilers are waited
    for.

    Args:
        run: The run; its spaces are enumerated.
    """

    def __init__(self, run: RunContext) -> None:
        until, large = run.phases.current, is_large(len(run.problems), run.options.jobs)
        self._run = run
        self._trials = KernelTrials(run.study_manager, run.builder, run.device, run.queues, until, large)
        self._plans = LibraryTrials(run.listed, run.queues, until, run.progress)
        super().__init__(_schedule(run), run.builder, self._trials, until, run.weights.recent)

    def run(self) -> None:
        """Search until no study wants more or the time is over, then try what was left for the end."""
        run, plans = self._run, self._plans
        run.progress.stage("searching")
        super().run()
        run.time_operators(run.weights.sorted(), self.until)
        if run.listed:
            if not run.listed.is_done:
                run.progress.stage("listing the remaining cuDNN plans")
            plans.collect(run.phases.waiting(LISTING_SHARE))
            plans.submit(plans.num_waiting)
            self._trials.finish()
        self._trials.finish_tried_elsewhere()

    def ready(self, wait: bool) -> list[Kernel]:
        """Return kernels that became ready, and try some others before."""
        run, plans = self._run, self._plans
        run.beside.advance()
        if run.beside.is_done:
            run.builder.reserved = 0
        self._trials.try_other_launches(OTHER_LAUNCHES_BATCH)
        plans.collect()
        plans.submit(PLAN_BATCH)
        while not (ready := super().ready(wait and not plans.num_waiting)):
            if not (wait and plans.num_waiting) or self.until.is_over:
                break
            plans.submit(PLAN_BATCH)
        return ready


def _schedule(run: RunContext) -> Schedule:
    """Create the studies, tell them what was measured on the device before, and return the order of asking them."""
    run.study_manager.create_studies()
    run.study_manager.tell_known(run.device)
    return Schedule(
        run.study_manager.studies,
        run.options.target,
        dict.fromkeys(run.problems, run.study_manager.max_trials),
        num_compilers=run.options.jobs,
        places=run.queues.places,
        num_devices=len(run.queues.workers),
        exists=run.builder.exists,
        trial_seconds=run.builder.trial_seconds,
    )
