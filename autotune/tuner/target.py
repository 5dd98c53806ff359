"""The device and the architecture of a tuning run, and the limits that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.core import Architecture, DeviceKind, LibraryError, architecture, cpu_targets, device_arch, of_capability
from autotune.libraries import inductor

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
