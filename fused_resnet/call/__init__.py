"""A call of a FusedResNet: its arguments and tensors, the module's state, the cache of plans, and the result."""

from fused_resnet.call.arguments import ONE_TENSOR, Signature, check_arguments, positions, put_together, take_apart
from fused_resnet.call.call_cache import CallCache, is_contiguous
from fused_resnet.call.input_tensors import autocast, check_input, current_stream
from fused_resnet.call.module_state import module_state
from fused_resnet.call.plain_call import is_plain
from fused_resnet.call.result import Leaf, Result, joint
from fused_resnet.call.result_tensors import converted, empty_result, fits, in_torch_order, mark_written
