"""`fused_resnet::solve(operands, problem, database, layout)`: an operator of torch that runs a problem's tuned kernel.

Compiled graphs contain it in place of torch's convolutions. Its arguments are texts, so a graph that a compiler has
stored runs in another process, too. A kernel is bound at the first call of its problem on a device, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from autotune.ir import TENSOR_DTYPES
from fused_resnet.training.bound_problem import parsed, run

# Inductor passes operands with the strides that the rewritten graph notes for them, so that nothing is copied here.
TAGS = [getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)]
LIBRARY = torch.library.Library("fused_resnet", "FRAGMENT")
LIBRARY.define("solve(Tensor[] operands, str problem, str database, str layout) -> Tensor", tags=TAGS)
SOLVE: Callable[[Sequence[torch.Tensor], str, str, str], torch.Tensor] = torch.ops.fused_resnet.solve.default
"""(the problem's inputs, its text, the database, the layout of the weight) -> the result.

Activations and the result have torch's order of axes and are channels last in memory, as those of torch's convolutions,
so that a compiler keeps all tensors between them channels last. The weight is packed, as the kernel reads it. The graph
packs it by operators of torch, which a compiler fuses with what computes it, such as autocast's conversion."""


def _solve(operands: Sequence[torch.Tensor], problem: str, database: str, layout: str) -> torch.Tensor:
    (y,) = run(problem, operands, database, layout)
    return y


def _fake(operands: Sequence[torch.Tensor], problem: str, database: str, layout: str) -> torch.Tensor:
    y = parsed(problem).operands()[-1]
    return operands[0].new_empty(y.shape, dtype=TENSOR_DTYPES[y.dtype]).permute(0, 3, 1, 2)


LIBRARY.impl("solve", _solve, "CompositeExplicitAutograd")
torch.library.register_fake("fused_resnet::solve", _fake, lib=LIBRARY)
