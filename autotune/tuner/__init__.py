"""The tuning run: studies, builds, trials, and the plan of the whole network."""

from autotune.tuner.foreign_kernels import ForeignKernels, kernel_of
from autotune.tuner.library_candidates import LibraryCandidates
from autotune.tuner.machines import DeviceGroup, Machines, MeasuringDevice, cores_apart, device_groups, local_devices
from autotune.tuner.phases import PREPARATION, PhaseTime
from autotune.tuner.progress import LineProgress, Progress, TracedProgress
from autotune.tuner.report import (
    SLOWED,
    Failure,
    LayerWinner,
    failures,
    format_candidate,
    format_config,
    layer_winners,
    outcome_text,
    pareto_candidates,
    rejected_configs,
    runner,
    sum_us,
    unsupported_reason,
)
from autotune.tuner.request import (
    DEFAULT_OBJECTIVES,
    OBJECTIVES,
    Searched,
    TuneRequest,
    TunerOptions,
    missing,
    missing_problems,
    network_request,
    refuse_other_timing,
    step_request,
)
from autotune.tuner.simulator import MIN_CONFIGS, Replay, ReplayPoint, replay
from autotune.tuner.target import INDUCTOR_MODES, TuningTarget, inductor_modes
from autotune.tuner.threads import start_in_background
from autotune.tuner.time_breakdown import RECORD, WAIT, TimeBreakdown
from autotune.tuner.tuner import Tuner

__all__ = [
    "DEFAULT_OBJECTIVES",
    "INDUCTOR_MODES",
    "MIN_CONFIGS",
    "OBJECTIVES",
    "PREPARATION",
    "RECORD",
    "SLOWED",
    "WAIT",
    "DeviceGroup",
    "Failure",
    "ForeignKernels",
    "LayerWinner",
    "LibraryCandidates",
    "LineProgress",
    "Machines",
    "MeasuringDevice",
    "PhaseTime",
    "Progress",
    "Replay",
    "ReplayPoint",
    "Searched",
    "TimeBreakdown",
    "TracedProgress",
    "TuneRequest",
    "Tuner",
    "TunerOptions",
    "TuningTarget",
    "cores_apart",
    "device_groups",
    "failures",
    "format_candidate",
    "format_config",
    "inductor_modes",
    "kernel_of",
    "layer_winners",
    "local_devices",
    "missing",
    "missing_problems",
    "network_request",
    "outcome_text",
    "pareto_candidates",
    "refuse_other_timing",
    "rejected_configs",
    "replay",
    "runner",
    "start_in_background",
    "step_request",
    "sum_us",
    "unsupported_reason",
]
