"""Architectures and devices: the code that they run, their limits, and their rates.

The limits of memory, threads and registers of an architecture are those of the CUDA C++ Programming Guide ("Technical
Specifications per Compute Capability"); `block_shared` is less the 1 KB that the system reserves for each block from
sm_80 on. The peak rates of a device are measured.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from autotune.core.errors import require_one_of


@dataclass(frozen=True)
class Architecture:
    """One target of kernels.

    Attributes:
        name: Its name here: "cpu", "sm90".
        capability: Compute capability times ten, or None for a CPU.
        dtypes: The dtypes that its kernels can have, of problem.DTYPES; the first is the usual one.
        block_shared: Dynamic shared memory that a block can have, in bytes.
        sm_shared: Shared memory of an SM, in bytes.
        sm_threads: Threads that an SM can hold.
        processors: SMs of a GPU, or cores of a CPU. The table has those of the architecture's usual data-centre (or
            largest) part, for compiling without a GPU.
        sm_registers: 32-bit registers of an SM.
        mma_rate: Half-precision multiply-adds an SM's mma.sync sustains a cycle, with operands in shared memory.
        mma_cycles: Cycles of an m16n8k16 mma.sync in an SM, with operands in registers.
        wgmma_rate: Half-precision multiply-adds of an SM's wgmma a cycle; 0 where there is no wgmma.
    """

    name: str
    capability: int | None
    dtypes: tuple[str, ...]
    block_shared: int = 0
    sm_shared: int = 0
    sm_threads: int = 0
    processors: int = 1
    sm_registers: int = 0
    mma_rate: float = 0
    mma_cycles: float = 0
    wgmma_rate: float = 0

    @property
    def is_cuda(self) -> bool:
        """Whether kernels are device images for a GPU, and not shared libraries for a CPU."""
        return self.capability is not None

    def processors_for(self, cluster: int) -> int:
        """Return how many SMs clusters of this many blocks fill at once, with one block on each SM.

        A cluster lies within one GPC, and GPCs differ in size: of an H200's 132 SMs, clusters of 4 and of 8 fill 120
        (measured with cudaOccupancyMaxActiveClusters).
        """
        return self.processors if cluster <= 2 else max(self.processors * 10 // 11 // cluster, 1) * cluster

    @property
    def reserved_shared(self) -> int:
        """Shared memory that the system keeps for each resident block, in bytes."""
        return 1024 if (self.capability or 0) >= 80 else 0

    def resident_blocks(self, threads: int, registers: int, shared: int) -> int:
        """Return how many blocks an SM holds at once, at least one.

        Args:
            threads: Threads of a block.
            registers: Registers of a thread.
            shared: Shared memory of a block in bytes.
        """
        by_shared = self.sm_shared // (shared + self.reserved_shared)
        return max(1, min(by_shared, self.sm_registers // (registers * threads), self.sm_threads // threads))


def _cuda(
    capability: int,
    dtypes: tuple[str, ...],
    *,
    block_shared: int,
    sm_shared: int,
    sm_threads: int,
    processors: int,
    mma_rate: float = 1000,
    mma_cycles: float = 2.0,
    wgmma_rate: float = 0,
) -> Architecture:
    """Return a GPU's architecture.

    The default rates are those of sm_80, whose peak is 1024 multiply-adds a cycle (NVIDIA A100 whitepaper: 312 TFLOPS,
    108 SMs, 1.41 GHz), so an m16n8k16 takes 2 cycles. Cost models use them for all GPUs before sm_90: they compare
    configs on one GPU, where a common factor matters little.
    """
    return Architecture(
        name=f"sm{capability}",
        capability=capability,
        dtypes=dtypes,
        block_shared=block_shared,
        sm_shared=sm_shared,
        sm_threads=sm_threads,
        processors=processors,
        sm_registers=65536,
        mma_rate=mma_rate,
        mma_cycles=mma_cycles,
        wgmma_rate=wgmma_rate,
    )


_VOLTA = ("f16", "f32")
_TURING = ("f16", "f32", "s8")
_AMPERE = ("f16", "bf16", "tf32", "f32", "s8")
_ADA = (*_AMPERE, "e4m3")
_KB = 1024

ARCHITECTURES: dict[str, Architecture] = {
    arch.name: arch
    for arch in (
        Architecture("cpu", None, ("f32", "s8", "e4m3"), processors=len(os.sched_getaffinity(0))),
        _cuda(70, _VOLTA, block_shared=96 * _KB, sm_shared=96 * _KB, sm_threads=2048, processors=80),
        _cuda(75, _TURING, block_shared=64 * _KB, sm_shared=64 * _KB, sm_threads=1024, processors=40),
        _cuda(80, _AMPERE, block_shared=163 * _KB, sm_shared=164 * _KB, sm_threads=2048, processors=108),
        _cuda(86, _AMPERE, block_shared=99 * _KB, sm_shared=100 * _KB, sm_threads=1536, processors=84),
        _cuda(89, _ADA, block_shared=99 * _KB, sm_shared=100 * _KB, sm_threads=1536, processors=128),
        _cuda(
            90,
            _ADA,
            block_shared=227 * _KB,
            sm_shared=228 * _KB,
            sm_threads=2048,
            processors=132,
            mma_rate=1200,  # fitted to 172 kernels of cuda_conv2d timed on an H200: 60 % of wgmma's rate
            mma_cycles=1.7,  # 2048 multiply-adds at that rate
            wgmma_rate=2048,  # NVIDIA H100 whitepaper: 989 TFLOPS, 132 SMs, 1.83 GHz
        ),
    )
}

MAX_PROCESSORS = 256
"""More SMs than a GPU of any architecture here has: launch parameters that count SMs are declared up to it."""


def cuda_architectures(since: int = 0) -> tuple[str, ...]:
    """Return the names of all CUDA architectures from a compute capability (times ten) on, oldest first."""
    return tuple(name for name, arch in ARCHITECTURES.items() if arch.capability and arch.capability >= since)


def architecture(name: str) -> Architecture:
    """Return the architecture of a name; raises UnknownNameError."""
    return ARCHITECTURES[require_one_of("architecture", name, list(ARCHITECTURES))]


def of_target(target: str) -> Architecture:
    """Return the architecture whose instructions a target has: "sm_90", "x86-64-v4"; raises UnknownNameError."""
    return architecture(target.replace("_", "") if target.startswith("sm_") else "cpu")


def of_capability(capability: int) -> Architecture:
    """Return the newest architecture that a GPU of a compute capability (times ten) runs natively.

    Raises:
        UnknownNameError: The GPU is older than all architectures of the table.
    """
    cuda = [arch for arch in ARCHITECTURES.values() if arch.capability and arch.capability <= capability]
    if not cuda:
        require_one_of(
            "compute capability", str(capability), [str(a.capability) for a in ARCHITECTURES.values() if a.is_cuda]
        )
    return cuda[-1]


# The micro-architecture levels of the x86-64 psABI and the flags of /proc/cpuinfo that each needs, newest first.
_X86_LEVELS: dict[str, set[str]] = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v2": {"popcnt", "sse4_1", "sse4_2", "ssse3"},
    "x86-64": set(),
}


@cache
def cpu_targets() -> tuple[str, ...]:
    """Return the instruction sets that this machine can run, best first, as g++ takes them for -march."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return (platform.machine(),)
    flags = set(cpu_info("flags").split())
    levels = tuple(_X86_LEVELS)
    best = next(i for i in range(len(levels)) if all(_X86_LEVELS[level] <= flags for level in levels[i:]))
    return levels[best:]


