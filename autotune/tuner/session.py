"""The device and the limits of a tuning run, and the layers that a database lacks.

`autotune tune` and `fused_resnet.tune` both begin here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autotune.core import Architecture, LibraryError, architecture, cpu_targets, device_arch, device_name, of_capability
from autotune.families import serving
from autotune.ir import Network, Problem
from autotune.libraries import inductor
from autotune.measure import BUFFERS, TIMERS, Timing
from tuning_db import DatabaseError, Store

INDUCTOR_MODES = {
    "off": (),
    inductor.DEFAULT: (inductor.DEFAULT,),
    inductor.MAX_AUTOTUNE: (inductor.DEFAULT, inductor.MAX_AUTOTUNE),
}
"""Choice of the user -> the modes in which Inductor compiles."""
UNTIMED_TRIALS = 6
"""Configs to compile for a problem where nothing can be timed."""


@dataclass(frozen=True)
class TuneRequest:
    """Problems to tune together.

    Attributes:
        name: Of the model, or "problems"; for the default file name of the database.
        title: For tables.
        named: The problems with the names of their layers, or with numbers.
        network: The network that the layers belong to; None for single problems and for a training step.
        is_step: Whether the problems are the convolutions of a training step.
    """

    name: str
    title: str
    named: Sequence[tuple[str, Problem]]
    network: Network | None = None
    is_step: bool = False

    @property
    def problems(self) -> list[Problem]:
        """The problems in order; a problem of several layers occurs several times."""
        return [problem for _, problem in self.named]


@dataclass(frozen=True)
class Bench:
    """The architecture that kernels are compiled for, and the device that times them.

    Attributes:
        arch: The architecture.
        target: The compilation target, such as "sm_90".
        device: The device, such as "cuda:0"; None if this machine cannot run the kernels.
    """

    arch: Architecture
    target: str
    device: str | None

    @classmethod
    def of(cls, arch: Architecture, capability: int | None) -> Bench:
        """Return the bench for an architecture on this machine.

        Args:
            arch: The architecture.
            capability: 10 x the compute capability of the GPU; None if there is no GPU.
        """
        if not arch.is_cuda:
            device, target = "cpu", cpu_targets()[0]
        elif capability is None or capability < (arch.capability or 0):
            return cls(arch, f"sm_{arch.capability}", None)
        else:
            device, target = "cuda:0", f"sm_{capability}"
        return cls(device_arch(arch, torch.device(device)), target, device)

    @classmethod
    def of_device(cls, device: torch.device) -> Bench:
        """Return the bench for the newest architecture that a device runs."""
        if device.type != "cuda":
            return cls.of(architecture("cpu"), None)
        capability = gpu_capability(device)
        assert capability
        arch = device_arch(of_capability(capability), device)
        return cls(arch, f"sm_{capability}", str(torch.empty(0, device=device).device))  # with its index

    @property
    def trials(self) -> int:
        """Number of configs to try for a problem, where the user gives none."""
        if not self.arch.is_cuda:
            return 32
        return 160 if self.device else UNTIMED_TRIALS

    @property
    def budget(self) -> float:
        """Seconds of a run for one batch size, where the user gives none."""
        return 360.0 if self.arch.is_cuda else 90.0


def gpu_capability(device: torch.device | None = None) -> int | None:
    """Return 10 x the compute capability of a GPU, or None if torch sees no GPU."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def inductor_modes(device: str | None, chosen: str | None = None) -> tuple[str, ...]:
    """Return the modes of Inductor to try.

    Args:
        device: The device that times; None if nothing is timed.
        chosen: A key of INDUCTOR_MODES; None for "default", unless the environment variable switches Inductor off.

    Raises:
        LibraryError: A mode was chosen, and Inductor cannot compile here.
    """
    mode = chosen or (inductor.DEFAULT if inductor.is_wanted() else "off")
    reason = inductor.why_unavailable(torch.device(device)) if device else "nothing is timed"
    if reason and chosen and chosen != "off":
        raise LibraryError(f"--inductor {chosen}: {reason}; give --inductor off")
    return () if reason else INDUCTOR_MODES[mode]


def missing(store: Store, bench: Bench, network: Network) -> TuneRequest | None:
    """Return the layers of a network that a database lacks for a device; None if it lacks neither layers nor plan.

    A layer is tuned once its finalists were timed, which is the end of a run: the layers of an interrupted run are
    missing. Layers of alternatives that no family serves are not.
    """
    assert bench.device
    row = store.device(device_name(torch.device(bench.device)))
    named = [(layer.name, layer.problem) for layer in network.layers]
    extra = [(layer.name, layer.problem) for layer in network.all_layers[len(named) :]]
    named += [(name, problem) for name, problem in extra if serving(problem, bench.arch)]
    named = missing_problems(store, bench, named)
    if row and not named and (not bench.arch.is_cuda or store.plan(row, network.key)):
        return None
    return TuneRequest(network.identity.model, network.key, named, network)


def missing_problems(store: Store, bench: Bench, named: Sequence[tuple[str, Problem]]) -> list[tuple[str, Problem]]:
    """Return the problems whose finalists a database has not timed on a device."""
    assert bench.device
    row = store.device(device_name(torch.device(bench.device)))
    return [one for one in named if not (row and any(m.final for m in store.measurements(row, str(one[1]), "ok")))]


def refuse_other_timing(store: Store, device: str, problems: Sequence[Problem], timing: Timing) -> None:
    """Raise DatabaseError if the database holds times of another timer or of other buffers: they are not comparable."""
    if not (row := store.device(device_name(torch.device(device)))):
        return
    for problem in problems:
        for measured in store.measurements(row, str(problem), "ok", most=1):
            for name, default in (("buffers", BUFFERS[0]), ("timer", TIMERS[0])):
                if (before := measured.details.get(name, default)) != getattr(timing, name):
                    given = f"{store.name} holds times measured with --{name} {before}"
                    raise DatabaseError(f"{given}: give the same option, or another --db")
