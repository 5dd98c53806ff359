"""The device: its name, the code it runs, and its measured peak rates of arithmetic and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from autotune.core.arch import Architecture, cpu_name, cpu_targets


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
