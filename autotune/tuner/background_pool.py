"""The trials beside the searches of a run over several networks, such as one model at several batch sizes.

The trials of all networks start with the first search, because Inductor may take longer for a deep network than that
network's share of the run: a minute. Each network has a process of its own, so they are compiled at the same time, and
the compiled code stays loaded until the network's plan is tuned.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from autotune.ir import Network, Problem
from autotune.libraries import inductor
from autotune.measure import Worker
from autotune.tuner.background_trials import BackgroundTrials
from autotune.tuner.library_candidates import operator_rows
from autotune.tuner.options import TunerOptions
from autotune.tuner.progress import Progress
from tuning_db import Store
from tuning_db.schema import Device, KernelRow

MAX_COMPILERS = 4
"""Processes in which Inductor compiles a network."""


def is_whole(problem: Problem, network: Network | None) -> bool:
    """Return whether a problem is the whole network on PyTorch's operators."""
    return network is not None and network.whole is not None and problem == network.whole.layers[0].problem


def is_tried_beside(problem: Problem, row: KernelRow, network: Network | None, options: TunerOptions) -> bool:
    """Return whether a candidate of PyTorch is tried beside the search: one that takes seconds of the host.

    On a CPU, compilers would take the cores on which the search times.
    """
    return options.arch.is_cuda and (row.family == inductor.FAMILY or is_whole(problem, network))


class BackgroundPool:
    """The trials beside some searches; a context manager whose exit ends them.

    Args:
        store: The database.
        options: Limits and choices of the run.
        worker: The measuring process of the searches, whose settings those of the trials have.
        searches: The networks and their problems, in the order in which they are searched; None for single problems.
    """

    def __init__(
        self,
        store: Store,
        options: TunerOptions,
        worker: Worker,
        searches: Iterable[tuple[Network | None, Iterable[Problem]]],
    ) -> None:
        self._store, self._options, self._worker, self._searches = store, options, worker, list(searches)
        self._processes = ExitStack()
        self._trials: dict[str, BackgroundTrials] = {}
        self._started = False

    def __enter__(self) -> BackgroundPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def trials(self, network: Network | None, device: Device, progress: Progress) -> BackgroundTrials | None:
        """Return the trials of a network, or of single problems; None if there are none. The first call starts all.

        Args:
            network: The network.
            device: The device of all trials.
            progress: Receives the events of the network's trials from now on.
        """
        if not self._started:
            self._started = True
            for each, problems in self._searches:
                self._start(each, problems, device)
        found = self._trials.get(_key(network))
        if found:
            found.watch(progress)
        return found

    def advance(self) -> None:
        """Record the trials of all networks that have ended and send more, without waiting.

        Raises:
            OutOfTimeError: The run is over.
        """
        for trials in self._trials.values():
            trials.advance()

    def _start(self, network: Network | None, problems: Iterable[Problem], device: Device) -> None:
        options, torch_version = self._options, device.details["torch"]
        ordered = sorted(dict.fromkeys(problems), key=lambda problem: not is_whole(problem, network))
        work = [
            (problem, row)
            for problem in ordered
            for row in operator_rows(self._store, problem, options.target, torch_version, options.inductor)
            if is_tried_beside(problem, row, network, options)
        ]
        if not work:
            return
        for problem, _ in work:
            self._store.put_problem(str(problem))
        worker, compilers = self._worker, max(1, min(MAX_COMPILERS, options.jobs // 4))
        process = Worker(worker.device, worker.deadline, worker.timing, worker.until, compilers)
        self._trials[_key(network)] = self._processes.enter_context(
            BackgroundTrials(self._store, device, process, work)
        )


def _key(network: Network | None) -> str:
    return network.key if network else ""
