"""FusedResNet: a network as an nn.Module that runs on tuned kernels."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from autotune.problem import dtype_name
from fused_resnet.graph import Network
from fused_resnet.plan import Plan
from fused_resnet.source import Captured, InputError, Named, Source, state
from tuning_db import Store

Tracked = tuple[Mapping[str, torch.Tensor | None], str, torch.Tensor, int]
"""A module's parameters or buffers, the name of one, and what it was, with its version, when plans were bound."""


class FusedResNet(nn.Module):
    """A network for inference on the fastest kernels that a tuning database holds for it.

    Args:
        tuning_db: path of a database made by scripts/tune.py.
        model: the network's name, as scripts/tune.py takes it; `from_model` takes any module.
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
        model: str | Source = "se_resnet9_fixup",
        in_channels: int = 3,
        graph: bool = True,
    ) -> None:
        super().__init__()
        with Store.open(tuning_db):
            pass  # a file that cannot be used should say so here
        self.tuning_db = os.fspath(tuning_db)
        self.graph = graph
        source = Named(model, in_channels) if isinstance(model, str) else model
        self.__dict__["_source"] = source  # its module is no submodule: the two have the same parts
        for parts in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[parts] = getattr(source.module, parts)
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self.rebind()
        self.register_load_state_dict_post_hook(_rebind)
        self.eval()

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        tuning_db: str | os.PathLike[str],
        replace: Mapping[str, nn.Module] | None = None,
        name: str = "",
        graph: bool = True,
    ) -> FusedResNet:
        """A copy of any module for inference, with its state_dict and its results, on tuned kernels.

        replace: paths of submodules, with `*` for any text, and what to put there: a module, or
        `fused_resnet.Activation` for a step of your own. name: for messages. What has no kernels runs on torch's
        operators; `explain` says which. docs/any-model.md. Raises CaptureError with the path of the submodule.
        """
        return cls(tuning_db, Captured.of(model, replace or {}, name), graph=graph)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the network: (N, in_channels, 64, 64) -> (N, 512, 2, 2)."""
        if self.training:
            return self._plain.train()(x)
        return self._plan(x).run(x if x.is_contiguous() else x.contiguous())

    @property
    def _plain(self) -> nn.Module:
        """The network in plain torch, on this module's parameters."""
        return self._source.module

    @property
    def _source(self) -> Source:
        return self.__dict__["_source"]

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

    def network(self, x: torch.Tensor) -> Network:
        """The layers, and alternatives to them, for inputs like x; raises InputError or CaptureError."""
        return self._source.network(tuple(x.shape), dtype_name(x.dtype))

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
        weight = next(self.parameters(), x)
        if x.device != weight.device:
            raise InputError(f"the input is on {x.device}, the module on {weight.device}: move one with .to()")
        if x.dtype != weight.dtype:
            raise InputError(f"the input is {x.dtype}, the module {weight.dtype}: convert one with .to()")

    def _bind(self, x: torch.Tensor) -> Plan:
        wanted = self.network(x)
        with Store.open(self.tuning_db) as store, torch.no_grad():
            plan = Plan(wanted, state(self), store, x.device, self.graph)
        sources = Counter(bound.choice.source for bound in plan.bound)
        if other := {source: count for source, count in sources.items() if source != "tuned"}:
            listed = ", ".join(f"{count} from '{source}'" for source, count in other.items())
            warnings.warn(
                f"{self.tuning_db} is not tuned for batch {x.shape[0]} of {self._source.name} in {x.dtype} on this "
                f"device: of {len(wanted.layers)} layers {listed}; tune it with scripts/tune.py --batch {x.shape[0]}",
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
    """All tensors that tell when they change; those made in inference mode count no versions."""
    return [
        (tensors, name, tensor, tensor._version)
        for owner in module.modules()
        for tensors in (owner._parameters, owner._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and not tensor.is_inference()
    ]


def _rebind(module: nn.Module, _: object) -> None:
    assert isinstance(module, FusedResNet)
    module.rebind()
