"""The choice of kernels inside a whole network."""

from autotune.tuner.plan.copied_plans import CopiedPlan, copy_plan
from autotune.tuner.plan.network_tuner import record_copied_plan
from autotune.tuner.plan.settling import Settling

__all__ = ["CopiedPlan", "Settling", "copy_plan", "record_copied_plan"]
