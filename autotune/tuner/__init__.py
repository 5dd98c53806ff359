"""The tuning run: studies, builds, trials, and the plan of the whole network."""

from autotune.tuner.kernel_builder import ForeignKernels, kernel_of
from autotune.tuner.machines import (
    INDUCTOR_MODES,
    DeviceGroup,
    Machines,
    MeasuringDevice,
    TuningTarget,
    cores_apart,
    device_groups,
    inductor_modes,
    local_devices,
    start_in_background,
)
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
from autotune.tuner.time_shares import PREPARATION, RECORD, WAIT, PhaseTime, TimeBreakdown
from autotune.tuner.trials.library_trials import LibraryCandidates
from autotune.tuner.tuner import Tuner
