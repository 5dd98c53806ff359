"""Search: spaces of configs, studies of Optuna that choose what to try next, and the schedule that drives them."""

from autotune.search.schedule import MIN_DEPTH, Schedule, device_places, is_large
from autotune.search.space import KernelGroup, Space, kernel_group, spread
from autotune.search.study import (
    ANY_SAMPLER,
    DEFAULT_SAMPLER,
    SAMPLERS,
    KnownTimes,
    SpaceStudy,
    create_studies,
    ended_trial,
    sampler_choice,
)
from autotune.search.trace import ConfigTrace, SpaceTrace, TuneTrace, trace_of
from autotune.search.transfer_history import problem_similarity
from autotune.search.transfer_sampler import TransferSampler
