"""The choice of kernels inside a whole network, and the descent that chooses those of a training step, too."""

from autotune.tuner.plan.copied_plans import CopiedPlan, copy_plan
from autotune.tuner.plan.network_tuner import record_copied_plan
from autotune.tuner.plan.plan_descent import PlanDescent
from autotune.tuner.plan.plan_moves import PlanState
from autotune.tuner.plan.plan_timer import FINAL_ROUNDS, PlanTimer
from autotune.tuner.plan.settling import Settling
