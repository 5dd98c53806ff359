"""The table of `explain_step`: what computes each pass of a training step, and how fast it is."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from autotune.core import CaptureError
from autotune.ir import forms
from fused_resnet.module import FusedResNet, InputError
from fused_resnet.text_table import format_table, number, percent, shortened
from fused_resnet.training.compile import known_faster_way, why_not_compiled
from fused_resnet.training.convolution_passes.norms import TrainedNorm
from fused_resnet.training.convolution_passes.passes import BACKWARD, FORWARD, passes
from fused_resnet.training.graph_rewrite.nodes import value
from fused_resnet.training.graph_rewrite.norm_rewrite import rewrite_norms
from fused_resnet.training.graph_rewrite.rewrite import Rewrite
from fused_resnet.training.kernels.bound_problem import parsed, use
from fused_resnet.training.kernels.norm_operators import BATCH_NORM_BACKWARD, MAX_POOL
from fused_resnet.training.kernels.operator import SOLVE, SOLVE_ALL
from fused_resnet.training.kernels.step_plans import INDUCTOR
from fused_resnet.training.kernels.winners import Winners
from fused_resnet.training.step_problems import StepProblems, step_problems
from fused_resnet.tuning import database

TORCH = "torch"
"""The kernel of what torch's operator computes."""


@dataclass(frozen=True)
class PassRow:
    """One kind of pass of a step. A number is None where the database has no data for it.

    Attributes:
        passes: Names of the passes: the layer, and "by input" or "by weight" for a gradient. Empty for one without a
            name.
        problem: Text of the problem; empty for a convolution that is no problem of ours.
        calls: Calls of it in a step.
        kernel: The kernel or the plan of cuDNN with its config, or "torch".
        expected_us: Tuned time of one call in microseconds.
        limit_share: Time by the device's peak rates of arithmetic and memory (roofline), divided by expected_us.
    """

    passes: tuple[str, ...]
    problem: str
    calls: int
    kernel: str
    expected_us: float | None
    limit_share: float | None


@dataclass(frozen=True)
class StepExplanation:
    """A table of the passes of a training step: str() formats it, iterating over it yields its rows.

    Attributes:
        rows: What the database may hold kernels for: convolutions, batch norms, max pools, and what is fused of them.
        others: What computes everything else.
    """

    rows: tuple[PassRow, ...]
    others: str

    @property
    def num_on_kernels(self) -> int:
        """Number of calls that run on kernels or plans of the database."""
        return sum(row.calls for row in self.rows if row.kernel != TORCH)

    @property
    def expected_us(self) -> float | None:
        """Sum of the times of all calls in microseconds; None if one of them is unknown."""
        times = [None if row.expected_us is None else row.calls * row.expected_us for row in self.rows]
        return sum(time for time in times if time is not None) if None not in times else None

    def __iter__(self) -> Iterator[PassRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        lines = [("pass", "calls", "kernel", "us", "of limit")]
        lines += [
            (
                _title(row, 30),
                str(row.calls),
                shortened(row.kernel.split()[0], 22),
                number(row.expected_us),
                percent(row.limit_share),
            )
            for row in self.rows
        ]
        calls = sum(row.calls for row in self.rows)
        lines.append(("sum of all calls", str(calls), "", number(self.expected_us), ""))
        where = f"{self.num_on_kernels} of {calls} calls run on kernels of the database; everything else: {self.others}"
        return "\n".join([*format_table(lines, left=(0, 2)), *textwrap.wrap(where, 80)])


def explain_step(
    model: nn.Module, *inputs: torch.Tensor, tuning_db: str | os.PathLike[str] | None = None
) -> StepExplanation:
    """Return a table of what computes each pass of a training step of a model with torch.compile(backend="autotune").

    Nothing is computed and nothing is changed. The model's mode and the autocast of the caller count. A model whose
    graph Dynamo breaks is explained up to the first break.

    Args:
        model: The model, in training mode; also one that torch.compile has wrapped, or a FusedResNet.
        inputs: Its inputs; at least one.
        tuning_db: Path or URL of the database; without one, that of a FusedResNet or of the environment variable
            AUTOTUNE_DB, or else autotune/tuning.db in the user's cache.

    Raises:
        CaptureError: The model does not run on tensors without values, or has no result with a gradient.
        DatabaseError: The database does not exist or cannot be read.
        InputError: No input is given, a FusedResNet is in eval mode, or its database has no kernel for training.
    """
    if not inputs:
        raise InputError("give the inputs of a training step behind the model: their shapes choose the kernels")
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, FusedResNet):
        winners = Winners(model.tuning_db if tuning_db is None else os.fspath(tuning_db), model.trusted_keys)
        if not model.training:
            raise InputError("the model is in eval mode, in which it computes no gradients: call train() first")
        if not winners.trains(inputs[0].device):
            raise InputError(
                f"{winners.database} has no kernel for a weight gradient, so that the plain network runs in "
                "training mode: tune one with `autotune tune --train`"
            )
        return _explained(model._plain, inputs, winners)
    return _explained(model, inputs, Winners(database(tuning_db)))


