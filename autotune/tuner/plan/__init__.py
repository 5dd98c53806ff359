"""The choice of kernels inside a whole network."""

from autotune.tuner.plan.copied_plans import CopiedPlan, copy_plan
from autotune.tuner.plan.network_tuner import (
    COMPARISON_SECONDS,
    COMPARISON_SHARE,
    Rivals,
    record_copied_plan,
    tune_network_plan,
)

__all__ = [
    "COMPARISON_SECONDS",
    "COMPARISON_SHARE",
    "CopiedPlan",
    "Rivals",
    "copy_plan",
    "record_copied_plan",
    "tune_network_plan",
]
