"""A training step that is timed: the gradients of all parameters of a module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.registry import lookup_backend
from torch.utils._pytree import tree_leaves

from autotune.ir import NetworkKey
from autotune.measure import Result
from autotune.runtime import Candidate, candidate
from fused_resnet.training.compile import Compiled, compile_step, trainable
from fused_resnet.training.kernels.bound_problem import BoundProblem, Key, bound, counted_calls
from fused_resnet.training.kernels.winners import Winners
from tuning_db import Store
from tuning_db.plan_choices import plan_choice
from tuning_db.schema import Device, PlanRow


@dataclass(frozen=True)
class TrainedModule:
    """A module and what a step computes with it.

    Attributes:
        module: The module, in training mode, on the device.
        inputs: Its inputs.
        autocast: The dtype of torch.autocast; None without.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    autocast: torch.dtype | None = None

    @property
    def device(self) -> torch.device:
        """The device that the step runs on."""
        return self.inputs[0].device

    def tuned(self, winners: Winners) -> Compiled:
        """Return the forward pass on tuned kernels, which is compiled by now or when it is called."""
        return trainable(self.module, winners, self.device, graph=False)

    def compiled(self) -> Compiled:
        """Return the forward pass as torch.compile runs it, which is compiled by now or when it is called."""
        compiled: Compiled = torch.compile(self.module, dynamic=False)
        return compiled


@dataclass(frozen=True)
class TrainedGraph(TrainedModule):
    """A graph of Dynamo and what a step computes with it; its parameters are among its inputs."""

    module: fx.GraphModule

    @classmethod
    def of(cls, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> TrainedGraph:
        """Return a graph with random inputs like Dynamo's examples; the autocast is that of now."""
        inputs = tuple(_random(one) if isinstance(one, torch.Tensor) else one for one in example_inputs)
        device = next(one.device.type for one in inputs if isinstance(one, torch.Tensor))
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return cls(graph_module, inputs, autocast)

    @property
    def device(self) -> torch.device:
        """The device that the step runs on."""
        return next(one.device for one in self.inputs if isinstance(one, torch.Tensor))

    def tuned(self, winners: Winners) -> Compiled:
        """Return the forward pass on tuned kernels."""
        return compile_step(copy.deepcopy(self.module), self.inputs, winners, self.device, graph=False)

    def compiled(self) -> Compiled:
        """Return the forward pass as torch.compile runs it; raises what Inductor raises."""
        inductor: Callable[..., Compiled] = lookup_backend("inductor")
        return inductor(copy.deepcopy(self.module), list(self.inputs))


def _random(example: torch.Tensor) -> torch.Tensor:
    """Return a tensor with values: zeros for integers, which are valid as indices, and weights that keep a variance."""
    made = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
    if not made.is_floating_point():
        return made.zero_()
    if not example.requires_grad:
        return made.uniform_()
    fan_in = made[0].numel() if made.dim() > 1 else 1
    return made.normal_(std=fan_in**-0.5).requires_grad_()


class Step:
    """A step as one call, which computes the gradients of all parameters.

    Args:
        trained: The module.
        forward: Its forward pass, such as the module itself.
    """

    def __init__(self, trained: TrainedModule, forward: Callable[..., Any]) -> None:
        self._trained, self._forward = trained, forward
        leaves = [one for one in (*trained.module.parameters(), *trained.inputs) if isinstance(one, torch.Tensor)]
        self._parameters = [one for one in leaves if one.requires_grad]

    def __call__(self) -> None:
        """Run the step; the gradients are not kept."""
        device, dtype = self._trained.device.type, self._trained.autocast
        with torch.enable_grad():
            with torch.autocast(device, dtype, enabled=dtype is not None):
                found = tree_leaves(self._forward(*self._trained.inputs))
            results = [one for one in found if isinstance(one, torch.Tensor) and one.requires_grad]
            ones = [torch.ones_like(one) for one in results]
            torch.autograd.grad(results, self._parameters, ones, allow_unused=True)


class TunedStep(Step):
    """A compiled step on tuned kernels, which can be exchanged.

    Args:
        trained: The module.
        winners: The kernels.

    Attributes:
        calls: What the step asks kernels for, and how often.
    """

    def __init__(self, trained: TrainedModule, winners: Winners) -> None:
        super().__init__(trained, trained.tuned(winners))
        self()  # compiles it
        with counted_calls() as calls:
            self()
        self.calls = dict(calls)

    def kernels(self) -> dict[Key, BoundProblem]:
        """Return the kernels that the next call runs."""
        return {at: bound(*at) for at in self.calls}


def record_step(
    store: Store,
    row: Device,
    key: NetworkKey,
    result: Result,
    kernels: Mapping[Key, BoundProblem],
    **details: object,
) -> PlanRow:
    """Record the plan of a step in place of the one before; kernels of which no time is stored are left out.

    Args:
        store: The database.
        row: The device.
        key: The key of the plan.
        result: The time of the step.
        kernels: The kernels that it runs.
        details: Further details of the plan.
    """
    entries = [_entry(store, row, at[0], kernel.candidate) for at, kernel in kernels.items()]
    return store.replace_plan(
        store.plan(row, str(key)),
        device_id=row.id,
        network=str(key),
        median_us=result.median_us,
        spread_us=result.spread_us,
        choices=[entry for entry in entries if entry],
        details={"samples_us": result.samples_us, "alternatives": [], **details},
    )


def _entry(store: Store, row: Device, problem: str, chosen: Candidate) -> dict[str, Any] | None:
    """Return the entry of a problem in the database's plan; None if no time of its kernel is stored."""
    for measured in store.ranking(row, problem):
        if candidate(store, measured.kernel, measured.launch) == chosen:
            return plan_choice(problem, measured.kernel_id, chosen.launch, measured.median_us)
    return None
