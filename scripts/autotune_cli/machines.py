"""The compilers and the devices of a tuning run: those of this machine, or those of a cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from autotune.codegen import BuildBatch, StartBatch
from autotune.core import Architecture, AutotuneError, Deadline, DeviceKind, architecture, of_capability
from autotune.measure import ChildProcess, StartChild, Timing, Worker
from autotune.tuner import Bench
from autotune_cli.command_line import Group, gpu_numbers, require_gpus

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
        bench: What is compiled for and measured on.
        devices: The devices; none if no device runs the kernels.
    """

    bench: Bench
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


def add_machines(group: Group) -> None:
    """Add --devices and --cluster."""
    group.add_argument(
        "--devices",
        type=gpu_numbers,
        metavar="N,...",
        help="the GPUs that measure, by their numbers; GPUs of one kind share the problems (default 0)",
    )
    group.add_argument(
        "--cluster",
        metavar="ADDRESS|FILE",
        help="a scheduler of Dask, such as tcp://host:8786, or its scheduler file: workers with the resource compile "
        "compile, and those with the resource measure measure (docs/guide/several-machines.md)",
    )


@contextmanager
def machines(args: argparse.Namespace) -> Iterator[Machines]:
    """Find the compilers and devices that the arguments name; the exit leaves the cluster.

    Args:
        args: The arguments, with those of `add_machines`, --arch and --jobs.

    Raises:
        AutotuneError: A device does not exist, or the cluster cannot be used.
    """
    if not args.cluster:
        groups, cores = cores_apart(_groups(args.arch, _here(args.devices)), sorted(os.sched_getaffinity(0)))
        yield Machines(groups, args.jobs, partial(BuildBatch, cores=cores))
        return
    from autotune.cluster import connected

    with connected(args.cluster) as cluster:
        kinds = cluster.devices()
        if kinds and args.devices:
            raise AutotuneError("--devices and --cluster exclude each other: workers of the cluster measure")
        devices = [_remote(kind, cluster.child(place)) for place, kind in enumerate(kinds)] or _here(args.devices)
        groups = _groups(args.arch, devices)
        for group in groups:
            cluster.require_versions(group.bench.target)
        start_batch = cluster.start_batch if cluster.compilers else BuildBatch
        yield Machines(groups, cluster.compilers or args.jobs, start_batch, are_here=not kinds)


def _groups(arch: str, devices: Sequence[MeasuringDevice]) -> list[DeviceGroup]:
    """Return the devices by kind, each with the architecture that the user chose, or its own."""
    same: dict[DeviceKind, list[MeasuringDevice]] = {}
    for device in devices:
        same.setdefault(device.kind, []).append(device)
    groups = []
    for kind, found in same.items():
        bench = Bench.of(_arch(arch, kind), kind, found[0].name)
        devices = found if bench.device else []
        if bench.device == "cpu" and found[0].child is ChildProcess:
            devices = [replace(found[0], name="cpu")]  # the CPU of this machine, however many GPUs it has
        groups.append(DeviceGroup(bench, devices))
    return groups


def _arch(name: str, kind: DeviceKind) -> Architecture:
    if name != "auto":
        return architecture(name)
    return of_capability(kind.capability) if kind.capability else architecture("cpu")


def _here(numbers: Sequence[int] | None) -> list[MeasuringDevice]:
    """Return the devices of this machine with these numbers; the first GPU, or the CPU, where none are given."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require_gpus(numbers or (), count)
    names = [f"cuda:{number}" for number in numbers or range(min(1, count))] or ["cpu"]
    return [MeasuringDevice(DeviceKind.of(torch.device(name)), name) for name in names]


def cores_apart(groups: Sequence[DeviceGroup], cores: Sequence[int]) -> tuple[Sequence[DeviceGroup], Sequence[int]]:
    """Give the measuring process of each GPU a core of its own; return the cores that are left for compilers, too.

    A CPU that measures uses all cores, and few cores are not divided.
    """
    count = sum(len(group.devices) for group in groups)
    if not (groups[0].bench.arch.is_cuda and count) or len(cores) < MIN_CORES * count:
        return groups, cores
    own = iter(cores[-count:])
    apart = [
        replace(group, devices=[replace(device, cores=(next(own),)) for device in group.devices]) for group in groups
    ]
    return apart, cores[:-count]


def _remote(kind: DeviceKind, child: StartChild) -> MeasuringDevice:
    return MeasuringDevice(kind, "cuda:0" if kind.capability else "cpu", child)  # each worker sees one GPU
