"""What NVML tells of a GPU while it is measured: clocks, temperature, power, what slows it down, energy."""

from __future__ import annotations

from typing import Any

import torch

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
"""Why clocks are below the highest, by NVML's bits."""

SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80
"""The reasons that spoil a sample: heat, and the hardware's own brakes.

The others say how the GPU is set up or that it rests. So does the power cap: where a kernel draws all the power there
is, the clock that is left is the one that the kernel will run at.
"""


class Monitor:
    """One GPU as NVML sees it. Of a CPU, and where NVML does not answer, it knows nothing and complains of nothing."""

    def __init__(self, device: torch.device) -> None:
        self._handle: Any = None
        self._error: str | None = None
        if device.type != "cuda":
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            # By its identity: NVML counts all GPUs of the machine, torch those that CUDA_VISIBLE_DEVICES names.
            uuid = torch.cuda.get_device_properties(device).uuid
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            self._error = str(error)

    def state(self) -> dict[str, Any]:
        """Clocks in MHz, degrees Celsius, watts, and the names of the reasons why clocks are not at their highest."""
        if self._handle is None:
            return {"nvml": self._error} if self._error else {}
        import pynvml

        asked = {
            "sm_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
            "memory_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM),
            "celsius": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
            "watts": lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1e3,
            "throttle_reasons": lambda h: names(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
        }
        return {name: self._asked(question) for name, question in asked.items()}

    def slowed(self) -> list[str]:
        """What slows the GPU down right now, of SLOWDOWNS."""
        import pynvml

        return names((self._asked(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0) & SLOWDOWNS)

    def energy_mj(self) -> float | None:
        """Millijoules that the whole board has taken since the driver was loaded; None where it does not count them."""
        import pynvml

        return self._asked(pynvml.nvmlDeviceGetTotalEnergyConsumption)

    def _asked(self, question: Any) -> Any:
        """The answer of NVML; None where this GPU has none."""
        import pynvml

        if self._handle is None:
            return None
        try:
            return question(self._handle)
        except pynvml.NVMLError:
            return None


def names(bits: int) -> list[str]:
    """The reasons in a bit mask."""
    return [name for bit, name in REASONS.items() if bits & bit]
