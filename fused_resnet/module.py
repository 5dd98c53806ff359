"""FusedResNet: a network as an nn.Module that runs on tuned kernels."""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autotune.ir import Network, dtype_name
from autotune.runtime import ACCESS, ExecutionContext, NetworkPlan, close, count, engine
from fused_resnet import torch_op
from fused_resnet.model_source import Captured, ModelSource, Named
from fused_resnet.module_state import module_state
from fused_resnet.torch_op import InputError
from tuning_db import reader

if TYPE_CHECKING:
    from fused_resnet.explain import Explanation

__all__ = ["FusedResNet", "InputError"]

Key = tuple[torch.Size, torch.dtype, torch.device, bool | None, int]
"""What a frame is for: the input's shape, dtype, device, order (which is known), and the stream's handle."""

_PARTS = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")
_OWN = ("_frames", "_calls", "_held", "_binding", "_watch", "_number")
"""What belongs to one object in one process: copies and pickles begin without it."""

_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
# Both are absent where torch has no CUDA.
_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")
_GLOBAL_HOOKS: list[Mapping[int, object]] = [getattr(nn.modules.module, f"_global_{name}_hooks") for name in _HOOKS]
_exchange: object = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
"""DLPack's C functions for tensors, from torch 2.10 on."""


class FusedResNet(nn.Module):
    """A network for inference on the fastest kernels that a tuning database holds for it.

    Args:
        tuning_db: path of a database made by scripts/tune.py.
        model: the network's name, as scripts/tune.py takes it; `from_model` takes any module.
        in_channels: channels of the input.
        precision: "tf32" for a float32 module whose products may be rounded to TF32; from_model knows "int8", too.
        graph: on a GPU, replay the network as a CUDA graph.
        plans: how many plans are kept, the last used ones: one for each shape and, on a GPU, stream.

    The state_dict is that of the plain network (networks.se_resnet9_fixup). `forward` takes (N, in_channels, 64, 64) on
    the module's device and in its dtype, contiguous or channels last, and returns (N, 512, 2, 2), channels last. Each
    new shape binds a plan, which takes a moment the first time. What the database does not have runs on the nearest
    that is right, at worst on torch's operators, and is named in a warning. In training mode the module is the plain
    network. docs/guide/use-in-torch.md says how it behaves among streams, threads, processes, autocast and tracers.
    Raises DatabaseError and InputError.
    """

    _frames: dict[Key, ExecutionContext]

    def __init__(
        self,
        tuning_db: str | os.PathLike[str],
        model: str | ModelSource = "se_resnet9_fixup",
        in_channels: int = 3,
        graph: bool = True,
        plans: int = 16,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        with reader(tuning_db):
            pass  # a file that cannot be used should say so here
        self.tuning_db = os.fspath(tuning_db)
        self.graph, self.plans = graph, plans
        source = Named(model, in_channels, precision) if isinstance(model, str) else model
        self.__dict__["_source"] = source  # its module is no submodule: the two are made of the same parts
        self.__dict__ |= {name: source.module.__dict__[name] for name in _PARTS}
        self.register_load_state_dict_post_hook(_rebind)
        self._start()
        self.eval()

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        tuning_db: str | os.PathLike[str],
        replace: Mapping[str, nn.Module] | None = None,
        name: str = "",
        graph: bool = True,
        plans: int = 16,
        precision: str | None = None,
        calibration: Iterable[Any] | Mapping[str, float] | None = None,
    ) -> FusedResNet:
        """A copy of any module for inference, with its state_dict and its results, on tuned kernels.

        replace: paths of submodules, with `*` for any text, and what to put there: a module, or
        `fused_resnet.Activation` for a step of your own. name: for messages. What has no kernels runs on torch's
        operators; `explain` says which. docs/guide/any-model.md. Raises CaptureError with the path of the submodule.

        precision: None for that of the module's dtype; "tf32", or "int8" with its `calibration`: batches of inputs that
        look like those to come, such as a DataLoader, or the scales that quantize.calibrate made of them.
        docs/guide/precision.md.
        """
        source = Captured.of(model, replace or {}, name, precision, calibration)
        return cls(tuning_db, source, graph=graph, plans=plans)

    # -- running ---------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """nn.Module's, or around it where nobody would notice: that is a tenth of what a call costs the host."""
        if len(args) == 1 and not kwargs and self._is_plain() and not torch_op.is_traced(args[0]):
            x = args[0]
            if not x.requires_grad and (y := self._calls.run(x, None)) is not None:
                return y
        return super().__call__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):  # another one, which no call must go around
            cls.__call__ = nn.Module.__call__  # type: ignore[method-assign]

    def _is_plain(self) -> bool:
        """Whether a call is `forward` in eval mode and nothing else: nobody has hooked or replaced it."""
        own = self.__dict__
        if own["training"] or "forward" in own or any(_GLOBAL_HOOKS):
            return False
        before = own["_forward_pre_hooks"] or own["_backward_pre_hooks"]
        return not (before or own["_forward_hooks"] or own["_backward_hooks"])

    def forward(
        self,
        x: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> torch.Tensor:
        """Run the network: (N, in_channels, 64, 64) -> (N, 512, 2, 2).

        out: a tensor for the result, which is returned; filled without a copy if it is channels last in memory.
        memory_format: that of the result where there is no `out`; torch.contiguous_format costs a copy.
        """
        if self.training:
            y = self._plain.train()(x)
        elif torch_op.is_traced(x):
            y = torch_op.call(self._cast(x), self._number)
        else:
            y = self.run(x, out)
        if out is not None:
            return out if y is out else out.copy_(y)
        return y if memory_format is torch.channels_last else y.contiguous(memory_format=memory_format)

    def run(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """What `forward` does in eval mode where nobody traces; the result is `out` if it could be filled directly."""
        if x.requires_grad:
            torch_op.refuse_gradient(x)
        known = self._calls.run(x, out)
        return self._run_new(x, out) if known is None else known

    def _run_new(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """The same for what the engine does not know yet, or cannot do itself."""
        stream = _raw_stream(x.get_device()) if x.is_cuda else 0
        calls = self._calls  # before its frames: should another thread rebind, these calls are no longer asked
        frame, taken = self._frames.get((x.shape, x.dtype, x.device, _order(x), stream)), x
        capturing = x.is_cuda and _is_capturing()
        if frame is None or capturing:
            if not self._watch.unchanged():
                self.rebind()
            calls = self._calls
            taken, frame = self._frame(x, stream)
        y = torch.empty_like(frame.template) if out is None or not _fits(out, frame.template) else out
        frame.run(taken, y, stream)
        # Looked at while the device works. A plan keeps what it reads, so that one of old weights may run in vain.
        if not self._watch.unchanged():
            self.rebind()
            return self.run(x, out)
        if frame.direct and taken is x and not capturing:
            calls.add(x, frame)
            if frame.closed:  # by another thread, meanwhile
                calls.drop(frame)
        return y

    def like_result(self, x: torch.Tensor) -> torch.Tensor:
        """An empty result for an input, for tracers."""
        dtype = _first(self, x).dtype
        one = self._source.output_shape((1, *map(int, x.shape[1:])), dtype_name(dtype))
        shape = (x.shape[0], *one[1:])  # the batch may be a symbol, which asking for it would fix
        if len(shape) != 4:
            return x.new_empty(shape, dtype=dtype)
        _, k, p, q = shape
        return x.new_empty_strided(shape, (p * q * k, 1, q * k, k), dtype=dtype)

    def explain(self, x: torch.Tensor) -> Explanation:
        """What runs each layer for inputs like x, and why: a table to print, or to go through row by row."""
        from fused_resnet.explain import explain

        _, frame, _ = self.frame(x)
        with reader(self.tuning_db) as store:
            return explain(frame, store)

    def frame(self, x: torch.Tensor) -> tuple[torch.Tensor, ExecutionContext, int]:
        """(x as it is taken, what runs it on the current stream, that stream's handle)."""
        if not self._watch.unchanged():
            self.rebind()
        stream = _raw_stream(x.get_device()) if x.is_cuda else 0
        return (*self._frame(x, stream), stream)

    @property
    def _plain(self) -> nn.Module:
        """The network in plain torch, on this module's parameters."""
        return self._source.module

    @property
    def _source(self) -> ModelSource:
        return self.__dict__["_source"]

    def network(self, x: torch.Tensor) -> Network:
        """The layers, and alternatives to them, for inputs like x; raises InputError or CaptureError."""
        return self._source.network(tuple(x.shape), dtype_name(x.dtype))

    # -- plans -----------------------------------------------------------------------------------------------

    def rebind(self) -> None:
        """Forget all plans; the next call binds anew. Needed only after weights were changed behind autograd's back."""
        with self._binding:  # what another thread binds by the old weights must be among those forgotten
            frames, calls = list(self._frames.values()), self._calls
            self._begin()
        close(frames, calls)

    def _start(self) -> None:
        """Begin without plans, as a new object or a copy."""
        self._begin()
        self._held: list[NetworkPlan] = []  # what was captured into graphs of others must stay where it is
        self._binding = threading.RLock()
        self._number = torch_op.register(self)

    def _begin(self) -> None:
        """Know no plan, and the weights as they are."""
        self._frames = {}
        self._watch = engine.Watch(_watched(self))
        self._calls = engine.Calls(_exchange, torch.empty_like, count, self._watch)

    def _frame(self, x: torch.Tensor, stream: int) -> tuple[torch.Tensor, ExecutionContext]:
        """(the input as a frame takes it, the frame for it); binds a plan where there is none."""
        x = self._cast(x)
        self._check(x)
        if _order(x) is None:
            x = x.contiguous()
        key = (x.shape, x.dtype, x.device, _order(x), stream)
        with self._binding:
            plan = next((frame.plan for other, frame in self._frames.items() if other[:-1] == key[:-1]), None)
            if x.is_cuda and _is_capturing():
                return x, self._captured(plan)
            if (known := self._frames.get(key)) is not None:
                return x, known
            plan = plan or self._bind(x)
            frame = ExecutionContext(plan, plan.graph)
            while len(self._frames) >= max(self.plans, 1):
                last = self._frames.pop(min(self._frames, key=lambda key: self._frames[key].used))
                close([last], self._calls)
            self._frames[key] = frame
            return x, frame

    def _captured(self, plan: NetworkPlan | None) -> ExecutionContext:
        """Memory of its own, from the pool of whoever captures, so that its replays meet no other run."""
        if plan is None:
            raise InputError(
                "nothing is bound for this input yet, and while a CUDA graph is being captured nothing can be: "
                "call the module once with such an input, and the weights as they are, before the capture"
            )
        self._held.append(plan)
        return ExecutionContext(plan, graph=False)

    def _cast(self, x: torch.Tensor) -> torch.Tensor:
        """Under autocast floating-point inputs of all dtypes are taken; the network runs in its own all the same."""
        kind = x.device.type
        if x.is_floating_point() and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            return x.to(_first(self, x).dtype)
        return x

    def _check(self, x: torch.Tensor) -> None:
        weight = _first(self, x)
        if x.device != weight.device:
            raise InputError(f"the input is on {x.device}, the module on {weight.device}: move one with .to()")
        if x.dtype != weight.dtype:
            raise InputError(f"the input is {x.dtype}, the module {weight.dtype}: convert one with .to()")

    def _bind(self, x: torch.Tensor) -> NetworkPlan:
        wanted = self.network(x)
        with reader(self.tuning_db) as store, torch.inference_mode(False), torch.no_grad():
            # Not this object's own tensors: torch.nn.DataParallel's replicas have none that go by a name.
            plan = NetworkPlan(wanted, module_state(self._plain), store, x.device, self.graph, not x.is_contiguous())
        sources = Counter(bound.choice.source for bound in plan.bound)
        if other := {source: count for source, count in sources.items() if source != "tuned"}:
            listed = ", ".join(f"{count} from '{source}'" for source, count in other.items())
            warnings.warn(
                f"{self.tuning_db} is not tuned for batch {x.shape[0]} of {self._source.name} in {x.dtype} on this "
                f"device: of {len(plan.bound)} layers {listed}; tune it with scripts/tune.py --batch {x.shape[0]}"
                + (f" --precision {self._source.precision}" if self._source.precision else ""),
                stacklevel=9,  # past our frame and torch's two around forward
            )
        return plan

    # -- what torch does with modules ------------------------------------------------------------------------

    def _apply(self, *args: Any, **kwargs: Any) -> FusedResNet:
        result = super()._apply(*args, **kwargs)
        self.rebind()
        return result

    def _replicate_for_data_parallel(self) -> FusedResNet:
        """torch.nn.DataParallel's copy for one GPU and one call, which shares the plans that are bound here."""
        if not self._watch.unchanged():
            self.rebind()
        return super()._replicate_for_data_parallel()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._start()


def _order(x: torch.Tensor) -> bool | None:
    """How an image lies in memory: True contiguous, False channels last, None neither, as a view with gaps."""
    return True if x.is_contiguous() else False if x.is_contiguous(memory_format=torch.channels_last) else None


def _watched(module: nn.Module) -> list[dict[str, Any]]:
    """The dictionaries in which every parameter, buffer and child is."""
    return [parts for part in module.modules() for parts in (part._parameters, part._buffers, part._modules)]


def _first(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A module's first parameter; x if it has none. A loop, because not every torch.compile knows next's default."""
    for parameter in module.parameters():
        return parameter
    return x


def _fits(out: torch.Tensor, template: torch.Tensor) -> bool:
    """Whether a result can be written to `out` directly; raises InputError if it cannot go there at all."""
    if (out.shape, out.dtype, out.device) != (template.shape, template.dtype, template.device):
        raise InputError(
            f"out is {tuple(out.shape)}, {out.dtype}, on {out.device}; "
            f"the result is {tuple(template.shape)}, {template.dtype}, on {template.device}"
        )
    order = torch.channels_last if out.dim() == 4 else torch.contiguous_format
    return out.is_contiguous(memory_format=order) and out.data_ptr() % ACCESS == 0


def _rebind(module: nn.Module, _: object) -> None:
    assert isinstance(module, FusedResNet)
    module.rebind()


def _after_fork() -> None:
    """In a new process: locks that another thread of the parent held would never be given back."""
    for module in torch_op.networks():
        assert isinstance(module, FusedResNet)
        module._binding = threading.RLock()
        for frame in module._frames.values():
            frame.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
