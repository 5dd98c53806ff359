"""Resources that a candidate takes besides time, and the state of the device while it is measured.

A candidate takes host time, energy and memory. For a GPU what slows it down is NVML's view: clocks, temperature, power,
energy, and reasons for slower clocks. For a CPU it is the load of other processes.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from autotune.core import process_tree_main
from autotune.measure.timers import Call, host_clock, library_choices, stream_of, synchronize
from autotune.runtime import BoundStep


def host_us(launch: Call, launches: int, device: torch.device) -> float:
    """Return the host's microseconds for one launch.

    Args:
        launch: Enqueues `launches` launches.
        launches: Few enough for the stream's queue; else the host would wait for the device.
        device: The device that is launched on.
    """
    best = math.inf
    for _ in range(3):
        synchronize(device)
        best = min(best, host_clock(launch) / launches)
    synchronize(device)
    return best


def energy_uj(
    run: Callable[[], int], counter_mj: Callable[[], float | None], seconds: float = 0.3, limit: float = 5.0
) -> float | None:
    """Return the microjoules of one call, including everything else that the counter counts meanwhile.

    The counter moves in steps of tens of milliseconds. The measurement therefore lasts from one step of the counter to
    another one at least `seconds` later: energy = (counter difference) / (calls in between).

    Args:
        run: Makes calls, waits for them and returns how many it made.
        counter_mj: Millijoules so far; None if they are not counted.
        seconds: Least duration.
        limit: Most seconds.

    Returns:
        Microjoules; None if the counter does not exist or does not move within `limit` seconds.
    """
    calls, last, started = 0, counter_mj(), time.perf_counter()
    first: tuple[float, int, float] | None = None
    while (now := time.perf_counter()) < started + limit:
        calls += run()
        value = counter_mj()
        if value is None:
            return None
        if value == last:
            continue
        last = value
        if first is None:
            first = value, calls, now
        elif now - first[2] >= seconds:
            return (value - first[0]) * 1e3 / (calls - first[1])
    return None


def allocator_bytes(device: torch.device) -> tuple[int, int]:
    """Return the bytes of a GPU that torch's allocator has reserved, and how many of them tensors take."""
    statistics = torch.cuda.memory_stats_as_nested_dict(device)  # memory_reserved sorts all 200 of them first
    reserved, allocated = (int(statistics[f"{kind}_bytes"]["all"]["current"]) for kind in ("reserved", "allocated"))
    return reserved, allocated


def memory_bytes(device: torch.device) -> int:
    """Return the memory in use.

    On a GPU that of all processes, without what torch's allocator keeps for reuse. On a CPU this process's data
    segment, without what malloc keeps for reuse.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free - allocator_bytes(device)[0])
    return int(psutil.Process().memory_info().data) - _malloc_free_bytes()


_MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
    *("uordblks", "fordblks", "keepcost"),
)
"""Fields of glibc's struct mallinfo2 (mallinfo(3))."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2)


def _malloc_free_bytes() -> int:
    """Return the free bytes that malloc keeps. A leak takes these first, before the process grows."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # glibc before 2.33, or another C library
        return 0
    libc.mallinfo2.restype = _Mallinfo2
    return int(libc.mallinfo2().fordblks)


def workspace_bytes(step: BoundStep, device: torch.device) -> int | None:
    """Return the bytes that a step needs beside its tensors: a kernel's workspace, or a torch operator's peak memory.

    None for a torch operator on a CPU, where torch does not count memory.
    """
    if step.kernel:
        return step.kernel.workspace_bytes
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with library_choices():
        step.run(stream_of(device))
    return int(torch.cuda.max_memory_allocated(device)) - before


MAX_SHARE = 0.15
"""Share of the cores that others may use: beyond it the threads of a kernel wait for each other, and a network with
many short kernels may take tens of times longer."""
IGNORE = "AUTOTUNE_IGNORE_LOAD"
"""Environment variable: 1 takes times as they are, for a machine that is always busy."""
_SECONDS, _RUN_SECONDS = 0.04, 0.2
"""Least time between two readings: the kernel counts in units of 10 ms, and does so for each process of a run."""
_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of /proc/stat in which the CPU does nothing: idle, and waiting for a disk."""


