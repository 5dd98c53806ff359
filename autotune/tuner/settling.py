"""Settling: the choice of kernels inside whole networks, of which several share the devices of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from autotune.codegen import POLL_SECONDS
from autotune.core import Deadline
from autotune.ir import Network
from autotune.measure import Worker
from autotune.tuner.background_pool import BackgroundPool
from autotune.tuner.copied_plans import CopiedPlan
from autotune.tuner.network_tuner import COMPARISON_SECONDS, COMPARISON_SHARE, Rivals, tune_network_plan
from autotune.tuner.progress import Progress
from autotune.tuner.threads import stop_until_done
from autotune.tuner.time_breakdown import TimeBreakdown
from tuning_db import Store
from tuning_db.schema import Device

COMPILING_SHARE = 0.2
"""Share of settling's time in which it waits for what Inductor still compiles."""


@dataclass(frozen=True)
class Settling:
    """Tunes the plans of networks.

    Attributes:
        store: The database.
        device: The database's row of the devices.
        descends: Whether plans are searched, on a GPU inside its CUDA graph. On a CPU, where what runs before a kernel
            matters little, the layers' winners are compared with torch's operators for the whole network.
        workers: The measuring processes, one for each device.
        beside: The trials beside the search.
        breakdown: Receives the times.
        progress: Receives events.
        copied_plans: Plans of other databases or batch sizes, by the keys of the networks.
        try_last: Tries what is tried when the plan of a network is known; returns whether there was anything.
    """

    store: Store
    device: Device
    descends: bool
    workers: Sequence[Worker]
    beside: BackgroundPool
    breakdown: TimeBreakdown
    progress: Progress
    copied_plans: Mapping[str, CopiedPlan]
    try_last: Callable[[Network], bool]

    def run(self, networks: Sequence[Network], until: Deadline) -> None:
        """Tune the plan of each network.

        On one device they share the time, in the order in which Inductor has compiled them. On several devices each
        device has its networks.

        Raises:
            OutOfTimeError: The run is over.
        """
        if len(self.workers) == 1 or len(networks) == 1:
            self._one_by_one(self.workers[0], networks, until)
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
            with self.breakdown.charge("time"):
                self._tune(self.store, worker, network, part, rivals)
            if self.try_last(network):
                with self.breakdown.charge("time"):
                    self._tune(self.store, worker, network, part, lambda: Rivals(worker))

    def _at_once(self, networks: Sequence[Network], until: Deadline) -> None:
        """Tune several plans at a time: a thread for each device, with a connection of its own to the database."""
        started = time.perf_counter()
        shares = [networks[place :: len(self.workers)] for place in range(len(self.workers))]
        executor, running = ThreadPoolExecutor(len(self.workers)), list[Future[None]]()
        try:
            for worker, share in zip(self.workers, shares, strict=True):
                beside: list[Rivals] = []
                for network in share:
                    self._tell(network, len(networks))
                    beside.append(self._rivals(network, worker, until.share(COMPILING_SHARE / len(networks))))
                running.append(executor.submit(self._in_order, worker, share, beside, until))
            for future in futures.as_completed(running):
                future.result()
        finally:
            unfinished = not all(future.done() for future in running)
            stop_until_done(executor, running, self.workers if unfinished else [])
            self.breakdown.add({"time": time.perf_counter() - started})

    def _in_order(self, worker: Worker, networks: Sequence[Network], rivals: Sequence[Rivals], until: Deadline) -> None:
        """Tune the plans of the networks of one device, which share the time."""
        with Store.create(self.store.where) as store:
            for i, network in enumerate(networks):
                self._tune(store, worker, network, until.share(1 / (len(networks) - i)), partial(rivals.__getitem__, i))

    def _tune(
        self, store: Store, worker: Worker, network: Network, until: Deadline, rivals: Callable[[], Rivals]
    ) -> None:
        tune_network_plan(
            store,
            self.device,
            worker,
            network,
            until,
            self.descends,
            self.progress.note,
            rivals,
            self.copied_plans.get(network.key),
        )

    def _tell(self, network: Network, count: int) -> None:
        which = "the network" if count == 1 else f"the network at batch {network.batch}"
        self.progress.stage(f"settling: tuning the plan of {which}")

    def _is_compiling(self, network: Network) -> bool:
        """Return whether trials of a network beside the search have not ended."""
        beside = self.beside.trials(network)
        if beside:
            beside.advance()
        return bool(beside and not beside.is_done)

    def _first_compiled(self, networks: Sequence[Network], until: Deadline) -> Network:
        """Return the network that Inductor has compiled first; at a deadline the first one if it has compiled none."""
        waiting = False
        while all(self._is_compiling(network) for network in networks) and not until.is_over:
            if not waiting:
                self.progress.stage("waiting for Inductor")
            waiting = True
            time.sleep(POLL_SECONDS)
        return next((network for network in networks if not self._is_compiling(network)), networks[0])

    def _rivals(self, network: Network, worker: Worker, until: Deadline) -> Rivals:
        """Return the process that compares the plan of a network with torch's operators for the whole of it.

        That is the one that compiles them, if its trials end in time. If not, it is ended, and what it still compiles
        is lost.
        """
        beside = self.beside.trials(network)
        if beside is None:
            return Rivals(worker, has_compiled=not self.descends)
        if network.whole and self._is_compiling(network):
            self.progress.stage("waiting for Inductor")
            beside.wait(until.before(min(COMPARISON_SECONDS, COMPARISON_SHARE * until.left)))
        if beside.is_done and beside.num_tried:
            return Rivals(beside.worker)
        beside.close()
        return Rivals(worker, has_compiled=False)
