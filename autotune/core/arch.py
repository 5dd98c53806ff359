"""Architectures: a table of their instruction sets, memory sizes and dtypes.

Shared-memory and thread limits are those of the CUDA C++ Programming Guide's table of compute
capabilities, less the 1 KB that the system reserves for each block from sm_80 on.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autotune.core.errors import require_one_of


@dataclass(frozen=True)
class Architecture:
    """One architecture that kernels are compiled for.

    Attributes:
        name: Its name, such as "sm90" or "cpu".
        capability: Compute capability times ten; None for a CPU.
        dtypes: Dtypes that its kernels can have, names of `ir.DTYPES`; the first is the default.
        block_shared: Largest dynamic shared memory of a block, in bytes.
        sm_shared: Shared memory of an SM, in bytes.
        sm_threads: Largest number of resident threads of an SM.
        processors: Number of SMs, for cost models and persistent kernels; cores of a CPU. The table has that of the
            usual data-center part, or else the largest one, for compiling without a GPU.
    """

    name: str
    capability: int | None
    dtypes: tuple[str, ...]
    block_shared: int = 0
    sm_shared: int = 0
    sm_threads: int = 0
    processors: int = 1

    @property
    def is_cuda(self) -> bool:
        """True if kernels are device images."""
        return self.capability is not None

    def processors_for(self, cluster: int) -> int:
        """Return the number of SMs that clusters of this size occupy at once, with one block on each SM.

        A cluster must be within one GPC, and GPCs differ in size: clusters of 4 and of 8 blocks occupy 120 of an H200's
        132 SMs, by cudaOccupancyMaxActiveClusters.
        """
        return self.processors if cluster <= 2 else max(self.processors * 10 // 11 // cluster, 1) * cluster

    @property
    def reserved_shared(self) -> int:
        """Shared memory that the system reserves for each resident block, in bytes."""
        return 1024 if (self.capability or 0) >= 80 else 0


ARCHITECTURES: dict[str, Architecture] = {
    arch.name: arch
    for arch in (
        Architecture("cpu", None, ("f32", "s8"), processors=len(os.sched_getaffinity(0))),
        Architecture("sm70", 70, ("f16", "f32"), 98304, 98304, 2048, 80),
        Architecture("sm75", 75, ("f16", "f32", "s8"), 65536, 65536, 1024, 40),
        Architecture("sm80", 80, ("f16", "bf16", "tf32", "f32", "s8"), 166912, 167936, 2048, 108),
        Architecture("sm86", 86, ("f16", "bf16", "tf32", "f32", "s8"), 101376, 102400, 1536, 84),
        Architecture("sm89", 89, ("f16", "bf16", "tf32", "f32", "s8"), 101376, 102400, 1536, 128),
        Architecture("sm90", 90, ("f16", "bf16", "tf32", "f32", "s8"), 232448, 233472, 2048, 132),
    )
}

MOST_PROCESSORS = 256
"""Upper bound on the SMs of a GPU of any architecture here; the limit of launch parameters that count SMs."""


def architecture(name: str) -> Architecture:
    """Return an architecture by its name; raises UnknownNameError."""
    return ARCHITECTURES[require_one_of("architecture", name, list(ARCHITECTURES))]


def of_target(target: str) -> Architecture:
    """Return the architecture of a target, such as "sm_90" or "x86-64-v4"; raises UnknownNameError."""
    return architecture(target.replace("_", "") if target.startswith("sm_") else "cpu")


def of_capability(capability: int) -> Architecture:
    """Return the newest architecture that a GPU runs natively; raises UnknownNameError for one that is too old.

    Args:
        capability: The GPU's compute capability times ten.
    """
    cuda = [arch for arch in ARCHITECTURES.values() if arch.capability and arch.capability <= capability]
    if not cuda:
        require_one_of(
            "compute capability", str(capability), [str(a.capability) for a in ARCHITECTURES.values() if a.is_cuda]
        )
    return cuda[-1]


# Micro-architecture levels of the x86-64 psABI, newest first: flags that /proc/cpuinfo must list.
_X86_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v2": {"popcnt", "sse4_1", "sse4_2", "ssse3"},
    "x86-64": set(),
}


@cache
def cpu_targets() -> tuple[str, ...]:
    """Return the instruction sets that this machine runs, the newest first, as names for g++ -march."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return (platform.machine(),)
    flags = set(cpu_info("flags").split())
    levels = tuple(_X86_LEVELS)
    best = next(i for i in range(len(levels)) if all(_X86_LEVELS[level] <= flags for level in levels[i:]))
    return levels[best:]


@cache
def cpu_info(name: str) -> str:
    """Return a field of /proc/cpuinfo, such as "model name"; an empty string if Linux does not list it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def cpu_name() -> str:
    """Return the model name of this machine's processor; "CPU" where Linux gives none."""
    return cpu_info("model name") or "CPU"


def runs_on(target: str, device_target: str) -> bool:
    """Return whether code for a target runs on a device with another target.

    A cubin runs on devices of the same major compute capability and an equal or higher minor one.
    """
    if not target.startswith("sm_") or not device_target.startswith("sm_"):
        return target in cpu_targets() and not device_target.startswith("sm_")
    code, device = int(target.removeprefix("sm_")), int(device_target.removeprefix("sm_"))
    return code // 10 == device // 10 and code <= device
