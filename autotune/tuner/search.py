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
