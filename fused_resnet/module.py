"""FusedResNet: a network as an nn.Module that runs on tuned kernels."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

from autotune.errors import AutotuneError
from autotune.problem import dtype_name
from fused_resnet import reference
from fused_resnet.graph import network
from fused_resnet.plan import Plan
from tuning_db import Store


class InputError(AutotuneError, ValueError):
    """An input that the network cannot take."""


Tracked = tuple[dict[str, nn.Parameter | None], str, nn.Parameter, int]
"""A module's parameters, the name of one, and what it was, with its version, when plans were bound."""


class FusedResNet(nn.Module):
    """A network for inference on the fastest kernels that a tuning database holds for it.

    Args:
        tuning_db: path of a database made by scripts/tune.py.
        model: the network's name, as scripts/tune.py takes it.
        in_channels: channels of the input.
        graph: on a GPU, replay the network as a CUDA graph.

    The state_dict is that of the plain network (fused_resnet.reference). `forward` takes (N, in_channels, 64, 64) on
    the module's device and in its dtype, and returns (N, 512, 2, 2). Each new shape binds a plan, which takes a moment
    the first time. What the database does not have runs on the nearest that is right, at worst on torch's operators,
    and is named in a warning. In training mode the module is the plain network. Raises DatabaseError and InputError.
    """

    def __init__(
        self,
        tuning_db: str | os.PathLike[str],
        model: str = "se_resnet9_fixup",
        in_channels: int = 3,
        graph: bool = True,
    ) -> None:
        super().__init__()
        with Store.open(tuning_db):
            pass  # a file that cannot be used should say so here
        self.tuning_db = os.fspath(tuning_db)
        self.model, self.in_channels, self.graph = model, in_channels, graph
        plain = reference.build(model, in_channels)
        for name, child in plain.named_children():
            self.add_module(name, child)
        self.__dict__["_reference"] = plain  # not a submodule: its parameters are ours already
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self.rebind()
        self.register_load_state_dict_post_hook(_rebind)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the network: (N, in_channels, 64, 64) -> (N, 512, 2, 2)."""
        if self.training:
            return self._plain.train()(x)
        return self._plan(x).run(x if x.is_contiguous() else x.contiguous())

    @property
    def _plain(self) -> nn.Module:
        """The network in plain torch, on this module's parameters."""
        return self.__dict__["_reference"]

    def rebind(self) -> None:
        """Forget all plans; the next call binds anew. Needed only after weights were changed behind autograd's back."""
        self._plans.clear()
        self._tracked: list[Tracked] = []

    def explain(self, x: torch.Tensor) -> list[tuple[str, str, str, float | None]]:
        """What runs each layer for inputs like x: (layer, candidate, where it comes from, its tuned time in us)."""
        return [
            (bound.layer.name, str(bound.choice.candidate), bound.choice.source, bound.choice.expected_us)
            for bound in self._plan(x).bound
        ]

    def _plan(self, x: torch.Tensor) -> Plan:
        for owner, name, parameter, version in self._tracked:
            if owner[name] is not parameter or parameter._version != version:
                self.rebind()
                break
        key = (x.shape, x.dtype, x.device)
        plan = self._plans.get(key)
        if plan is None:
            self._check(x)
            plan = self._plans[key] = self._bind(x)
            self._tracked = _tracked(self)
        return plan

    def _check(self, x: torch.Tensor) -> None:
        size = int(self._plain.input_size)  # type: ignore[arg-type]
        if x.dim() != 4 or x.shape[1:] != (self.in_channels, size, size) or not x.shape[0]:
            wanted = f"(N, {self.in_channels}, {size}, {size})"
            raise InputError(f"the input has shape {tuple(x.shape)}; {self.model} takes {wanted} with N of at least 1")
        weight = next(self.parameters())
        if x.device != weight.device:
            raise InputError(f"the input is on {x.device}, the module on {weight.device}: move one with .to()")
        if x.dtype != weight.dtype:
            raise InputError(f"the input is {x.dtype}, the module {weight.dtype}: convert one with .to()")

    def _bind(self, x: torch.Tensor) -> Plan:
        wanted = network(self.model, x.shape[0], self.in_channels, dtype_name(x.dtype))
        with Store.open(self.tuning_db) as store, torch.no_grad():
            plan = Plan(wanted, self.state_dict(), store, x.device, self.graph)
        sources = Counter(bound.choice.source for bound in plan.bound)
        if other := {source: count for source, count in sources.items() if source != "tuned"}:
            listed = ", ".join(f"{count} from '{source}'" for source, count in other.items())
            warnings.warn(
                f"{self.tuning_db} is not tuned for batch {x.shape[0]} of {self.model} in {x.dtype} on this device: "
                f"of {len(wanted.layers)} layers {listed}; tune it with scripts/tune.py --batch {x.shape[0]}",
                stacklevel=6,  # past torch's two frames around forward
            )
        return plan

    def _apply(self, *args: Any, **kwargs: Any) -> FusedResNet:
        result = super()._apply(*args, **kwargs)
        self.rebind()
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}, "_tracked": []}


def _tracked(module: nn.Module) -> list[Tracked]:
    """All parameters that tell when they change; those made in inference mode count no versions."""
    return [
        (owner._parameters, name, parameter, parameter._version)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None and not parameter.is_inference()
    ]


def _rebind(module: nn.Module, _: object) -> None:
    assert isinstance(module, FusedResNet)
    module.rebind()
