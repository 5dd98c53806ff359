"""Watches what slows a device down while it is measured.

For a GPU that is NVML's view: clocks, temperature, power, energy, and reasons for slower clocks. For a CPU it is the
load of other processes.
"""

from __future__ import annotations

from typing import Any

import torch

from autotune.measure.cpu_load import CpuLoad, run_load

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
