"""The machines of a tuning run: its architecture, its devices, its compilers, and the threads that wait for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any

import torch

from autotune.codegen import POLL_SECONDS, BuildBatch, StartBatch
from autotune.core import (
    Architecture,
    Deadline,
    DeviceFacts,
    DeviceKind,
    LibraryError,
    architecture,
    cpu_targets,
    device_arch,
    of_capability,
)
from autotune.libraries import inductor
from autotune.measure import ChildProcess, StartChild, Timing, Worker

INDUCTOR_MODES = {
    "off": (),
    inductor.DEFAULT: (inductor.DEFAULT,),
    inductor.MAX_AUTOTUNE: (inductor.DEFAULT, inductor.MAX_AUTOTUNE),
}
"""Choice of the user -> the modes in which Inductor compiles."""
GPU_SECONDS, CPU_SECONDS = 360.0, 90.0
"""Seconds of a run for one batch size on a GPU and on a CPU, where the user gives none."""
UNTIMED_TRIALS = 6
"""Configs to compile for a problem where nothing can be timed."""


@dataclass(frozen=True)
class TuningTarget:
    """The architecture that kernels are compiled for, and the device that times them.

    Attributes:
        arch: The architecture.
        target: The compilation target, such as "sm_90".
        device: The device as its measuring process names it, such as "cuda:0"; None if there is none that runs the
            kernels.
        name: Name of the device in databases; None without a device.
    """

    arch: Architecture
    target: str
    device: str | None
    name: str | None

    @classmethod
    def of(cls, arch: Architecture, kind: DeviceKind | None, device: str = "cuda:0") -> TuningTarget:
        """Return the target for an architecture.

        Args:
            arch: The architecture.
            kind: The GPU, or a CPU; None if there is no GPU.
            device: The GPU as its measuring process names it.
        """
        if not arch.is_cuda:
            kind = kind if kind and kind.capability is None else DeviceKind.of(torch.device("cpu"))
            return cls(arch, cpu_targets()[0], "cpu", kind.name)
        if kind is None or (kind.capability or 0) < (arch.capability or 0):
            return cls(arch, f"sm_{arch.capability}", None, None)
        return cls(device_arch(arch, kind), f"sm_{kind.capability}", device, kind.name)

    @classmethod
    def of_device(cls, device: torch.device) -> TuningTarget:
        """Return the target for the newest architecture that a device of this machine runs."""
        kind = DeviceKind.of(device)
        if kind.capability is None:
            return cls.of(architecture("cpu"), kind)
        return cls.of(of_capability(kind.capability), kind, str(torch.empty(0, device=device).device))  # with its index

    @property
    def trials(self) -> int:
        """Number of configs to try for a problem, where the user gives none."""
        if not self.arch.is_cuda:
            return 32
        return 160 if self.device else UNTIMED_TRIALS

    @property
    def budget(self) -> float:
        """Seconds of a run for one batch size, where the user gives none."""
        return GPU_SECONDS if self.arch.is_cuda else CPU_SECONDS


def inductor_modes(device: str | None, chosen: str | None = None, is_here: bool = True) -> tuple[str, ...]:
    """Return the modes of Inductor to try.

    Args:
        device: The device that times; None if nothing is timed.
        chosen: A key of INDUCTOR_MODES; None for "default", unless the environment variable switches Inductor off.
        is_here: Whether the device is this machine's; if not, it is not known whether Inductor can compile there, and
            an attempt that fails is a failed trial.

    Raises:
        LibraryError: A mode was chosen, and Inductor cannot compile here.
    """
    mode = chosen or (inductor.DEFAULT if inductor.is_wanted() else "off")
    reason = None if device else "nothing is timed"
    if device and is_here:
        reason = inductor.why_unavailable(torch.device(device))
    if reason and chosen and chosen != "off":
        raise LibraryError(f"--inductor {chosen}: {reason}; give --inductor off")
    return () if reason else INDUCTOR_MODES[mode]


MIN_CORES = 8
"""Cores for each GPU from which on its measuring process gets one that compilers do not use."""


@dataclass(frozen=True)
class MeasuringDevice:
    """A device that may measure: its kind, how it is named and reached, and the cores of its measuring process."""

    kind: DeviceKind
    name: str
    child: StartChild = ChildProcess
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class DeviceGroup:
    """Devices of one kind.

    Attributes:
        target: What is compiled for and measured on.
        devices: The devices; none if no device runs the kernels.
    """

    target: TuningTarget
    devices: Sequence[MeasuringDevice]

    def workers(self, timing: Timing, until: Deadline) -> list[Worker]:
        """Return the measuring processes of the devices, which have not started."""
        return [
            Worker(device.name, timing=timing, until=until, child=device.child, cores=device.cores)
            for device in self.devices
        ]


@dataclass(frozen=True)
class Machines:
    """The compilers and the devices of a run.

    Attributes:
        groups: The devices by kind; at least one.
        jobs: Compilers that run at a time.
        start_batch: Starts them.
        are_here: Whether the devices are this machine's.
    """

    groups: Sequence[DeviceGroup]
    jobs: int
    start_batch: StartBatch = BuildBatch
    are_here: bool = True

    @classmethod
    def of_this(cls, arch: str, devices: Sequence[str], jobs: int | None = None) -> Machines:
        """Return this machine.

        Args:
            arch: Name of an architecture, or "auto" for that of each device.
            devices: The devices that measure, such as "cuda:0" or "cpu".
            jobs: Compilers that run at a time; all cores by default.
        """
        cores = sorted(os.sched_getaffinity(0))
        groups, left = cores_apart(device_groups(arch, local_devices(devices)), cores)
        return cls(groups, jobs or len(cores), partial(BuildBatch, cores=left))


def local_devices(names: Sequence[str]) -> list[MeasuringDevice]:
    """Return devices of this machine by their names."""
    return [MeasuringDevice(DeviceKind.of(torch.device(name)), name) for name in names]


def device_groups(arch: str, devices: Sequence[MeasuringDevice]) -> list[DeviceGroup]:
    """Return the devices by kind, each with the architecture that the user chose, or its own."""
    same: dict[DeviceKind, list[MeasuringDevice]] = {}
    for device in devices:
        same.setdefault(device.kind, []).append(device)
    groups = []
    for kind, found in same.items():
        target = TuningTarget.of(_arch(arch, kind), kind, found[0].name)
        devices = found if target.device else []
        if target.device == "cpu" and found[0].child is ChildProcess:
            devices = [replace(found[0], name="cpu")]  # the CPU of this machine, however many GPUs it has
        groups.append(DeviceGroup(target, devices))
    return groups


def _arch(name: str, kind: DeviceKind) -> Architecture:
    if name != "auto":
        return architecture(name)
    return of_capability(kind.capability) if kind.capability else architecture("cpu")


def cores_apart(groups: Sequence[DeviceGroup], cores: Sequence[int]) -> tuple[Sequence[DeviceGroup], Sequence[int]]:
    """Give the measuring process of each GPU a core of its own; return the cores that are left for compilers, too.

    A CPU that measures uses all cores, and few cores are not divided.
    """
    count = sum(len(group.devices) for group in groups)
    if not (groups[0].target.arch.is_cuda and count) or len(cores) < MIN_CORES * count:
        return groups, cores
    own = iter(cores[-count:])
    apart = [
        replace(group, devices=[replace(device, cores=(next(own),)) for device in group.devices]) for group in groups
    ]
    return apart, cores[:-count]


@contextmanager
def in_thread(work: Callable[[Event], None]) -> Iterator[Future[None]]:
    """Do some work in a thread; the exit waits for its end and raises its error.

    Args:
        work: Takes an event, and ends soon after that is set: the body has raised, for example by Ctrl-C.
    """
    stop = Event()
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(work, stop)
        try:
            yield done
        except BaseException:
            stop.set()
            raise
        done.result()


@contextmanager
def start_in_background(workers: Sequence[Worker]) -> Iterator[None]:
    """Start measuring processes in threads and kill them on exit. A request waits until its process has started."""
    executor = ThreadPoolExecutor(max(1, len(workers)))
    started = [executor.submit(worker.start) for worker in workers]
    try:
        yield
    finally:
        stop_until_done(executor, started, workers)


@contextmanager
def facts_in_background(workers: Sequence[Worker]) -> Iterator[list[Future[DeviceFacts]]]:
    """Start measuring processes and measure their devices in threads.

    The exit does not wait for either: an interrupted run would last until the processes have started.
    """
    executor = ThreadPoolExecutor(len(workers))
    facts = [executor.submit(worker.facts) for worker in workers]
    try:
        yield facts
    finally:
        stop_until_done(executor, facts, workers)


def stop_until_done(executor: ThreadPoolExecutor, futures: Iterable[Future[Any]], workers: Iterable[Worker]) -> None:
    """Kill measuring processes until no thread waits for them any more.

    Args:
        executor: The threads; it takes no more work.
        futures: What the threads do.
        workers: The processes, which are killed again and again: one may be between two steps of its start.
    """
    futures, workers = list(futures), list(workers)
    executor.shutdown(wait=False, cancel_futures=True)
    while not all(future.done() for future in futures):
        for worker in workers:
            worker.stop()
        time.sleep(POLL_SECONDS)
