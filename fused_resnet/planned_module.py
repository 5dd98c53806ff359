"""A module that runs the plans of a network: it binds one for each kind of call, and a new one after a change."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from autotune.core import LayerError
from autotune.ir import TENSOR_DTYPES, Layer, Network
from autotune.libraries import inductor
from autotune.runtime import ExecutionContext, NetworkPlan, conversions
from fused_resnet import torch_op
from fused_resnet.call import (
    ONE_TENSOR,
    CallCache,
    Signature,
    autocast,
    check_arguments,
    check_input,
    converted,
    current_stream,
    empty_result,
    fits,
    in_torch_order,
    is_contiguous,
    is_plain,
    mark_written,
    module_state,
    positions,
    put_together,
    take_apart,
)
from fused_resnet.model_source import Captured
from fused_resnet.plan_warnings import warn_of_plan
from fused_resnet.torch_op import InputError
from fused_resnet.weight_changes import warn_of_late_change
from tuning_db import open_reader

if TYPE_CHECKING:
    from tuning_db.protocols import Database

_MAX_COMPILED_PLANS = 8
"""Plans that a module lets Inductor compile, one for each shape and state of the weights; torch.compile has this limit,
too. A program that changes shapes or weights all the time would do little else than compile."""


class PlannedModule(nn.Module):
    """Runs calls in eval mode on plans, and in training mode as the plain network.

    Attributes:
        tuning_db: Path or URL of the database.
        trusted_keys: Public keys, one of which must have signed it.
    """

    tuning_db: str
    trusted_keys: tuple[str, ...]
    _source: Captured
    _cuda_graphs: bool
    _max_plans: int
    _compile: bool | None
    _format_name: str
    _cache: CallCache
    _positions: tuple[str, ...]
    _num_compiled, _knows_of_sizes = 0, False

    def __call__(self, *args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Call the network.

        Skips nn.Module.__call__ when there are no hooks, no tracing and no gradients, and the engine knows the input:
        that saves about 10 % of the host time per call.
        """
        if len(args) == 1 and not kwargs and is_plain(self) and not torch_op.is_traced(args[0]):
            x, cache = args[0], self._cache
            if not x.requires_grad and (y := cache.calls.run(x, out)) is not None:
                if out is not None:
                    mark_written(out)
                if cache.bare:
                    return y
                return self._finish(args, ONE_TENSOR, (y,), self.memory_format if out is None else None)
        return super().__call__(*args, **kwargs) if out is None else super().__call__(*args, out=out, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):  # the fast path must not skip the subclass's own forward
            cls.__call__ = nn.Module.__call__  # type: ignore[method-assign]

    def forward(
        self,
        *args: Any,
        out: torch.Tensor | None = None,
        memory_format: torch.memory_format | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the network: (N, in_channels, 64, 64) -> (N, 512, 2, 2), or what a captured model takes and returns.

        Args:
            args: Tensors on the module's device, those in floating point in its dtype; strides other than contiguous
                and channels last, or an address that is not a multiple of 16 bytes, cost a copy. Numbers, texts, None,
                and tuples, lists and dictionaries of all these; a plan is bound for each value of a number.
            out: Receives the result of a network that computes one tensor, and is returned; filled without a copy if it
                is channels last in memory.
            memory_format: Memory format of results with four dimensions without `out`, instead of the module's
                `memory_format`.
            kwargs: The same by the names of the plain network's parameters, of which `out` and `memory_format` can only
                be given by position.

        Returns:
            What the plain network returns, in its containers.

        Raises:
            InputError: No input is a tensor, or the plain network does not take these arguments; the shape, dtype or
                device of an input or of `out` does not fit; or a gradient with respect to an input is wanted.
        """
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            arguments, inputs = ONE_TENSOR, [args[0]]  # what `take_apart` returns, at a lower cost
        else:
            arguments, inputs = take_apart(self._positions, args, kwargs)
        if self.training:
            result = self._train_step(inputs, args, kwargs)
            return result if out is None else out.copy_(result)
        if any(map(torch_op.is_traced, inputs)):
            results = torch_op.call([autocast(self, x) for x in inputs], self._number, arguments)
        elif all(x.numel() for x in inputs):
            try:
                results = self._run(inputs, arguments, out)
            except LayerError as error:  # torch's own operators failed as a layer, where eager torch may run them
                warnings.warn(f"the call runs as torch runs the model, because {error}", stacklevel=2)
                result = self._on_torch(inputs, arguments)
                return result if out is None else out.copy_(result)
        else:
            result = self._on_torch(inputs, arguments)
            return result if out is None else out.copy_(result)
        if out is None:
            return self._finish(inputs, arguments, results, memory_format or self.memory_format)
        if len(results) != 1:
            raise InputError(f"out is for a network that computes one tensor, and {self._source.name} computes several")
        return self._finish(inputs, arguments, [out if results[0] is out else out.copy_(results[0])], None)

    def _on_torch(self, inputs: Sequence[torch.Tensor], arguments: str) -> Any:
        """Return what the plain network returns: for an empty batch, which no kernel computes, or without a plan."""
        check_arguments(self._plain, arguments)
        for x in inputs:
            check_input(self, x)
        args, kwargs = put_together(arguments, inputs)
        with torch.no_grad():
            return self._plain(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module and its submodules, which are those of the plain network; return this module."""
        set_mode: Callable[[bool], object] = super().train
        set_mode(mode)
        self._plain.training = mode
        return self

    def _train_step(self, inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the plain network in training mode: compiled, with tuned convolutions, if the database has any.

        Its submodules keep their modes: some, such as frozen batch norms, may be in eval mode.
        """
        plain, device = self._plain, inputs[0].device
        plain.training = True  # a capture for eval mode may have changed it
        if torch_op.is_traced(inputs[0]) or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        if device in self._trainable:
            return self._trainable[device](*args, **kwargs)
        from fused_resnet.training import Winners, trainable

        winners = Winners(self.tuning_db, self.trusted_keys)
        with winners.reading():  # one reader for this question and for the compilation
            found = winners.trains(device)
            self._trainable[device] = trainable(plain, winners, device, self._cuda_graphs) if found else plain
            return self._trainable[device](*args, **kwargs)

    def _finish(
        self,
        inputs: Sequence[torch.Tensor],
        arguments: str,
        results: Sequence[torch.Tensor],
        memory_format: torch.memory_format | None,
    ) -> Any:
        """Return results in the plain network's containers, those with four dimensions in a memory format or as is."""
        result = self._source.results[arguments]
        if memory_format and not memory_format is self.memory_format is torch.channels_last:
            results = converted(results, inputs, result.channels_last, memory_format)
        return result.contain(inputs, results)

    def _run(
        self, inputs: Sequence[torch.Tensor], arguments: str, out: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Return the tensors that the layers compute in eval mode, outside any tracer.

        Args:
            inputs: The tensors among the arguments.
            arguments: The text of the arguments (arguments.py).
            out: Receives the only result if it can be written directly, which is the case if the result is `out`.
        """
        for x in inputs:
            if x.requires_grad:
                torch_op.refuse_gradient(x)
        if arguments == ONE_TENSOR and (y := self._cache.calls.run(inputs[0], out)) is not None:
            results = [y]
        else:
            results = self._run_slow(inputs, arguments, out)
        if out is not None and results[0] is out:
            mark_written(out)
        return results

    def _run_slow(self, inputs: Sequence[torch.Tensor], arguments: str, out: torch.Tensor | None) -> list[torch.Tensor]:
        """Run inputs that the engine's fast path does not know or cannot take."""
        # Parameters are looked at inside of a transform only: a network may have hundreds.
        if torch._C._functorch.peek_interpreter_stack() is not None and any(
            map(torch._C._functorch.is_functorch_wrapped_tensor, (*inputs, *self.parameters(), *self.buffers()))
        ):
            raise InputError(
                "the input or a parameter belongs to a transform of torch.func, such as vmap, which FusedResNet does "
                "not support: call it outside the transform, with a larger batch in place of vmap"
            )
        stream, capturing = current_stream(inputs)
        while True:  # until a run begins and ends with the same weights
            cache = self._cache  # read once: another thread may replace it by an empty one at any time
            context, taken = cache.find(inputs, arguments, stream), inputs
            if context is None or capturing:
                if not cache.state.unchanged():
                    self._discard(cache)
                taken, context, cache = self._context(inputs, arguments, stream)
            results = [torch.empty_like(template) for template in context.templates]
            if out is not None and len(results) == 1 and fits(out, context.template):
                results = [out]
            try:
                context.run(taken, results, stream)
            except LayerError as error:
                self._avoid(error, context.plan)
                self._discard(cache, although_unchanged=True)
                continue
            # Check for changes after the launch, while the device works. A run with old weights is harmless, as the
            # plan owns its tensors, and is repeated. The check is that of the cache that the context belongs to: a
            # newer one knows the new weights.
            if cache.state.unchanged():
                break
            self._discard(cache)
        if arguments == ONE_TENSOR and context.direct and taken[0] is inputs[0] and not capturing:
            cache.use_fast_path(inputs[0], context)
        return results

    def _run_traced(self, inputs: Sequence[torch.Tensor], arguments: str) -> list[torch.Tensor]:
        """Return the tensors that the layers compute, with the strides of `_like_results`."""
        results, wanted = self._run(inputs, arguments), self.memory_format
        last = self._source.results[arguments].channels_last
        return results if wanted is torch.channels_last else converted(results, inputs, last, wanted)

    def _like_results(self, inputs: Sequence[torch.Tensor], arguments: str) -> list[torch.Tensor]:
        """Return empty results for a call, which tracers need."""
        x = inputs[0]
        if arguments == ONE_TENSOR and not isinstance(x.shape[0], int):
            # The batch size of an input and of a result that begins with it may stay symbolic: int() would fix it.
            one, two = (self._source.tensors(Signature.of([x.new_empty((n, *map(int, x.shape[1:])))])) for n in (1, 2))
            if len(one) == 1 and (one[0].shape[:1], two[0].shape) == ((1,), (2, *one[0].shape[1:])):
                kept = bool(self._wanted_order(inputs, arguments, [one[0].shape]))
                return [empty_result(x, (x.shape[0], *one[0].shape[1:]), TENSOR_DTYPES[one[0].dtype], kept)]
        found = self._source.tensors(Signature.of(inputs, arguments))
        kept_order = self._wanted_order(inputs, arguments, [one.shape for one in found])
        return [empty_result(x, one.shape, TENSOR_DTYPES[one.dtype], i in kept_order) for i, one in enumerate(found)]

    def _wanted_order(self, inputs: Sequence[torch.Tensor], arguments: str, shapes: list[tuple[int, ...]]) -> list[int]:
        """Return the positions of the results that are wanted in torch's order of axes."""
        return in_torch_order(inputs, shapes, self._source.results[arguments].channels_last, self.memory_format)

    def _taken(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return inputs as plans take them; raises InputError if they do not fit."""
        taken = [autocast(self, x) for x in inputs]
        for x in taken:
            check_input(self, x)
        return [x.contiguous() if is_contiguous(x) is None else x for x in taken]

    def _bound(self, *args: Any, **kwargs: Any) -> tuple[list[torch.Tensor], ExecutionContext, int]:
        """Return the inputs as the context takes them, the context on the current stream, and that stream's handle."""
        arguments, inputs = take_apart(self._positions, args, kwargs)
        if not (cache := self._cache).state.unchanged():
            self._discard(cache)
        stream, _ = current_stream(inputs)
        taken, context, _ = self._context(inputs, arguments, stream)
        return taken, context, stream

    @property
    def memory_format(self) -> torch.memory_format:
        """Memory format of results with four dimensions; torch.preserve_format for that of the plain network's."""
        found: torch.memory_format = getattr(torch, self._format_name.removeprefix("torch."))
        return found

    @property
    def _plain(self) -> nn.Module:
        """The network in plain torch, with this module's parameters."""
        return self._source.module

    def _network(self, *args: Any, **kwargs: Any) -> Network:
        """Return the layers, and alternatives to them, for calls like this one.

        Raises:
            InputError: The network does not take these arguments, shapes or dtypes.
            CaptureError: The module cannot be captured for them.
        """
        arguments, inputs = take_apart(self._positions, args, kwargs)
        return self._source.network(Signature.of(inputs, arguments))

    def _database(self) -> AbstractContextManager[Database]:
        return open_reader(self.tuning_db, self.trusted_keys)

    def rebind(self) -> None:
        """Discard all plans, which is needed only after a change of weights that `weight_changes.UNSEEN` describes."""
        self._discard(self._cache, although_unchanged=True)

    def _avoid(self, error: LayerError, plan: NetworkPlan) -> None:
        """Let another candidate run a layer that failed; raises the error if that was the last one."""
        failed = next(bound.choice.candidate for bound in plan.bound if bound.layer.name == error.layer)
        if (error.layer, str(failed)) in self._avoided:
            raise error
        self._avoided.add((error.layer, str(failed)))
        warnings.warn(f"{error}; it ran as '{failed}', and its next candidate is taken", stacklevel=5)

    def _discard(self, cache: CallCache, *, although_unchanged: bool = False) -> None:
        """Replace a cache by an empty one, unless another thread has done so, or its state has only seemed changed.

        It seems so while another thread captures the plain network, which is done before that releases the lock.
        """
        with self._lock:  # a plan that another thread binds now, with the old weights, must be among those discarded
            if self._cache is not cache or (cache.state.unchanged() and not although_unchanged):
                return
            self._cache = CallCache(self)
        if cache.state.is_late:
            warn_of_late_change()
        cache.close()

    def _begin(self) -> None:
        """Set the state of a new object: nothing is bound."""
        self._cache = CallCache(self)
        self._captured_plans: list[NetworkPlan] = []  # the caller's CUDA graphs use their weights
        self._avoided: set[tuple[str, str]] = set()  # layers and candidates that failed in runs
        self._lock = threading.RLock()
        self._number = torch_op.register(self)
        self._trainable: dict[torch.device, Callable[..., Any]] = {}  # the plain network in training mode
        self._positions = positions(self._plain)

    def _context(
        self, inputs: Sequence[torch.Tensor], arguments: str, stream: int
    ) -> tuple[list[torch.Tensor], ExecutionContext, CallCache]:
        """Return the inputs as a context takes them, the context, and its cache; binds a plan where there is none."""
        taken = self._taken(inputs)
        with self._lock:
            cache = self._cache
            plan = cache.plan(taken, arguments)
            if current_stream(taken)[1]:
                return taken, self._context_of_capture(plan), cache
            if (known := cache.find(taken, arguments, stream)) is not None:
                return taken, known, cache
            plan = plan or self._bind(taken, arguments)
            return taken, cache.add(taken, arguments, stream, plan, self._max_plans), cache

    def _context_of_capture(self, plan: NetworkPlan | None) -> ExecutionContext:
        """Return a context for a call that is being captured; its memory is of the capture's pool, and not shared."""
        if plan is None:
            raise InputError(
                "nothing is bound for this input yet, and nothing can be bound while a CUDA graph is being captured: "
                "call the module once with such an input, after the last change of weights and before the capture"
            )
        self._captured_plans.append(plan)
        return ExecutionContext(plan, graph=False)

    def _bind(self, inputs: Sequence[torch.Tensor], arguments: str) -> NetworkPlan:
        network = self._source.network(Signature.of(inputs, arguments))
        order = self._wanted_order(inputs, arguments, [one.shape for one in network.results])
        self._before_binding(network, [*conversions(network, order).values()], inputs[0].device)
        state, device = module_state(self._plain), inputs[0].device
        self._cache.guard(self._source.guards, [*state.values(), *self._source.guards.tensors], device)
        last = [i for i, x in enumerate(inputs) if not x.is_contiguous()]
        wanted = inductor.is_wanted(self._compile)
        compiles = wanted and self._num_compiled < _MAX_COMPILED_PLANS
        with self._database() as store, torch.inference_mode(False), torch.no_grad():
            # The plain network's tensors, because replicas of torch.nn.DataParallel have no named ones of their own.
            known = self._avoided, order, self._cache.constants
            plan = NetworkPlan(network, state, store, device, self._cuda_graphs, last, compiles, *known)
            self._num_compiled += (is_compiled := any(bound.choice.candidate.compiled for bound in plan.bound))
            limit = _MAX_COMPILED_PLANS if wanted and not is_compiled and not compiles else None
            if not (plan.is_resized and self._knows_of_sizes):  # a service may meet hundreds
                dtype = next((x for x in inputs if x.is_floating_point()), inputs[0]).dtype
                warn_of_plan(plan, store, self._source.name, dtype, self._source.precision, limit)
            self._knows_of_sizes |= plan.is_resized
        if arguments == ONE_TENSOR:
            images = {i for i, one in enumerate(network.results) if len(one.shape) == 4}
            as_is = self.memory_format is torch.channels_last or images <= set(plan.in_torch_order)
            self._cache.bare = self._cache.bare and as_is and self._source.results[arguments].is_tensor
        return plan

    def _before_binding(self, network: Network, converting: Sequence[Layer], device: torch.device) -> None:
        """Do what a subclass does before a plan is bound, such as tuning the network and what converts its results."""