class CpuLoad:
    """Reads how much of the CPU others use. Where Linux does not tell, they use nothing.

    Args:
        own_seconds: Returns the seconds of the CPU that are not those of others; by default those of this process.
        least_seconds: Least time between two readings.
    """

    def __init__(self, own_seconds: Callable[[], float] = time.process_time, least_seconds: float = _SECONDS) -> None:
        self._tick = os.sysconf("SC_CLK_TCK")
        self._own_seconds, self._least_seconds = own_seconds, least_seconds
        self.begin()

    def begin(self) -> None:
        """Forget what was read: the load counts from now on."""
        self._wall, self._busy, self._own, _ = self._read()
        self._said: list[str] = []

    def slowed(self) -> list[str]:
        """Return a sentence if others used more than MAX_SHARE of the cores between the last two readings."""
        if os.environ.get(IGNORE) == "1":
            return []
        if time.monotonic() - self._wall >= self._least_seconds:
            wall, busy, own, cores = self._read()
            others = (busy - self._busy) - (own - self._own)
            share = others / ((wall - self._wall) * cores) if cores else 0.0
            self._wall, self._busy, self._own = wall, busy, own
            self._said = [f"other processes use {share:.0%} of the CPU"] if share > MAX_SHARE else []
        return self._said

    def _read(self) -> tuple[float, float, float, int]:
        """Return the time, the busy seconds of all cores and our own, and the number of cores."""
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return time.monotonic(), 0.0, 0.0, 0
        ticks = [int(word) for word in lines[0].split()[1:9]]  # those of virtual machines are among them
        busy = sum(count for column, count in enumerate(ticks) if column not in _IDLE)
        cores = sum(line.startswith("cpu") for line in lines) - 1
        return time.monotonic(), busy / self._tick, self._own_seconds(), cores


@cache
def run_load() -> CpuLoad:
    """Return the reader of this process whose own load is that of the whole run, its compilers included."""
    return CpuLoad(run_seconds, _RUN_SECONDS)


def run_seconds() -> float:
    """Return the seconds of the CPU of the tuner that has started this process, and of all processes below it.

    The tuner starts the compilers, too. Each process counts those that it has waited for, so no seconds are lost when a
    compiler ends.
    """
    import psutil  # not needed to run a network

    seconds = 0.0
    with suppress(psutil.NoSuchProcess):
        tuner = psutil.Process(_tuner())
        for process in (*tuner.children(recursive=True), tuner):
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


@cache
def _tuner() -> int:
    """Return the process that has started this one, past the one between both that ends its children with itself."""
    import psutil

    between = Path(process_tree_main.__file__).name
    parents = psutil.Process().parents()
    return next((one.pid for one in parents if not any(word.endswith(between) for word in one.cmdline())), os.getpid())


REASONS = {
    0x1: "idle",
    0x2: "clocks set by the user",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clock",
}
"""Reasons for clocks below the highest, by the bits of nvmlClocksEventReasons (nvml.h)."""

SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80
"""The reasons that make a sample invalid: heat, and the hardware's own brakes.

The others describe how the GPU is set up, or that it is idle. The power cap does not count: if a kernel draws all the
power that the GPU may take, the clock that remains is the one at which the kernel always runs.
"""


class Monitor:
    """One GPU as NVML sees it. For a CPU, and where NVML does not answer, all values are unknown but the load.

    Args:
        device: The device as torch names it.
    """

    def __init__(self, device: torch.device) -> None:
        self._handle: Any = None
        self._error: str | None = None
        self._load = CpuLoad() if device.type == "cpu" else None
        self._run_load = run_load() if device.type == "cpu" else None
        if device.type != "cuda":
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            # By its UUID: NVML numbers all GPUs of the machine, torch those that CUDA_VISIBLE_DEVICES names.
            uuid = torch.cuda.get_device_properties(device).uuid
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            self._error = str(error)

    def state(self) -> dict[str, Any]:
        """Return clocks in MHz, degrees Celsius, watts, and the names of the reasons for slower clocks."""
        if self._handle is None:
            return {"nvml": self._error} if self._error else {}
        import pynvml

        queries = {
            "sm_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
            "memory_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM),
            "celsius": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
            "watts": lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1e3,
            "throttle_reasons": lambda h: reason_names(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
        }
        return {name: self._query(query) for name, query in queries.items()}

    def begin(self) -> None:
        """Let the load of a CPU count from now on."""
        if self._load:
            self._load.begin()

    def slowed(self) -> list[str]:
        """Return what slows the device down: the SLOWDOWNS that are active now, or the load of the CPU by others."""
        if self._load:
            return self._load.slowed()
        import pynvml

        return reason_names((self._query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0) & SLOWDOWNS)

    def slowed_beside_run(self) -> list[str]:
        """Return what `slowed` does for a trial, beside which the compilers of the run may work: they do not count."""
        return self._run_load.slowed() if self._run_load else self.slowed()

    def sharers(self) -> int:
        """Return how many other processes have a context on the GPU, as far as NVML tells."""
        import pynvml

        return max(0, len(self._query(pynvml.nvmlDeviceGetComputeRunningProcesses) or ()) - 1)

    def sm_mhz(self) -> float | None:
        """Return the clock of the SMs in MHz; None if it is not known."""
        import pynvml

        clock: int | None = self._query(lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        return clock

    def energy_mj(self) -> float | None:
        """Return the millijoules of the whole board since the driver was loaded; None if it does not count them."""
        import pynvml

        millijoules: float | None = self._query(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        return millijoules

    def _query(self, query: Any) -> Any:
        """Return NVML's answer; None if this GPU has none."""
        import pynvml

        if self._handle is None:
            return None
        try:
            return query(self._handle)
        except pynvml.NVMLError:
            return None


def reason_names(bits: int) -> list[str]:
    """Return the names of the reasons in a bit mask."""
    return [name for bit, name in REASONS.items() if bits & bit]
