"""Verification and timing of candidates in a process of its own."""

from autotune.core.process_tree import ChildProcess, Ended, accept
from autotune.measure.candidate_bench import SLOW_FACTOR, CandidateBench, DeviceLostError, is_pruned
from autotune.measure.cold_cache import RotatingBuffers, copies_of, flush
from autotune.measure.plan_check import (
    MAX_DRIFT,
    NOT_CHECKED,
    PlanCheck,
    Reference,
    check_plan,
    relative_error,
    seeded_inputs,
    seeded_state,
    time_plan,
    why_not_comparable,
)
from autotune.measure.protocol import TRIAL_STEPS, LayerAssignment, Result, median_interval, timed
from autotune.measure.resources import Monitor, reason_names
from autotune.measure.timers import (
    BUFFERS,
    THROTTLED,
    TIMERS,
    Call,
    Runnable,
    Sampler,
    Timing,
    between,
    host_clock,
    interleave,
    replay_sampler,
    sampler,
    shuffled_rounds,
    stream_of,
    synchronize,
    warm_up,
)
from autotune.measure.worker_client import Child, StartChild, Worker
