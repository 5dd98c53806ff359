"""The tuning run: studies, builds, trials, and the choice inside the whole network."""

from autotune.tuner.kernel_builder import kernel_of
from autotune.tuner.objectives import OBJECTIVES
from autotune.tuner.options import Options
from autotune.tuner.progress import Progress
from autotune.tuner.report import Failure, Line, failures, illegal, label, lines, pareto, unserved
from autotune.tuner.time_breakdown import RECORD, WAIT, Ledger
from autotune.tuner.tuner import Tuning

__all__ = [
    "OBJECTIVES",
    "RECORD",
    "WAIT",
    "Failure",
    "Ledger",
    "Line",
    "Options",
    "Progress",
    "Tuning",
    "failures",
    "illegal",
    "kernel_of",
    "label",
    "lines",
    "pareto",
    "unserved",
]
