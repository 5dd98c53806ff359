"""The search of a tuning run: the studies choose kernels, which are compiled and timed."""

from __future__ import annotations

from autotune.families import Kernel
from autotune.search import Schedule, is_large
from autotune.tuner.run_context import RunContext
from autotune.tuner.search_loop import SearchLoop
from autotune.tuner.trials import KernelTrials, LibraryTrials

LISTING_SHARE = 0.1
"""Share of the run in which a search that has ended waits for the rest of cuDNN's plans."""
OTHER_LAUNCHES_BATCH = 1
"""Kernels whose other launches are tried between two batches of kernels, in a large run."""
PLAN_BATCH = 1
"""cuDNN's plans that are timed between two batches of kernels; a kernel of ours is more often the fastest."""


class Search:
    """Searches the spaces of all problems.

    Args:
        run: The run; its spaces are enumerated.
    """

    def __init__(self, run: RunContext) -> None:
        self._run, self._until = run, run.phases.current
        large = is_large(len(run.problems), run.options.jobs)
        self._trials = KernelTrials(run.study_manager, run.builder, run.device, run.queues, self._until, large)
        self._plans = LibraryTrials(run.listed, run.queues, self._until, run.progress)

    def run(self) -> None:
        """Search until no study wants more or the time is over, then try what was left for the end."""
        run, plans = self._run, self._plans
        schedule = self._schedule()
        run.progress.stage("searching")
        _Loop(run, schedule, self._trials, plans).run()
        run.time_operators(run.weights.sorted(), self._until)
        if run.listed:
            if plans.is_listing:
                run.progress.stage("listing the remaining cuDNN plans")
            plans.collect(run.phases.waiting(LISTING_SHARE))
            plans.submit(plans.num_waiting)
            self._trials.finish()
        self._trials.finish_tried_elsewhere()

    def _schedule(self) -> Schedule:
        """Create the studies, and tell them what was measured on the device before."""
        run = self._run
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


class _Loop(SearchLoop):
    """The loop of a run, which also tries what needs no compiler.

    It tries a little between two batches of kernels, and all that there is time for while compilers are waited for.
    """

    def __init__(self, run: RunContext, schedule: Schedule, trials: KernelTrials, plans: LibraryTrials) -> None:
        super().__init__(schedule, run.builder, trials, run.phases.current, run.weights.recent)
        self._builder, self._beside, self._trials, self._plans = run.builder, run.beside, trials, plans

    def ready(self, wait: bool) -> list[Kernel]:
        """Return kernels that became ready, and try some others before."""
        self._beside.advance()
        if self._beside.is_done:
            self._builder.reserved = 0
        self._trials.try_other_launches(OTHER_LAUNCHES_BATCH)
        self._plans.collect()
        self._plans.submit(PLAN_BATCH)
        while not (ready := super().ready(wait and not self._plans.num_waiting)):
            if not (wait and self._plans.num_waiting) or self.until.is_over:
                break
            self._plans.submit(PLAN_BATCH)
        return ready
