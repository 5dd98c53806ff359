"""Architectures, devices, paths and errors: what all other packages use."""

from autotune.core.arch import (
    ARCHITECTURES,
    MAX_PROCESSORS,
    Architecture,
    architecture,
    cpu_name,
    cpu_targets,
    cuda_architectures,
    of_capability,
    of_target,
    runs_on,
)
from autotune.core.deadline import NEVER, Deadline, seconds_of
from autotune.core.device import DeviceFacts, DeviceKind, device_arch, device_name, device_target, measure_device
from autotune.core.errors import (
    AutotuneError,
    CaptureError,
    FamilyError,
    LayerError,
    LibraryError,
    OutOfTimeError,
    ProblemError,
    ToolchainError,
    UnknownNameError,
    WorkerError,
    first_line,
    in_one_line,
    require_one_of,
)
from autotune.core.flop_rates import FlopUnit, flop_unit
from autotune.core.math import ceil_div, format_bytes, number, pareto_front, round_up
from autotune.core.paths import FAMILIES
from autotune.core.process_tree import ProcessTree

__all__ = [
    "ARCHITECTURES",
    "FAMILIES",
    "MAX_PROCESSORS",
    "NEVER",
    "Architecture",
    "AutotuneError",
    "CaptureError",
    "Deadline",
    "DeviceFacts",
    "DeviceKind",
    "FamilyError",
    "FlopUnit",
    "LayerError",
    "LibraryError",
    "OutOfTimeError",
    "ProblemError",
    "ProcessTree",
    "ToolchainError",
    "UnknownNameError",
    "WorkerError",
    "architecture",
    "ceil_div",
    "cpu_name",
    "cpu_targets",
    "cuda_architectures",
    "device_arch",
    "device_name",
    "device_target",
    "first_line",
    "flop_unit",
    "format_bytes",
    "in_one_line",
    "measure_device",
    "number",
    "of_capability",
    "of_target",
    "pareto_front",
    "require_one_of",
    "round_up",
    "runs_on",
    "seconds_of",
]
