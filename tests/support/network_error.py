"""The result of a captured network on torch's operators, and its error."""

import copy

import torch
from comparison import relative_error

from autotune.runtime import ExecutionContext, NetworkPlan
from fused_resnet.call import module_state


def result_on_torch(network, model, x, store):
    """Return a network's result on torch's operators."""
    plan = NetworkPlan(network, module_state(model), store, torch.device("cpu"), graph=False)
    context = ExecutionContext(plan, graph=False)
    y = torch.full_like(context.template, float("nan"))
    context.run([x], [y], stream=0)
    return y


def network_error(network, model, x, store):
    """Return the relative error of a network's result on torch's operators to that of its model in float64."""
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
    return relative_error(result_on_torch(network, model, x, store), expected)