@cache
def cpu_info(name: str) -> str:
    """Return an entry of this machine's /proc/cpuinfo, such as "model name", or "" if there is none."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def cpu_name() -> str:
    """Return the model name of this machine's processor; "CPU" where Linux gives none."""
    return cpu_info("model name") or "CPU"


def runs_on(target: str, device_target: str) -> bool:
    """Return whether code for `target` runs on a device of `device_target`.

    A CUDA binary runs on GPUs of the same major and of the same or a higher minor compute capability.
    """
    if not target.startswith("sm_") or not device_target.startswith("sm_"):
        return target in cpu_targets() and not device_target.startswith("sm_")
    code, device = int(target.removeprefix("sm_")), int(device_target.removeprefix("sm_"))
    return code // 10 == device // 10 and code <= device


@dataclass(frozen=True)
class DeviceFacts:
    """A device and its measured peak rates.

    Attributes:
        name: Name in databases (`device_name`).
        target: The newest code it runs, such as "sm_90" (`device_target`).
        flops_per_us: Floating-point operations per microsecond.
        bytes_per_us: Bytes read and written per microsecond.
        processors: SMs of a GPU, threads of a CPU.
        details: Versions of torch, CUDA and cuDNN, memory size.
    """

    name: str
    target: str
    flops_per_us: float
    bytes_per_us: float
    processors: int
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device for which kernels are compiled, and on which they are measured; it may be on another machine.

    Attributes:
        name: Name in databases (`device_name`).
        capability: 10 x the compute capability of the GPU; None for a CPU.
        processors: SMs of a GPU, threads of a CPU.
    """

    name: str
    capability: int | None
    processors: int

    @classmethod
    def of(cls, device: torch.device) -> DeviceKind:
        """Return the kind of a device of this machine."""
        if device.type != "cuda":
            return cls(device_name(device), None, torch.get_num_threads())
        major, minor = torch.cuda.get_device_capability(device)
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(device_name(device), 10 * major + minor, processors)


def device_name(device: torch.device) -> str:
    """Return the name of a device in databases.

    It is the GPU's name, or the CPU's model with torch's number of threads and the instruction set.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {torch.get_num_threads()} threads, {cpu_targets()[0]}"


