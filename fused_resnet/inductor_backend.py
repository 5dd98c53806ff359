"""Inductor as the backend of graphs that torch's operators run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from autotune.core import in_one_line

Compiled = Callable[..., Any]


def by_inductor(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """Return Inductor's callable for a graph of Dynamo, or the graph itself if Inductor cannot compile here.

    Args:
        graph_module: The graph.
        example_inputs: Dynamo's example of each argument.
    """
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.exc import RestartAnalysis

    try:
        inductor: Callable[..., Compiled] = lookup_backend("inductor")
        return inductor(graph_module, list(example_inputs))
    except RestartAnalysis:
        raise  # a request to Dynamo
    except Exception as error:  # no C++ compiler, no Triton, or a failure of Inductor
        warnings.warn(f"Inductor cannot compile a graph, which runs without it: {in_one_line(error)}", stacklevel=3)
        return graph_module.forward
