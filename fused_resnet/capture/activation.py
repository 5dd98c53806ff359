"""Custom epilogue steps as modules, which replace activations of a model. Their parameters are the module's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from autotune.core import CaptureError, ProblemError
from autotune.ir import full_name, register_step
from autotune.ir.epilogue_steps import STEPS
from fused_resnet.capture.export import tracing


@torch.library.custom_op("autotune::step", mutates_args=())
def _step(x: torch.Tensor, name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute a custom step; a traced Activation is this one operation."""
    return _apply(x, name, values).clone()


@_step.register_fake
def _(x: torch.Tensor, name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.empty_like(x)


def _apply(x: torch.Tensor, name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    channels_last = x.movedim(1, -1) if x.dim() > 2 else x
    y = STEPS[name].torch(channels_last, *values)
    return y.movedim(-1, 1) if x.dim() > 2 else y


class Activation(nn.Module):
    """A custom epilogue step (autotune.ir.epilogue_steps.define_step) as a module on tensors (n, channels, ...).

    Args:
        step: Name of the step.
        **values: Initial values of its parameters by name: a number for a "scalar", a tensor (channels,) for a
            "channel". They become parameters of the module.

    Raises:
        ProblemError: The step is not custom, or the values do not fit its parameters.
    """

    def __init__(self, step: str, **values: float | torch.Tensor) -> None:
        super().__init__()
        self.step = full_name(step)
        definition = STEPS[self.step].custom
        if definition is None:
            raise ProblemError(f"step '{step}' is built in, not custom: use the module of torch that computes it")
        self.definition = definition
        kinds = dict(definition.params)
        if set(values) != set(kinds):
            raise ProblemError(
                f"step '{step}' takes the values {', '.join(kinds) or 'none'}; given: {', '.join(values) or 'none'}"
            )
        for name, kind in kinds.items():
            value = torch.as_tensor(values[name], dtype=torch.float32).clone()
            if value.dim() != (kind == "channel"):
                wanted = "a number" if kind == "scalar" else "a tensor of shape (channels,)"
                raise ProblemError(f"step '{step}': {name} must be {wanted}; given: shape {tuple(value.shape)}")
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the step to every element."""
        values = [getattr(self, name) for name, _ in self.definition.params]
        return torch.ops.autotune.step(x, self.step, values) if tracing.get() else _apply(x, self.step, values)

    def extra_repr(self) -> str:
        """Return the step's name."""
        return self.step

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore: Callable[[dict[str, Any]], None] = super().__setstate__
        restore(state)
        register_step(self.definition)


def replace(model: nn.Module, replacements: Mapping[str, nn.Module]) -> None:
    """Replace the submodules whose path matches a pattern, such as "layer1.*.relu", in place.

    Args:
        model: The model.
        replacements: Module for each pattern; `*` matches any text, including dots. Each match gets a copy of the
            module, with parameters of its own.

    Raises:
        CaptureError: A pattern matches no submodule, or these are not modules by patterns.
    """
    if not isinstance(replacements, Mapping):
        raise CaptureError(f"replace is {replacements!r}: give a dictionary, such as {{'a.*.relu': torch.nn.SiLU()}}")
    first = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), torch.empty(0))
    for pattern, module in replacements.items():
        if not isinstance(pattern, str) or not isinstance(module, nn.Module):
            raise CaptureError(
                f"replace has {pattern!r}: {module!r}; give a path and a module, such as 'a.*.relu': torch.nn.SiLU()"
            )
        places = [
            name for name, _ in model.named_modules(remove_duplicate=False) if name and fnmatchcase(name, pattern)
        ]
        if not places:
            activations = [name for name, part in model.named_modules() if name and not list(part.parameters())]
            listed = ", ".join(activations[:5]) or "none"
            raise CaptureError(
                f"no submodule matches '{pattern}': give the path of one; the first without parameters are {listed}"
            )
        for place in places:
            parent, _, name = place.rpartition(".")
            setattr(model.get_submodule(parent), name, copy.deepcopy(module).to(first.device, first.dtype))
