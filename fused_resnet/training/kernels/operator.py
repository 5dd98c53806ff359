"""`fused_resnet::solve(operands, problem, database, layout)`: an operator of torch that runs a problem's tuned kernel.

`fused_resnet::solve_all` is for problems with several results, or with scalars.

Compiled graphs contain it in place of torch's convolutions. Its arguments are texts, so a graph that a compiler has
stored runs in another process, too. A kernel is bound at the first call of its problem on a device, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from autotune.ir import TENSOR_DTYPES
from fused_resnet.training.kernels.bound_problem import parsed, run

# Inductor passes operands with the strides that the rewritten graph notes for them, so that nothing is copied here.
TAGS = [getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)]
LIBRARY = torch.library.Library("fused_resnet", "FRAGMENT")
LIBRARY.define("solve(Tensor[] operands, str problem, str database, str layout) -> Tensor", tags=TAGS)
LIBRARY.define(
    "solve_all(Tensor[] operands, str problem, str database, str layout, float[] scalars) -> Tensor[]", tags=TAGS
)
SOLVE: Callable[[Sequence[torch.Tensor], str, str, str], torch.Tensor] = torch.ops.fused_resnet.solve.default
"""(the problem's inputs, its text, the database, the layout of the weight) -> the result.

Activations and the result have torch's order of axes and are channels last in memory, as those of torch's convolutions,
so that a compiler keeps all tensors between them channels last. The weight is packed, as the kernel reads it. The graph
packs it by operators of torch, which a compiler fuses with what computes it, such as autocast's conversion."""

SOLVE_ALL: Callable[[Sequence[torch.Tensor], str, str, str, Sequence[float]], list[torch.Tensor]]
SOLVE_ALL = torch.ops.fused_resnet.solve_all.default
"""The same with the problem's scalars -> all results, in the order of the problem's operands."""


def _solve(operands: Sequence[torch.Tensor], problem: str, database: str, layout: str) -> torch.Tensor:
    (y,) = run(problem, operands, database, layout)
    return y


def _solve_all(
    operands: Sequence[torch.Tensor], problem: str, database: str, layout: str, scalars: Sequence[float]
) -> list[torch.Tensor]:
    return run(problem, operands, database, layout, tuple(scalars))


def _fake(operands: Sequence[torch.Tensor], problem: str, database: str, layout: str) -> torch.Tensor:
    (y,) = _fake_all(operands, problem)
    return y


def _fake_all(operands: Sequence[torch.Tensor], problem: str, *_: object) -> list[torch.Tensor]:
    made = [
        operands[0].new_empty(one.shape, dtype=TENSOR_DTYPES[one.dtype])
        for one in parsed(problem).operands()
        if one.role == "output"
    ]
    return [y.permute(0, 3, 1, 2) if y.dim() == 4 else y for y in made]


for _name, _function, _without_values in (("solve", _solve, _fake), ("solve_all", _solve_all, _fake_all)):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fused_resnet::{_name}", _without_values, lib=LIBRARY)
