"""The problems of a training step.

A module runs forward and backward on tensors without values, and its calls of torch's convolutions, batch norms and max
pools are noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from autotune.core import CaptureError, in_one_line
from autotune.ir import Problem, forms
from autotune.ir.operators import Convolution
from fused_resnet.training.graph_rewrite.image_means import image_means
from fused_resnet.training.graph_rewrite.relu_gradients import relu_gradients
from fused_resnet.training.step_notes import ConvolutionNotes, NormNotes, ReluNotes, numbered


@dataclass(frozen=True)
class StepProblems:
    """The convolutions of a training step.

    Attributes:
        named: The problem of each pass by the name of its layer and what the pass computes.
        others: Calls of torch's convolutions without a problem: transposed ones, or of other dtypes.
        norms: The problems of batch norms and max pools, likewise.
        with_norms: What kernels compute with a part of a batch norm, by the name of the norm. These are forward passes
            with the statistics of the batch norm behind them, gradients with respect to a norm's result with the sums
            of its gradient, and the normalizations of two norms whose results are added.
        with_relus: What kernels compute with a ReLU, by the name of the convolution: forward passes with the ReLU
            behind them, and gradients with respect to a ReLU's result with its mask.
        with_sums: Gradients of ReLUs with sums over the pixels of each image, and means of images, by what they are.
    """

    named: Mapping[str, Convolution]
    others: int
    norms: Mapping[str, Problem] = field(default_factory=dict)
    with_norms: Mapping[str, Problem] = field(default_factory=dict)
    with_relus: Mapping[str, Problem] = field(default_factory=dict)
    with_sums: Mapping[str, Problem] = field(default_factory=dict)

    @property
    def of_layers(self) -> list[Problem]:
        """The problems of the layers themselves, which identify a step.

        What is fused depends on the graph around them, too, such as the loss.
        """
        return [*self.named.values(), *self.norms.values()]

    def to_tune(self) -> dict[str, Problem]:
        """Return the problems of all forms of the passes by name; the fastest form of a pass runs."""
        convolutions = {
            name if form.problem is problem else f"{name} (a convolution)": form.problem
            for name, problem in self.named.items()
            for form in forms(problem)
        }
        return {**convolutions, **self.norms, **self.with_norms, **self.with_relus, **self.with_sums}


def step_problems(
    module: nn.Module, inputs: Sequence[torch.Tensor], autocast: torch.dtype | None = None
) -> StepProblems:
    """Return the problems of one training step of a module.

    Nothing is computed and nothing is changed: the tensors' shapes, dtypes and devices count.

    Args:
        module: The module, in the mode in which it is trained.
        inputs: Its inputs. The gradient with respect to an input is counted if that requires one.
        autocast: The dtype of torch.autocast in the step; None without.

    Raises:
        CaptureError: The module does not run on tensors without values, or has no result with a gradient.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as fakes:
        state = {name: _fake(fakes, tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        given = [_fake(fakes, tensor) for tensor in inputs]

        def run() -> object:
            device = given[0].device.type
            with torch.autocast(device, autocast or torch.get_autocast_dtype(device), enabled=autocast is not None):
                return torch.func.functional_call(module, state, tuple(given))

        return _noted(run, [*state.values(), *given], {part: name for name, part in module.named_modules()})


def graph_problems(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> StepProblems | None:
    """Return the problems of a training step that is a graph of Dynamo; None if a size of it is dynamic.

    Args:
        graph_module: The graph.
        example_inputs: Dynamo's example of each argument.

    Raises:
        CaptureError: As `step_problems` does.
    """
    tensors = [one for one in example_inputs if isinstance(one, torch.Tensor)]
    sizes = [size for one in tensors for size in (*one.shape, *one.stride())]
    if not all(isinstance(one, int) for one in sizes) or any(isinstance(one, torch.SymInt) for one in example_inputs):
        return None
    # Hooks of the caller, such as those of torch.utils.checkpoint, would count these tensors among the step's own.
    own_hooks = torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)
    with own_hooks, FakeTensorMode(allow_non_fake_inputs=True) as fakes:
        given = [_fake(fakes, one) if isinstance(one, torch.Tensor) else one for one in example_inputs]
        leaves = [one for one in given if isinstance(one, torch.Tensor)]
        return _noted(lambda: graph_module(*given), leaves)


def _noted(
    run: Callable[[], object], leaves: Sequence[torch.Tensor], paths: Mapping[nn.Module, str] = MappingProxyType({})
) -> StepProblems:
    """Return the problems of a function and of its gradients with respect to `leaves`; a FakeTensorMode is active.

    Args:
        run: The forward pass.
        leaves: Tensors without values; those that require no gradient are left out.
        paths: Path of each submodule that may be called.

    Raises:
        CaptureError: The function fails, or its results have no gradient.
    """
    wanted = [leaf for leaf in leaves if leaf.requires_grad]

    def differentiate(results: object) -> list[torch.Tensor | None]:
        found = [one for one in tree_leaves(results) if isinstance(one, torch.Tensor) and one.requires_grad]
        if not (found and wanted):
            raise CaptureError("no result has a gradient: the parameters or the input must require one")
        return list(torch.autograd.grad(found, wanted, [torch.ones_like(one) for one in found], allow_unused=True))

    try:
        with ConvolutionNotes(paths) as notes, torch.enable_grad():
            norms = NormNotes(notes)
            relus = ReluNotes(notes, norms)
            with norms, relus:
                results = run()
            differentiate(results)
    except CaptureError:
        raise
    except Exception as error:  # a module may run anything
        raise CaptureError(f"the training step cannot be traced: {in_one_line(error)}") from error
    with_sums = _with_sums(lambda *_: differentiate(run()), leaves)
    return StepProblems(notes.named(), notes.others, norms.named(), norms.fused(), relus.fused(), with_sums)


def _with_sums(step: Callable[..., object], leaves: Sequence[torch.Tensor]) -> dict[str, Problem]:
    """Return the problems with sums over images in the graph of a whole step; none if no graph can be made of it."""
    try:
        with torch.enable_grad():
            graph = make_fx(step)(*leaves).graph
    except Exception:  # the calls run, but what they do between them may not be traced
        return {}
    gradients = [("ReLU by input with sums", one.problem) for one in relu_gradients(graph)]
    means: list[tuple[str, Problem]] = [("mean of images", one.problem) for one in image_means(graph)]
    return numbered([*gradients, *means])


def _as_it_is(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _fake(fakes: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """Return a leaf without values."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(tensor.requires_grad)
