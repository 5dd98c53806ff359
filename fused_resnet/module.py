"""FusedResNet: a network as an nn.Module that runs on tuned kernels."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from autotune.core import CaptureError
from autotune.ir import BYTE_PRECISIONS
from fused_resnet import torch_op
from fused_resnet.call import module_state, take_apart
from fused_resnet.model_source import Captured, check_precision
from fused_resnet.networks import se_resnet9_fixup
from fused_resnet.options import RunKeywords, RunOptions
from fused_resnet.planned_module import PlannedModule
from fused_resnet.torch_op import InputError
from fused_resnet.weight_changes import watch_optimizers
from tuning_db import public_keys

if TYPE_CHECKING:
    from autotune.runtime import NetworkPlan
    from fused_resnet.explain import Explanation
    from fused_resnet.memory import MemoryReport

__all__ = ["FusedResNet", "InputError"]

_PER_OBJECT = ("_avoided", "_cache", "_captured_plans", "_lock", "_num_compiled", "_number", "_positions", "_trainable")
"""State of one object in one process: a copy or an unpickled module begins without it."""


class FusedResNet(PlannedModule):
    """A network for inference on the fastest kernels that a tuning database holds for it.

    `forward` takes (N, in_channels, 64, 64) on the module's device and in its dtype, contiguous or channels last, and
    returns (N, 512, 2, 2), channels last. The first call with a new shape binds a plan, which takes a moment. A layer
    without tuned kernels for this batch size runs on the nearest candidate that is correct, at worst on torch's
    operators, and a warning says so. Where nothing is tuned, torch's compiler (Inductor) compiles the network at the
    first call with a new shape. In training mode the module is the plain network. Its state_dict is that of the
    plain network, `networks.se_resnet9_fixup`.

    docs/guide/use-in-torch.md describes the behavior with streams, threads, processes, autocast and tracers;
    call_cache.py the states that an input goes through.

    Args:
        tuning_db: Path or URL of a database made by `autotune tune`.
        model: Name of the network, as in `autotune tune`; `from_model` takes any module.
        in_channels: Number of channels of the input.
        options: Those of `fused_resnet.RunOptions`. The precisions "int8" and "fp8" need `from_model`.

    Raises:
        DatabaseError: The database does not exist, cannot be read, or is not signed by one of the keys.
        InputError: The precision is not available for the model.
        UnknownNameError: There is no model or precision of this name.
    """

    def __init__(
        self,
        tuning_db: str | os.PathLike[str],
        model: str | Captured = "se_resnet9_fixup",
        in_channels: int = 3,
        **options: Unpack[RunKeywords],
    ) -> None:
        super().__init__()
        if not isinstance(tuning_db, str | os.PathLike):
            raise InputError(f"tuning_db is {tuning_db!r}: give the path or URL of a database made by `autotune tune`")
        chosen = RunOptions(**options)
        self.tuning_db, self.trusted_keys = os.fspath(tuning_db), public_keys(chosen.trusted_keys)
        with self._database():
            pass  # a database that cannot be read raises here rather than at the first call
        watch_optimizers()
        if isinstance(model, str):
            if chosen.precision in BYTE_PRECISIONS:  # the weights are not loaded yet
                raise InputError(
                    f"precision='{chosen.precision}' is for FusedResNet.from_model, which gets the model with its "
                    f"weights: from_model(networks.se_resnet9_fixup.build(...), precision='{chosen.precision}', "
                    "calibration=...)"
                )
            check_precision(chosen.precision, chosen.calibration)
            self._source = Captured(se_resnet9_fixup.build(model, in_channels), model, chosen.precision)
        else:
            self._source = model
        self._cuda_graphs, self._max_plans, self._compile = chosen.cuda_graphs, chosen.max_plans, chosen.compile
        self._format_name = str(chosen.memory_format)  # a name, because torch.save cannot store a torch.memory_format
        self._share_tensors(self._source.module)
        add_hook: Callable[..., object] = self.register_load_state_dict_post_hook
        add_hook(_rebind)
        self._begin()
        self.eval()

    def _share_tensors(self, plain: nn.Module) -> None:
        """Make the parameters, buffers and submodules of the plain network those of this module.

        Both modules then hold the very same dictionaries: names in the state_dict have no prefix, and a tensor that is
        replaced in one module is replaced in the other.
        """
        self._parameters, self._buffers = plain._parameters, plain._buffers
        self._modules, self._non_persistent_buffers_set = plain._modules, plain._non_persistent_buffers_set

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        tuning_db: str | os.PathLike[str],
        replace: Mapping[str, nn.Module] | None = None,
        name: str = "",
        **options: Unpack[RunKeywords],
    ) -> FusedResNet:
        """Return a copy of any module for inference, with the same state_dict, on tuned kernels.

        Operations without kernels run on torch's operators; `explain` lists them. docs/guide/any-model.md describes
        what can be captured, docs/guide/precision.md the precisions.

        Args:
            model: The module, in eval mode; it is copied, not changed.
            tuning_db: Path or URL of a database made by `autotune tune`.
            replace: Replacement for each submodule whose path matches a pattern (`*` matches any text): a module, or
                `fused_resnet.Activation` for an epilogue step of your own.
            name: Name of the model in messages; its class name by default.
            options: Those of `fused_resnet.RunOptions`.

        Raises:
            CaptureError: The module cannot be captured; the message names the submodule.
            DatabaseError: The database does not exist or cannot be read.
            InputError: `precision` and `calibration` do not fit together or do not fit the module.
            UnknownNameError: There is no precision of this name.
        """
        chosen = RunOptions(**options)
        source = Captured.of(plain_of(model), replace or {}, name, chosen.precision, chosen.calibration)
        return cls(tuning_db, source, **options)

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__.get("_source")
        return getattr(source.module, name) if source and _defines(source.module, name) else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the plain network, which its forward may read, or else of this module."""
        source = self.__dict__.get("_source")
        if source and _defines(source.module, name) and name not in self.__dict__ and not hasattr(FusedResNet, name):
            setattr(source.module, name, value)
        else:
            super().__setattr__(name, value)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Return a table of the kernel that runs each layer for calls like this one, why, and how fast it is.

        print() shows it; iterating over it yields its rows.

        Raises:
            InputError: The shape, dtype or device of an input does not fit.
        """
        from fused_resnet.explain import explain

        plan, memory = self._planned(*args, **kwargs)
        with self._database() as store:
            return explain(plan, store, memory)

    def memory(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """Return the memory that this module needs for calls like this one, without allocating that of the call.

        The weights are packed, if they were not. print() shows the report.

        Raises:
            InputError: The shape, dtype or device of an input does not fit.
        """
        return self._planned(*args, **kwargs)[1]

    def _planned(self, *args: Any, **kwargs: Any) -> tuple[NetworkPlan, MemoryReport]:
        """Return the plan for calls like this one, and the memory that it needs."""
        from fused_resnet.memory import memory_report

        arguments, inputs = take_apart(self._positions, args, kwargs)
        if not self._cache.state.unchanged():
            self._discard(self._cache)
        with self._lock:
            taken, cache = self._taken(inputs), self._cache
            plan = cache.plan(taken, arguments) or self._bind(taken, arguments)
            cache.keep(taken, arguments, plan, self._max_plans)
        return plan, memory_report(plan, cache.constants, module_state(self._plain))

    def _apply(self, *args: Any, **kwargs: Any) -> FusedResNet:
        apply: Callable[..., object] = super()._apply
        apply(*args, **kwargs)
        self.rebind()
        return self

    def _replicate_for_data_parallel(self) -> FusedResNet:
        """Return torch.nn.DataParallel's copy for one GPU and one call; it shares the plans that are bound here."""
        if not self._cache.state.unchanged():
            self.rebind()
        replicate: Callable[[], FusedResNet] = super()._replicate_for_data_parallel
        return replicate()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _PER_OBJECT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore: Callable[[dict[str, Any]], None] = super().__setstate__
        restore(state)
        self._begin()


def plain_of(model: Any) -> Any:
    """Return the plain network of a FusedResNet, and anything else as it is.

    Raises:
        CaptureError: A part of the model is a FusedResNet.
    """
    if isinstance(model, FusedResNet):
        return model._plain
    parts = model.named_modules() if isinstance(model, nn.Module) else ()
    for name, part in parts:
        if isinstance(part, FusedResNet):
            raise CaptureError(f"'{name}' is a FusedResNet: give the model with the module that it was made from")
    return model


def _defines(module: nn.Module, name: str) -> bool:
    """Return whether a module or its class has an attribute of its own of this name."""
    return name in vars(module) or (hasattr(type(module), name) and not hasattr(nn.Module, name))


def _rebind(module: nn.Module, _: object) -> None:
    """Bind anew after load_state_dict. Pickled modules refer to this hook by its name."""
    assert isinstance(module, FusedResNet)
    module.rebind()


def _after_fork() -> None:
    """Replace all locks in a forked process: a lock that another thread of the parent held is never released there."""
    for module in torch_op.networks():
        assert isinstance(module, FusedResNet)
        module._lock = threading.RLock()
        for context in module._cache.contexts.values():
            context.memory.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
