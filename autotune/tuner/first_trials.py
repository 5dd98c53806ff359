"""The trials before the search, while spaces are enumerated: plans that exist, and PyTorch's operators."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from autotune.families import serving
from autotune.ir import Problem
from autotune.tuner.plan import CopiedPlan, copy_plan, record_copied_plan
from autotune.tuner.run_context import RunContext
from autotune.tuner.trials import POLL_SECONDS

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
        """Time and record plans of other databases or batch sizes for networks that have none in this database."""
        run, copied = self._run, dict[str, CopiedPlan]()
        for network in run.planned:
            if not run.store.plan(run.device, network.key) and (plan := copy_plan(network, run)):
                run.progress.stage("trying plans of other databases and batch sizes")
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
