"""Verification and timing of candidates, in a process of its own."""

from autotune.measure.candidate_bench import Case
from autotune.measure.cold_cache import Rotation, copies_of, flush
from autotune.measure.interleaving import interleave
from autotune.measure.network_bench import Pick
from autotune.measure.nvml import Monitor
from autotune.measure.result import Result, median_interval, timed
from autotune.measure.timers import (
    BUFFERS,
    TIMERS,
    Runnable,
    Sampler,
    Timing,
    Work,
    between,
    host_clock,
    occupy,
    sampler,
    settle,
    stream_of,
    synchronize,
)
from autotune.measure.worker_client import Worker

__all__ = [
    "BUFFERS",
    "TIMERS",
    "Case",
    "Monitor",
    "Pick",
    "Result",
    "Rotation",
    "Runnable",
    "Sampler",
    "Timing",
    "Work",
    "Worker",
    "between",
    "copies_of",
    "flush",
    "host_clock",
    "interleave",
    "median_interval",
    "occupy",
    "sampler",
    "settle",
    "stream_of",
    "synchronize",
    "timed",
]
