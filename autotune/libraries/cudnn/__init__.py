"""cuDNN: execution plans of its graph API, through its Python package, and its classic convolution algorithms.

- library: the Python package and its handle.
- graph: a problem as a cuDNN graph.
- plans: all execution plans of a problem.
- stored: plans in databases.
- classic: the numbered algorithms of the older API, which need no package.
"""

from autotune.libraries.cudnn.library import PACKAGE, library, versions
from autotune.libraries.cudnn.plans import ExecutionPlan, FoundPlans, find_plans
from autotune.libraries.cudnn.stored import SerializedPlan, SerializedPlans, bind, offers, summary
from autotune.libraries.cudnn_names import FAMILY, KIND
