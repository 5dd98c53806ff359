"""The reference of every problem: its operator's definition in plain torch, followed by its epilogue."""

from __future__ import annotations

import torch

from autotune.ir.problem import Problem, Tensors


def compute(problem: Problem, tensors: Tensors, scalars: tuple[float, ...] = ()) -> dict[str, torch.Tensor]:
    """Solve a problem in the dtype of the given tensors; convert them first to choose the precision.

    Args:
        problem: The problem.
        tensors: All operands but the outputs, by name.
        scalars: The operator's own scalars, then those of the epilogue.

    Returns:
        Every output by its operand name, `y` among them.
    """
    own, of_epilogue = scalars[: problem.scalars], scalars[problem.scalars :]
    value = problem.reference(tensors, own)
    y, stored = problem.epilogue.apply(value, tensors, of_epilogue, problem.reference_anchors(tensors))
    return {"y": y, **stored, **problem.reference_outputs(tensors, y, own)}
