"""Architectures, devices, paths and errors: what all other packages use."""

from autotune.core.arch import (
    ARCHITECTURES,
    MOST_PROCESSORS,
    Architecture,
    architecture,
    cpu_name,
    cpu_targets,
    of_capability,
    of_target,
    runs_on,
)
from autotune.core.device import DeviceFacts, device_arch, device_name, device_target, measure_device
from autotune.core.errors import (
    AutotuneError,
    CaptureError,
    FamilyError,
    ProblemError,
    ToolchainError,
    UnknownNameError,
    VendorError,
    WorkerError,
    choose,
)
from autotune.core.math import ceil_div, format_bytes, pareto_front, round_up
from autotune.core.paths import FAMILIES

__all__ = [
    "ARCHITECTURES",
    "FAMILIES",
    "MOST_PROCESSORS",
    "Architecture",
    "AutotuneError",
    "CaptureError",
    "DeviceFacts",
    "FamilyError",
    "ProblemError",
    "ToolchainError",
    "UnknownNameError",
    "VendorError",
    "WorkerError",
    "architecture",
    "ceil_div",
    "choose",
    "cpu_name",
    "cpu_targets",
    "device_arch",
    "device_name",
    "device_target",
    "format_bytes",
    "measure_device",
    "of_capability",
    "of_target",
    "pareto_front",
    "round_up",
    "runs_on",
]
