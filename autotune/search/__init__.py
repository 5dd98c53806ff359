"""Search: spaces of configs, studies that choose what to try next, and the schedule that drives them."""

from autotune.search.samplers import DEFAULT_STRATEGY, STRATEGIES, Strategy, strategy
from autotune.search.schedule import Bench, Schedule
from autotune.search.simulator import MIN_CONFIGS, Replay, replay
from autotune.search.space import Space, spread
from autotune.search.study import Study
from autotune.search.trace import ConfigTrace, SpaceTrace, TuneTrace, trace_of
from autotune.search.transfer import problem_similarity

__all__ = [
    "DEFAULT_STRATEGY",
    "MIN_CONFIGS",
    "STRATEGIES",
    "Bench",
    "ConfigTrace",
    "Replay",
    "Schedule",
    "Space",
    "SpaceTrace",
    "Strategy",
    "Study",
    "TuneTrace",
    "problem_similarity",
    "replay",
    "spread",
    "strategy",
    "trace_of",
]
