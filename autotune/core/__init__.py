"""Architectures, devices, paths and errors: what all other packages use."""

from autotune.core.device import (
    ARCHITECTURES,
    MAX_PROCESSORS,
    Architecture,
    DeviceFacts,
    DeviceKind,
    architecture,
    cpu_name,
    cpu_targets,
    cuda_architectures,
    device_arch,
    device_name,
    device_target,
    driver_version,
    measure_device,
    of_capability,
    of_target,
    runs_on,
    software,
)
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
from autotune.core.timeline import NEVER, Deadline, seconds_of