def _explained(model: nn.Module, inputs: Sequence[torch.Tensor], winners: Winners) -> StepExplanation:
    device = inputs[0].device
    kind = device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    found = step_problems(model, inputs, autocast)
    names, reason = _names(found), why_not_compiled(device)
    way = known_faster_way(found, winners, device)
    rows = [
        _row(names.get((text, is_backward)) or names.get((text, False), []), text, layout, count, winners, device)
        for is_backward, graph in _graphs(model, inputs, None if way else winners, device, reason is None)
        for (text, layout), count in Counter(_calls(graph)).items()
    ]
    others = "Inductor's code" if reason is None else f"torch's operators one by one, because {reason}"
    if way:
        others = f"{'torch.compile' if way == INDUCTOR else 'eager torch'}, which was faster for the whole step"
    return StepExplanation(tuple(rows), others)


Names = Mapping[tuple[str, bool], list[str]]
"""(text of a problem, whether it computes a gradient in the form of a convolution) -> names of passes."""


def _names(found: StepProblems) -> Names:
    names: dict[tuple[str, bool], list[str]] = {}
    for name, problem in found.named.items():
        for form in forms(problem):
            names.setdefault((str(form.problem), form.turned), []).append(name)
    for name, other in {**found.norms, **found.with_norms, **found.with_relus, **found.with_sums}.items():
        names.setdefault((str(other), False), []).append(name)
    return names


def _row(
    passes: Sequence[str], text: str, layout: str | None, calls: int, winners: Winners, device: torch.device
) -> PassRow:
    """Return a row; a layout of None says that torch's operator runs."""
    if not text:
        return PassRow(tuple(passes), text, calls, TORCH, None, None)
    problem = parsed(text)
    if layout is None:
        kernel, expected = TORCH, winners.torch_us(problem, device)
    else:
        choice = winners.kernels(problem, device, layout)[0]  # without any the problem would be torch's
        kernel, expected = str(choice.candidate), choice.expected_us
    limit = winners.limit_us(problem, device)
    return PassRow(tuple(passes), text, calls, kernel, expected, limit / expected if limit and expected else None)


def _title(row: PassRow, width: int) -> str:
    first, *more = row.passes or (row.problem.split()[0] if row.problem else "other convolution",)
    others = f" +{len(more)}" if more else ""
    return shortened(first, width - len(others)) + others


class _TracedError(Exception):
    """Ends a call of a compiled function once its graphs are known."""


def _graphs(
    model: nn.Module, inputs: Sequence[torch.Tensor], winners: Winners | None, device: torch.device, is_compiled: bool
) -> list[tuple[bool, fx.Graph]]:
    """Return the graphs of the forward and of the backward pass as `compile_step` rewrites them.

    Without winners they stay on torch's operators. A graph of the backward pass has True beside it.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    graphs: list[tuple[bool, fx.Graph]] = []
    rewrite = Rewrite(winners, is_compiled) if winners else None

    def partition(joint: fx.GraphModule, arguments: Sequence[Any], **options: Any) -> Any:
        parts = default_partition(joint, arguments, **options)
        for is_backward, part in enumerate(parts):
            graph = fx.Graph()
            graph.output(graph.graph_copy(part.graph, {}))
            if rewrite:
                rewrite(graph)
            graphs.append((bool(is_backward), graph))
        return parts

    def stop(*_: Any) -> Any:
        raise _TracedError

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        if not torch.is_grad_enabled():
            return graph_module.forward
        if winners:
            use(winners)
            rewrite_norms(graph_module, winners.database, device)
        compiler = lambda part, _: part.forward  # noqa: E731
        aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)(graph_module, example_inputs)
        return stop

    def step(*arguments: torch.Tensor) -> Any:
        return model(*arguments)

    step.__code__ = step.__code__.replace()  # Dynamo keeps what it compiled with the code, whose copies are gone soon
    try:
        torch.compile(step, backend=backend, dynamic=False)(*inputs)
    except _TracedError:
        return graphs
    raise CaptureError("the model has no part whose gradient torch.compile computes")


def _calls(graph: fx.Graph) -> Iterator[tuple[str, str | None]]:
    """Yield the text of each problem of a graph with the layout of its weight, None if torch's operator computes it."""
    for node in graph.nodes:
        arguments: Any = node.args
        if node.target in (SOLVE, SOLVE_ALL):
            yield arguments[1], arguments[3]
        elif node.target is MAX_POOL:
            yield arguments[1], ""
        elif node.target is BATCH_NORM_BACKWARD:
            _, dy2, x, _, _, relu, _ = arguments
            norm = TrainedNorm.of(value(x), relu)
            assert norm
            yield str(norm.gradient_sums(1 if dy2 is None else 2)), ""
            yield str(norm.gradient), ""
        elif node.target in (FORWARD, BACKWARD):
            found = passes(node.target, arguments, value)
            yield from ((str(one.problem), None) for one in found)
            if not found:
                yield "", None
