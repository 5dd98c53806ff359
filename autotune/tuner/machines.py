"""The devices and the compilers of a tuning run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from autotune.codegen import BuildBatch, StartBatch
from autotune.core import Architecture, Deadline, DeviceKind, architecture, of_capability
from autotune.measure import ChildProcess, StartChild, Timing, Worker
from autotune.tuner.target import TuningTarget

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
