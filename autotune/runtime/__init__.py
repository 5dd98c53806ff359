"""From records and a database to launches. Needs no compiler and no Jinja."""

from autotune.runtime.activations import ActivationPlace, activation_places, activations, make_buffers, place
from autotune.runtime.binding import Binary, BoundStep, Candidate, TensorSlot, bind, candidate
from autotune.runtime.captured_layers import CapturedLayers
from autotune.runtime.executor import ACCESS, ExecutionContext, StreamMemory, close, count
from autotune.runtime.memory_planner import aligned
from autotune.runtime.network_plan import (
    BoundLayer,
    NetworkPlan,
    bind_layer,
    caller_slots,
    execute,
    make_graph,
    make_runs,
)
from autotune.runtime.other_sizes import (
    OtherPlan,
    batches,
    differs_in_batch_alone,
    plan_for_other_size,
)
from autotune.runtime.result_layouts import conversions, has_two_orders
from autotune.runtime.selection import (
    CANDIDATES,
    KernelChoice,
    Ranking,
    choices,
    faster_alternatives,
    rankings,
    shortlist,
    usable_devices,
)
from autotune.runtime.shared_constants import SharedConstants
from autotune.runtime.torch_capture import CapturePlace, TorchGraph
