"""cuDNN: its execution plans, through its graph API and its Python package, and its classic convolution algorithms.

library: the package and its handle. graph: a problem as a graph. plans: every plan, built, with what it is.
stored: a plan from a database. classic: the numbered algorithms of the older API, which need no package.
"""

from autotune.libraries.cudnn.library import PACKAGE, library, versions
from autotune.libraries.cudnn.plans import ExecutionPlan, FoundPlans, find_plans
from autotune.libraries.cudnn.stored import SerializedPlan, SerializedPlans, bind, offers, summary
from autotune.libraries.cudnn_names import FAMILY, KIND

__all__ = [
    "FAMILY",
    "KIND",
    "PACKAGE",
    "ExecutionPlan",
    "FoundPlans",
    "SerializedPlan",
    "SerializedPlans",
    "bind",
    "find_plans",
    "library",
    "offers",
    "summary",
    "versions",
]
