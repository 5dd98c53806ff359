"""The compilers and the devices of a tuning run: those of this machine, or those of a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from autotune.codegen import BuildBatch
from autotune.core import AutotuneError, DeviceKind
from autotune.measure import StartChild
from autotune.tuner import Machines, MeasuringDevice, device_groups, local_devices
from autotune_cli.command_line import require_gpus


@contextmanager
def machines(args: argparse.Namespace) -> Iterator[Machines]:
    """Find the compilers and devices that the arguments name; the exit leaves the cluster.

    Args:
        args: The arguments, with those of `add_machines`, --arch and --jobs.

    Raises:
        AutotuneError: A device does not exist, or the cluster cannot be used.
    """
    if not args.cluster:
        yield Machines.of_this(args.arch, _here(args.devices), args.jobs)
        return
    from autotune.cluster import connected

    with connected(args.cluster) as cluster:
        kinds = cluster.devices()
        if kinds and args.devices:
            raise AutotuneError("--devices and --cluster exclude each other: workers of the cluster measure")
        devices = [_remote(kind, cluster.child(place)) for place, kind in enumerate(kinds)]
        groups = device_groups(args.arch, devices or local_devices(_here(args.devices)))
        for group in groups:
            cluster.require_versions(group.target.target)
        start_batch = cluster.start_batch if cluster.compilers else BuildBatch
        yield Machines(groups, cluster.compilers or args.jobs, start_batch, are_here=not kinds)


def _remote(kind: DeviceKind, child: StartChild) -> MeasuringDevice:
    return MeasuringDevice(kind, "cuda:0" if kind.capability else "cpu", child)  # each worker sees one GPU


def _here(numbers: Sequence[int] | None) -> list[str]:
    """Return the GPUs with these numbers; the first GPU, or the CPU, where none are given."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require_gpus(numbers or (), count)
    return [f"cuda:{number}" for number in numbers or range(min(1, count))] or ["cpu"]
