"""The trials beside the search of a run, of which each network has a process of its own.

All trials start with the search, because Inductor may take a minute for a deep network. The networks, such as one model
at several batch sizes, are compiled at the same time, and the compiled code of a network stays loaded until its plan is
tuned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from autotune.core import Deadline, timeline
from autotune.ir import Network, Problem
from autotune.libraries import inductor
from autotune.measure import Worker
from autotune.tuner.progress import Progress
from autotune.tuner.request import TunerOptions
from autotune.tuner.trials.background_trials import BackgroundTrials
from autotune.tuner.trials.device_queues import WantedTrial
from autotune.tuner.trials.library_trials import operator_rows
from tuning_db import Store
from tuning_db.schema import Device, KernelRow

MAX_COMPILERS = 8
"""Processes in which Inductor compiles a network."""
MANY_CORES = 8
"""Cores from which on Inductor has some for itself."""
COMPILERS_SHARE = 0.5
"""Share of the cores that they may take in all networks together; compilers of kernels need cores at the same time."""


def is_whole(problem: Problem, networks: Iterable[Network]) -> bool:
    """Return whether a problem is one of the networks, as a whole, on PyTorch's operators."""
    return any(network.whole is not None and problem == network.whole.layers[0].problem for network in networks)


def is_tried_beside(problem: Problem, row: KernelRow, networks: Iterable[Network], options: TunerOptions) -> bool:
    """Return whether a candidate of PyTorch is tried beside the search: one that takes seconds of the host.

    On a CPU, compilers would take the cores on which the search times.
    """
    return options.arch.is_cuda and (row.family == inductor.FAMILY or is_whole(problem, networks))


def is_tried_last(problem: Problem, row: KernelRow, networks: Iterable[Network], options: TunerOptions) -> bool:
    """Return whether a candidate is tried when the plan of its network is known: Inductor's whole network on a CPU.

    It takes so long to compile that a short run would do nothing else.
    """
    return not options.arch.is_cuda and row.family == inductor.FAMILY and is_whole(problem, networks)


def is_tried_apart(problem: Problem, row: KernelRow, networks: Sequence[Network], options: TunerOptions) -> bool:
    """Return whether a candidate of PyTorch is tried beside the search or last, and not with the other operators."""
    return any(apart(problem, row, networks, options) for apart in (is_tried_beside, is_tried_last))


def workers_beside(workers: Sequence[Worker], networks: Sequence[Network], options: TunerOptions) -> dict[str, Worker]:
    """Return the processes of the trials beside the search by the keys of the networks; "" for single problems.

    They have not started. On a machine with many cores they have cores of their own; see `num_cores`.
    """
    if not options.arch.is_cuda or not (networks or options.inductor):
        return {}
    share = int(COMPILERS_SHARE * options.jobs / max(1, len(networks)))
    compilers = max(1, min(MAX_COMPILERS, share))
    niceness = {"niceness": 0} if num_cores(networks, options) else {}
    return {
        key: workers[place % len(workers)].beside(timeline.Lane.INDUCTOR, compilers, **niceness)
        for place, key in enumerate([network.key for network in networks] or [""])
    }


def num_cores(networks: Sequence[Network], options: TunerOptions) -> int:
    """Return the cores that the compilers of kernels leave to Inductor until it is done; 0 on a machine with few.

    Inductor is the slowest part of a short run: its code of a deep network takes about a minute.
    """
    if not options.inductor or options.jobs < MANY_CORES:
        return 0
    return min(int(COMPILERS_SHARE * options.jobs), MAX_COMPILERS * max(1, len(networks)))


class BackgroundPool:
    """The trials beside a search; a context manager whose exit ends them.

    Args:
        store: The database.
        device: The device of all trials.
        options: Limits and choices of the run.
        workers: The processes of the trials, as `workers_beside` returns them.
        progress: Receives the events of the trials.
        problems: The problems of the search.
        networks: The networks that they belong to; none for single problems.
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        options: TunerOptions,
        workers: Mapping[str, Worker],
        progress: Progress,
        problems: Iterable[Problem],
        networks: Sequence[Network],
    ) -> None:
        self._store, self._device, self._options, self._progress = store, device, options, progress
        self._workers, self._problems, self._networks = workers, list(problems), networks
        self._processes = ExitStack()
        self._trials: dict[str, BackgroundTrials] = {}

    def __enter__(self) -> BackgroundPool:
        for worker in self._workers.values():
            self._processes.callback(worker.stop)
        own = {network.key: {layer.problem for layer in network.all_layers} for network in self._networks}
        for key, worker in self._workers.items():
            self._start(worker, key, [problem for problem in self._problems if problem in own.get(key, [problem])])
        return self

    @property
    def is_done(self) -> bool:
        """Return whether all trials have ended."""
        return all(trials.is_done for trials in self._trials.values())

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def trials(self, network: Network) -> BackgroundTrials | None:
        """Return the trials of a network; None if it has none."""
        return self._trials.get(network.key)

    def advance(self) -> None:
        """Record the trials that have ended and send more, without waiting.

        Raises:
            OutOfTimeError: The run is over.
        """
        for trials in self._trials.values():
            trials.advance()

    def wait(self, until: Deadline) -> None:
        """Wait for the end of all trials, but no longer than until a deadline; raises as `advance` does."""
        for trials in self._trials.values():
            trials.wait(until)

    def _start(self, worker: Worker, key: str, problems: Iterable[Problem]) -> None:
        options, version, networks = self._options, self._device.details["torch"], self._networks
        work = [
            WantedTrial(problem, row, again=is_whole(problem, networks))
            for problem in sorted(problems, key=lambda problem: not is_whole(problem, networks))
            for row in operator_rows(self._store, problem, options.target, version, options.inductor)
            if is_tried_beside(problem, row, networks, options)
        ]
        if not work:
            return
        for wanted in work:
            self._store.put_problem(str(wanted.problem))
        self._trials[key] = self._processes.enter_context(
            BackgroundTrials(self._store, self._device, worker, work, self._progress)
        )
