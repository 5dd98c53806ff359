"""A cluster of Dask: its workers compile and measure for a tuning run.

A worker that compiles has the resource "compile", the number of compilers that it runs at once. A worker that measures
has the resource "measure", and sees one GPU or none. Dask starts workers, finds them, moves messages and notices
workers that die.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from autotune.cluster.compile_service import compile_unit
from autotune.cluster.messages import CompileRequest, Versions, versions
from autotune.cluster.relay import Relay, device_kind
from autotune.cluster.remote_batch import LATE_SECONDS, Pending, RemoteBatch
from autotune.cluster.remote_child import RemoteChild
from autotune.codegen import Batch, Unit
from autotune.core import DeviceKind, LibraryError, WorkerError
from autotune.core.errors import Fault, record_fault

COMPILE, MEASURE = "compile", "measure"
"""Resources of workers."""
CONNECT_SECONDS = 30.0
"""Time limit for connecting to the scheduler, and for a worker that measures to appear."""
_POLL_SECONDS = 0.2


class DaskCluster:
    """The workers of a Dask scheduler. `connected` opens and closes it.

    Args:
        place: Address of the scheduler, such as "tcp://host:8786", or the path of its scheduler file.
        late_seconds: Time after which a unit is also given to another worker.
    """

    def __init__(self, place: str, late_seconds: float = LATE_SECONDS) -> None:
        self._place, self._late_seconds = place, late_seconds
        self._lock = Lock()
        # Place of a device -> its worker, the relay, and the future that keeps it alive.
        self._relays: dict[int, tuple[str, Any, object]] = {}
        self._silent: set[str] = set()  # workers that the scheduler has not missed yet
        self._known: dict[str, dict[str, float]] = {}  # resources of the workers that were there at the last look
        self._client = self._connect()

    def close(self) -> None:
        """Leave the cluster; its workers drop what this run has given to them."""
        with suppress(Exception):  # the scheduler may have gone
            self._resources()  # which notices the workers that were lost at last
        self._relays.clear()
        self._client.close(timeout=2)

    @property
    def compilers(self) -> int:
        """Number of compilers of all workers."""
        return int(sum(resources.get(COMPILE, 0) for resources in self._resources().values()))

    def devices(self) -> list[DeviceKind]:
        """Return the devices of the workers that measure, in the order of their addresses; there may be none."""
        hosts = self._hosts()
        found = self._run(device_kind, hosts) if hosts else {}
        return [found[host] for host in hosts]

    def require_versions(self, target: str) -> None:
        """Raise WorkerError if a worker has other versions than this process.

        Args:
            target: The compilation target of the run.
        """
        ours = versions(target)
        found: dict[str, Versions] = self._run(versions, None, target)
        for address, theirs in sorted(found.items()):
            for name, (mine, other) in ours.differences(theirs).items():
                raise WorkerError(
                    f"the worker at {address} has {name} {other}, and this process {mine}: install the same on both"
                )

    def start_batch(self, units: Sequence[Unit], _jobs: int) -> Batch:
        """Start to compile units on the workers, which limit how many they compile at once."""
        return RemoteBatch(units, self._submit, self._late_seconds)

    def child(self, place: int) -> Callable[[str, Sequence[str]], RemoteChild]:
        """Return what starts measuring processes on a device.

        Args:
            place: Number of the device. If its worker is lost, another worker takes its place.
        """
        return lambda module, arguments: RemoteChild(_Host(self, place), module, arguments)

    def relay(self, place: int) -> Any:
        """Return the relay of a device; if its worker is lost, one on another worker.

        Raises:
            WorkerError: There is no worker that measures.
        """
        until = time.monotonic() + CONNECT_SECONDS
        while True:
            hosts = [host for host in self._hosts() if host not in self._silent]
            known = self._relays.get(place)
            if known and known[0] in hosts:
                return known[1]
            taken = [host for number, (host, *_) in self._relays.items() if number != place]
            if hosts:
                host = min(hosts, key=lambda host: (taken.count(host), (hosts.index(host) - place) % len(hosts)))
                key = f"autotune-relay-{uuid.uuid4().hex}"
                future = self._connection().submit(Relay, actor=True, workers=[host], key=key)
                with suppress(TimeoutError):  # the worker may have gone at this moment
                    self._relays[place] = host, future.result(timeout=CONNECT_SECONDS), future
                    return self._relays[place][1]
            if time.monotonic() > until:
                raise WorkerError(f"the cluster at {self._place} has no worker that measures any more")
            time.sleep(_POLL_SECONDS)

    def has_worker(self, place: int) -> bool:
        """Return whether the worker of a device is in the cluster."""
        known = self._relays.get(place)
        return known is not None and known[0] in self._hosts()

    def lose(self, place: int) -> None:
        """Give up the worker of a device, which does not answer."""
        if known := self._relays.pop(place, None):
            self._silent.add(known[0])
            with suppress(WorkerError):  # the scheduler may have gone, too
                record_fault(Fault.MEASURE_WORKER_SILENT, known[0] in self._resources())

    # -- helpers ---------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        try:
            from distributed import Client
        except ImportError as error:
            raise LibraryError("--cluster needs Dask: run pip install 'autotune-cutlass[cluster]'") from error
        is_address = "://" in self._place
        if not is_address and not Path(self._place).exists():  # Dask would wait for the file for ever
            raise WorkerError(f"no Dask scheduler answers at {self._place}: there is no such file")
        where = {"address": self._place} if is_address else {"scheduler_file": self._place}
        try:
            return Client(**where, timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, TypeError) as error:  # TypeError: a certificate is missing
            raise WorkerError(f"no Dask scheduler answers at {self._place}: {str(error).strip()}") from error

    def _connection(self) -> Any:
        """Return a client that is connected: a scheduler that was started again is connected to anew."""
        with self._lock:
            if self._client.status not in ("running", "connecting"):
                record_fault(Fault.SCHEDULER_LOST)
                self._relays.clear()
                self._known.clear()
                self._client = self._connect()
            return self._client

    def _run(self, function: Callable[..., Any], workers: Sequence[str] | None, *arguments: object) -> dict[str, Any]:
        """Call a function of this project on workers, all by default; return the results by their addresses.

        Raises:
            WorkerError: A worker does not have this project, or the call fails there.
        """
        try:
            results: dict[str, Any] = self._connection().run(function, *arguments, workers=workers)
        except WorkerError:
            raise
        except Exception as error:  # the worker's error
            raise WorkerError(
                f"a worker of the cluster at {self._place} cannot run this project's code, {type(error).__name__}: "
                f"{str(error).strip()[:200]}; install 'autotune-cutlass[cluster]' on all machines"
            ) from error
        return results

    def _resources(self) -> dict[str, dict[str, float]]:
        """Return the resources of each worker by its address, and record the workers that were lost since."""
        workers = self._connection().scheduler_info(n_workers=-1)["workers"]
        found = {address: worker.get("resources", {}) for address, worker in sorted(workers.items())}
        with self._lock:
            lost = [resources for address, resources in self._known.items() if address not in found]
            self._known = found
        for resources in lost:
            for resource, fault in ((COMPILE, Fault.COMPILE_WORKER_LOST), (MEASURE, Fault.MEASURE_WORKER_LOST)):
                record_fault(fault, bool(resources.get(resource)))
        return found

    def _hosts(self) -> list[str]:
        return [address for address, resources in self._resources().items() if resources.get(MEASURE)]

    def _submit(self, request: CompileRequest, tries: int) -> Pending:
        client = self._connection()
        key = f"autotune-compile-{request.key}-{tries}-{uuid.uuid4().hex[:8]}"
        others = None
        if tries:  # not where it was tried before, if there is another place
            before = {address for address, keys in client.processing().items() if any(request.key in k for k in keys)}
            compiling = [address for address, resources in self._resources().items() if resources.get(COMPILE)]
            others = [address for address in compiling if address not in before] or None
        found: Pending = client.submit(
            compile_unit, request, key=key, resources={COMPILE: 1}, workers=others, pure=False, retries=0
        )
        return found


@dataclass(frozen=True)
class _Host:
    """The worker of a device; implements remote_child.Host."""

    cluster: DaskCluster
    place: int

    def relay(self) -> Any:
        return self.cluster.relay(self.place)

    def is_alive(self) -> bool:
        return self.cluster.has_worker(self.place)

    def lose(self) -> None:
        self.cluster.lose(self.place)


@contextmanager
def connected(place: str) -> Iterator[DaskCluster]:
    """Connect to a cluster, and leave it at the exit; raises LibraryError and WorkerError."""
    cluster = DaskCluster(place)
    try:
        yield cluster
    finally:
        cluster.close()
