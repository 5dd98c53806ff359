"""The autograd function of a training step whose passes are both replayed.

AOTAutograd's own function gives each saved tensor to autograd and takes it back in the backward pass, checks every
argument and result, and prepares for cases that a plain step does not have. That takes longer than both replays. Here
the saved tensors stay in the recording, and autograd keeps a token for them.

For each parameter of a graph autograd has a node, which costs the host as much as all else. With `direct` the step is a
function of a token instead, and its backward pass stores the gradients of parameters itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from fused_resnet.training.replay.recording import Recording, Replayed

_saved_tensors_hooks: Callable[[bool], object] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: "unknown"
)
"""(whether also while tracing) -> the hooks on saved tensors; None without. Older versions of torch do not say."""


@dataclass(frozen=True)
class StepForm:
    """The constant properties of a compiled step.

    Attributes:
        num_results: Results of the forward pass that the caller gets; the tensors that are saved follow.
        changed: Positions of the arguments that the forward pass changes, such as running statistics.
        strides: The strides in which the backward pass takes the gradient of each result.
        is_reusable: Whether the backward pass may run again, because it writes to no saved tensor.
    """

    num_results: int
    changed: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    is_reusable: bool


@dataclass
class StepPasses:
    """Both passes of a step, as far as they are compiled.

    Attributes:
        forward, backward: The passes, if they can be recorded.
        form: The form of the step if it is a plain one.
    """

    forward: Replayed | None = None
    backward: Replayed | None = None
    form: StepForm | None = None


def plain_form(metadata: Any, operands: Sequence[torch.Tensor]) -> StepForm | None:
    """Return the form of a step that needs nothing of AOTAutograd's function; None for another one.

    Args:
        metadata: What AOTAutograd knows of the forward pass (ViewAndMutationMeta).
        operands: Examples of the arguments of the backward pass: what is saved, and a gradient of each result.
    """
    try:
        tangents = operands[len(operands) - len(metadata.output_info) :]
        plain = (
            not metadata.num_mutated_inp_runtime_indices,
            not metadata.num_outputs_aliased,
            not metadata.num_intermediate_bases,
            not metadata.num_unsafe_view_outputs,
            not metadata.tokens,
            not metadata.is_rng_op_functionalized,
            not getattr(metadata, "num_graphsafe_rng_states", 0),
            all(issubclass(one.raw_type, torch.Tensor) and one.requires_grad for one in metadata.output_info),
            len(metadata.output_info) == metadata.num_forward_returns,
            metadata.num_forward == metadata.tensors_saved_for_backwards_slice.start,
        )
        if not all(plain):
            return None
        return StepForm(
            metadata.num_forward_returns,
            tuple(metadata.mutated_graph_handled_indices_seen_by_autograd),
            tuple(one.stride() for one in tangents),
            not metadata.bw_donated_idxs,
        )
    except AttributeError:  # another version of torch
        return None


class ReplayedStep:
    """A step that is replayed once both of its passes are recorded, and runs as AOTAutograd has it otherwise.

    Args:
        compiled: The step as AOTAutograd has it.
        count: Number of its arguments.
        passes: Its passes.
        direct: Whether the backward pass stores the gradients of parameters itself.
    """

    def __init__(self, compiled: Callable[..., Any], count: int, passes: StepPasses, *, direct: bool = False) -> None:
        self._compiled, self._count, self._passes, self._is_direct = compiled, count, passes, direct
        self._recorded: _Recorded | None = None

    def __call__(self, *arguments: torch.Tensor) -> Any:
        """Run the forward pass; autograd runs the backward pass.

        Hooks on saved tensors, such as those of activation checkpoints, are for AOTAutograd's function: it saves as
        many tensors in each call.
        """
        if (forward := self._passes.forward) and _saved_tensors_hooks(True) is None and not _is_transformed():
            with forward.lock:
                if self._recorded is None or self._recorded.recording is not forward.recording:
                    self._recorded = _recorded(self._passes, self._count, arguments if self._is_direct else ())
                if self._recorded and self._recorded.recording.is_ready(arguments):
                    results = self._run(self._recorded, arguments)
                    if changed := self._recorded.form.changed:
                        torch.autograd.graph.increment_version([arguments[i] for i in changed])
                    return results
        return self._compiled(*arguments)

    def _run(self, step: _Recorded, arguments: Sequence[torch.Tensor]) -> Any:
        """Run the forward pass.

        The gradients of parameters go through autograd where a hook is to see one, or a parameter is no leaf. The hooks
        of DistributedDataParallel are not visible.
        """
        parameters = [arguments[i] for i in step.own]
        hooks = [one._backward_hooks or one._post_accumulate_grad_hooks or not one.is_leaf for one in parameters]
        if not parameters or any(hooks) or DistributedDataParallel._active_ddp_module is not None:
            return _run(step, arguments, [], *arguments)
        return _run(step, arguments, parameters, step.trunk, *[arguments[i] for i in step.others])


@dataclass(frozen=True)
class _Recorded:
    """A plain step whose passes are recorded.

    Attributes:
        recording: The recording of the forward pass.
        backward: The backward pass.
        form: The step's form.
        token: As in Recorder.
        own: Positions of the parameters whose gradients the backward pass stores itself, and of their gradients.
        others: Positions of the other arguments.
        trunk: A leaf on the step's device, from which the results have their gradient in place of the parameters.
    """

    recording: Recording
    backward: Replayed
    form: StepForm
    token: torch.Tensor
    own: list[int]
    others: list[int]
    trunk: torch.Tensor


def _recorded(passes: StepPasses, count: int, arguments: Sequence[torch.Tensor]) -> _Recorded | None:
    """Return a step whose arguments all have a gradient; None if it is not plain, or not recorded.

    Args:
        passes: Its passes.
        count: Number of the arguments.
        arguments: The arguments, if the backward pass is to store the gradients of parameters; otherwise none.
    """
    first, second, form = passes.forward, passes.backward, passes.form
    if first is None or second is None or form is None or first.recording is None or second.recording is None:
        return None
    results = list(range(form.num_results))
    is_whole = len(first.recording.fixed) + len(first.recording.buffers) == count == len(second.recording.results)
    if not is_whole or first.recording.copied[: len(results)] != results:
        return None
    own = [i for i, one in enumerate(arguments) if _can_be_stored(second.recording.results[i], one)]
    others = [i for i in range(count) if i not in own]
    trunk = torch.empty(0, device=first.recording.results[0].device, requires_grad=True)
    return _Recorded(first.recording, second, form, first.token, own, others, trunk)


def _can_be_stored(gradient: object, argument: torch.Tensor) -> bool:
    """Return whether an argument is a parameter, and autograd would store its gradient as it is."""
    if type(argument) is not nn.Parameter or not isinstance(gradient, torch.Tensor):
        return False
    wanted = getattr(argument, "grad_dtype", None) or argument.dtype  # an attribute since torch 2.10
    return (gradient.stride(), gradient.dtype) == (argument.stride(), wanted)


class _Step(torch.autograd.Function):
    """(both passes, all arguments, parameters, arguments of autograd) -> results.

    The gradients of these parameters are stored by the backward pass; without any, all arguments are autograd's.
    The token is saved for as long as autograd needs the saved tensors. Arguments that the backward pass reads stay in
    `kept`: to save and to unpack each takes longer than to compare all versions.
    """

    @staticmethod
    def forward(
        ctx: Any, step: _Recorded, arguments: Sequence[torch.Tensor], parameters: list[torch.Tensor], *_: torch.Tensor
    ) -> Any:
        recording = step.recording
        ctx.step, ctx.parameters = step, parameters
        recording.run(arguments)
        ctx.kept = kept = [arguments[j] for _, j in recording.passed]
        ctx.versions = [one._version for one in kept]
        ctx.save_for_backward(step.token.detach())
        return tuple(recording.results[i].clone() for i in range(step.form.num_results))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ctx.parameters and torch.is_grad_enabled():
            raise RuntimeError(
                "gradients that a step stores itself have no graph for create_graph=True: compile the model without "
                "direct_gradients"
            )
        return _Step._gradients(ctx, *gradients)

    @staticmethod
    @once_differentiable
    def _gradients(ctx: Any, *gradients: torch.Tensor) -> Any:
        _ = ctx.saved_tensors  # raises where autograd has released them
        step: _Recorded = ctx.step
        kept: list[torch.Tensor] = ctx.kept
        if [one._version for one in kept] != ctx.versions:
            raise RuntimeError(_changed(kept, ctx.versions))
        if torch._C._autograd._get_current_graph_task_keep_graph() and not step.form.is_reusable:
            raise RuntimeError(
                "the backward pass of a compiled step writes to what the forward pass saved, so that retain_graph=True "
                "is not possible: set torch._functorch.config.donated_buffer = False before the model is compiled"
            )
        saved = step.recording.results.copy()
        for (i, _), one in zip(step.recording.passed, kept, strict=True):
            saved[i] = one
        by_results = [_with_strides(one, step.form.strides[i]) for i, one in enumerate(gradients)]
        with torch._C._DisableAutocast():
            found = step.backward([*saved[step.form.num_results :], *by_results])
        if not ctx.parameters:
            return None, None, None, *found
        # Neither torch.autograd.grad nor backward(inputs=...) runs the trunk's node; these store no gradient.
        if torch._C._will_engine_execute_node(ctx.next_functions[0][0]):
            with step.backward.lock:
                _accumulate(ctx.parameters, [found[i] for i in step.own], saved)
        return None, None, None, None, *[found[i] for i in step.others]


def _accumulate(parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], saved: Sequence[object]) -> None:
    """Store the gradients of parameters, or add them to those that are stored, as autograd does.

    Args:
        parameters: The parameters.
        gradients: Their gradients.
        saved: What the forward pass saved. A gradient that is one of these tensors is copied: Inductor writes gradients
            to saved tensors, whose memory the next forward pass fills if it is replayed.
    """
    theirs = set(map(id, saved))
    held, new = [], []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if not parameter.requires_grad:  # any more
            continue
        if (before := parameter.grad) is not None and before.layout != torch.strided:
            parameter.grad = gradient + before
        elif before is not None:
            held.append(before)
            new.append(gradient)
        elif id(gradient) in theirs:
            parameter.grad = gradient.clone()
        else:
            parameter.grad = gradient
    if held:
        torch._foreach_add_(held, new)


def _with_strides(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _changed(kept: Sequence[torch.Tensor], versions: Sequence[int]) -> str:
    """Return what is wrong, in the words that autograd has for it."""
    one, version = next((one, version) for one, version in zip(kept, versions, strict=True) if one._version != version)
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{one.type()} {list(one.shape)}] is at version {one._version}; expected version {version} instead"
    )


_is_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
_run: Callable[..., Any] = super(torch.autograd.Function, _Step).apply
"""`_Step.apply` without what it does for transforms of functorch, a twentieth of a step of 48 parameters."""
