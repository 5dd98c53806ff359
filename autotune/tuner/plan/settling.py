"""Settling: the choice of kernels inside whole networks, of which several share the devices of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from autotune.codegen import POLL_SECONDS
from autotune.core import Deadline, OutOfTimeError
from autotune.ir import Network
from autotune.measure import Worker
from autotune.tuner.machines import stop_until_done
from autotune.tuner.plan.copied_plans import CopiedPlan
from autotune.tuner.plan.network_tuner import COMPARISON_SECONDS, COMPARISON_SHARE, Rivals, tune_network_plan
from autotune.tuner.run_context import RunContext
from autotune.tuner.time_shares import SETTLING
from autotune.tuner.trials import WantedTrial, is_tried_last, record_unfinished
from tuning_db import Store

COMPILING_SHARE = 0.2
"""Share of settling's time in which it waits for what Inductor still compiles."""


class Settling:
    """Tunes the plans of networks.

    On a GPU a plan is searched inside its CUDA graph. On a CPU, where what runs before a kernel matters little, the
    layers' winners are compared with torch's operators for the whole network.

    Args:
        run: The run.
        copied: The plans that the networks begin with, by the keys of the networks.
    """

    def __init__(self, run: RunContext, copied: Mapping[str, CopiedPlan]) -> None:
        self._run, self._copied, self._workers = run, copied, run.queues.workers
        self._store, self._beside, self._breakdown, self._progress = run.store, run.beside, run.breakdown, run.progress
        self._descends = run.options.arch.is_cuda

    def run(self) -> None:
        """Tune the plan of each network.

        On one device they share the time, in the order in which Inductor has compiled them. On several devices each
        device has its networks.

        Raises:
            OutOfTimeError: The run is over.
        """
        networks, until = self._run.planned, self._run.phases.begin(SETTLING)
        if len(self._workers) == 1 or len(networks) == 1:
            self._one_by_one(self._workers[0], networks, until)
        else:
            self._at_once(networks, until)

    def _one_by_one(self, worker: Worker, networks: Sequence[Network], until: Deadline) -> None:
        left = list(networks)
        while left:
            part = until.share(1 / len(left))
            network = self._first_compiled(left, part.share(COMPILING_SHARE)) if len(left) > 1 else left[0]
            left.remove(network)
            self._tell(network, len(networks))
            rivals = partial(self._rivals, network, worker, part)
            with self._breakdown.charge("time"):
                self._tune(self._store, worker, network, part, rivals)
            if self._try_last(network):
                with self._breakdown.charge("time"):
                    self._tune(self._store, worker, network, part, lambda: Rivals(worker))

    def _try_last(self, network: Network) -> bool:
        """Try what is tried when the plan of a network is known; return whether there was anything."""
        run = self._run
        if network.whole is None:
            return False
        problem = network.whole.layers[0].problem
        rows = [row for row in run.operator_rows(problem) if is_tried_last(problem, row, [network], run.options)]
        if rows:
            run.progress.stage("compiling the network by Inductor")
        for row in rows:
            wanted = WantedTrial(problem, row, again=True)
            try:
                run.queues.submit(wanted)
                run.queues.drain()
            except OutOfTimeError:
                record_unfinished(run.store, run.device, wanted, run.workers[0].until)
                raise
        return bool(rows)

    def _at_once(self, networks: Sequence[Network], until: Deadline) -> None:
        """Tune several plans at a time: a thread for each device, with a connection of its own to the database."""
        started = time.perf_counter()
        shares = [networks[place :: len(self._workers)] for place in range(len(self._workers))]
        executor, running = ThreadPoolExecutor(len(self._workers)), list[Future[None]]()
        try:
            for worker, share in zip(self._workers, shares, strict=True):
                beside: list[Rivals] = []
                for network in share:
                    self._tell(network, len(networks))
                    beside.append(self._rivals(network, worker, until.share(COMPILING_SHARE / len(networks))))
                running.append(executor.submit(self._in_order, worker, share, beside, until))
            for future in futures.as_completed(running):
                future.result()
        finally:
            unfinished = not all(future.done() for future in running)
            stop_until_done(executor, running, self._workers if unfinished else [])
            self._breakdown.add({"time": time.perf_counter() - started})

    def _in_order(self, worker: Worker, networks: Sequence[Network], rivals: Sequence[Rivals], until: Deadline) -> None:
        """Tune the plans of the networks of one device, which share the time."""
        with Store.create(self._store.where) as store:
            for i, network in enumerate(networks):
                self._tune(store, worker, network, until.share(1 / (len(networks) - i)), partial(rivals.__getitem__, i))

    def _tune(
        self, store: Store, worker: Worker, network: Network, until: Deadline, rivals: Callable[[], Rivals]
    ) -> None:
        tune_network_plan(
            store,
            self._run.device,
            worker,
            network,
            until,
            self._descends,
            self._progress.note,
            rivals,
            self._copied.get(network.key),
        )

    def _tell(self, network: Network, count: int) -> None:
        which = "the network" if count == 1 else f"the network at batch {network.batch}"
        self._progress.stage(f"settling: tuning the plan of {which}")

    def _is_compiling(self, network: Network) -> bool:
        """Return whether trials of a network beside the search have not ended."""
        beside = self._beside.trials(network)
        if beside:
            beside.advance()
        return bool(beside and not beside.is_done)

    def _first_compiled(self, networks: Sequence[Network], until: Deadline) -> Network:
        """Return the network that Inductor has compiled first; at a deadline the first one if it has compiled none."""
        waiting = False
        while all(self._is_compiling(network) for network in networks) and not until.is_over:
            if not waiting:
                self._progress.stage("waiting for Inductor")
            waiting = True
            time.sleep(POLL_SECONDS)
        return next((network for network in networks if not self._is_compiling(network)), networks[0])

    def _rivals(self, network: Network, worker: Worker, until: Deadline) -> Rivals:
        """Return the process that compares the plan of a network with torch's operators for the whole of it.

        That is the one that compiles them, if its trials end in time. If not, it is ended, and what it still compiles
        is lost.
        """
        beside = self._beside.trials(network)
        if beside is None:
            return Rivals(worker, has_compiled=not self._descends)
        if network.whole and self._is_compiling(network):
            self._progress.stage("waiting for Inductor")
            beside.wait(until.before(min(COMPARISON_SECONDS, COMPARISON_SHARE * until.left)))
        if beside.is_done and beside.num_tried:
            return Rivals(beside.worker)
        beside.close()
        return Rivals(worker, has_compiled=False)
