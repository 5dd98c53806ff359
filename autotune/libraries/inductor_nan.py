"""Keeps NaN in code that Inductor makes for a CPU: activations that oneDNN would apply without it.

Freezing gives convolutions to oneDNN together with the activation that follows. oneDNN's relu, hardtanh and hardsigmoid
are the maximum of a number and the value, which is the number if the value is NaN. So a network that diverged has
finite results. Its other activations keep NaN. The pass writes these three so that Inductor does not recognize them:
oneDNN computes the convolution, and Inductor's own code, which keeps NaN, the activation.

This module imports torch._inductor: it is imported when something is compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

_NUMBER = (int, float)


class KeepNan(CustomGraphPass):
    """Writes relu as clamp_min, and a clamp of both sides as that of the upper side first."""

    def __call__(self, graph: fx.Graph) -> None:
        """Change a graph after its operators were decomposed, before Inductor looks for what oneDNN can join."""
        aten = torch.ops.aten
        for node in graph.nodes:
            if node.target is aten.relu.default:
                node.target, node.args = aten.clamp_min.default, (node.args[0], 0)
            elif node.target is aten.clamp_max.default and _is_clamp(node):
                lower, high = node.args
                x, low = lower.args
                with graph.inserting_before(node):
                    lowered = graph.call_function(aten.clamp_max.default, (x, high))
                    lowered.meta.update(lower.meta)
                node.target, node.args = aten.clamp_min.default, (lowered, low)
                if not lower.users:
                    graph.erase_node(lower)

    def uuid(self) -> Any:
        """Return what identifies the pass in torch's cache of compiled graphs."""
        return get_hash_for_files((__file__,))


def _is_clamp(node: fx.Node) -> bool:
    """Return whether a clamp_max takes a clamp_min, with the same result in the other order.

    That of hardswish is a factor, which is NaN if the other one is: oneDNN's hardswish keeps NaN.
    """
    lower = node.args[0]
    if not isinstance(lower, fx.Node) or lower.target is not torch.ops.aten.clamp_min.default:
        return False
    low, high = lower.args[1], node.args[1]
    is_ordered = isinstance(low, _NUMBER) and isinstance(high, _NUMBER) and low <= high
    return is_ordered and all(user.target is not torch.ops.aten.mul.Tensor for user in node.users)