def device_target(device: torch.device) -> str:
    """Return the newest code that a device runs, such as "sm_90" or "x86-64-v4"."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    return cpu_targets()[0]


@cache
def driver_version() -> str:
    """Return the version of NVIDIA's driver, such as "580.159.03"; empty where there is none."""
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text()
        if found := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", text):
            return found[1]
    import pynvml  # not needed to run a network

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""


def software(device: torch.device) -> dict[str, str]:
    """Return the versions that decide what a plan computes on a device: driver, torch and cudnn; empty for none."""
    if device.type != "cuda":
        return {"driver": "", "torch": torch.__version__, "cudnn": ""}
    return {"driver": driver_version(), "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}


def device_arch(arch: Architecture, kind: DeviceKind) -> Architecture:
    """Return an architecture with the number of SMs of a GPU, which differs by more than 2x within one."""
    return replace(arch, processors=kind.processors) if kind.capability else arch


def measure_device(device: torch.device) -> DeviceFacts:
    """Measure the peak rates of a device with a large matrix product and a large copy; takes about a second."""
    cuda = device.type == "cuda"
    size, dtype = (8192, torch.float16) if cuda else (1536, torch.float32)
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    source = torch.empty(2**30 if cuda else 2**27, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product_us = _fastest(lambda: torch.mm(a, b), device)
    copy_us = _fastest(lambda: target.copy_(source), device)
    details: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    processors = torch.get_num_threads()
    if cuda:
        properties = torch.cuda.get_device_properties(device)
        processors = properties.multi_processor_count
        details |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "sms": processors}
        details |= {"memory_bytes": properties.total_memory}
    flops, moved = 2.0 * size**3, 2.0 * source.numel()
    return DeviceFacts(
        device_name(device), device_target(device), flops / product_us, moved / copy_us, processors, details
    )


def _fastest(work: Callable[[], object], device: torch.device, repeats: int = 8) -> float:
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best * 1e6
