"""Epilogues for tests: random chains of steps, and single steps on values at which formulas break."""

from __future__ import annotations

import random

import torch
from reference_steps import BROADCAST, STEPS

from autotune.ir import DTYPES, Epilogue, Problem


def random_epilogue(rng: random.Random, *, broadcast: bool = False) -> Epilogue:
    """Return a random chain; broadcast: also of steps that read broadcast tensors."""
    names = (*STEPS, *BROADCAST * 2) if broadcast else STEPS
    return Epilogue(tuple(rng.choices(names, k=rng.randint(0, 4))))


# Values at which formulas break; 2.0 in the middle is an ordinary value.
SPECIAL = [
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        3e-7,
        0.3,
        -0.3,
        0.624,
        -0.626,
        1.0,
        -1.0,
        6.0,
    ),
    2.0,
    *(3.0, -3.0, -6.0, 20.0, -20.0, 88.5, -88.5, 104.5, -104.5, 1e4, -1e4, 1e30, -1e30, 3e38, -3e38),
]

ELEMENTWISE = [*(name for name in STEPS if name not in ("add", "sub", "mul", "relu_mask", "store")), "exp"]


def special_case(
    problem: Problem, values: torch.Tensor
) -> tuple[dict[str, torch.Tensor], tuple[float, ...], torch.Tensor]:
    """Return a test case for the epilogue "scale" and one other step, which is applied to exactly `values`.

    All inputs and weights are 1. The problem must have one pixel and one input channel, so that its sum is 1.

    Returns:
        The tensors by operand name, the scalars, and the expected y in float64.
    """
    epilogue = problem.epilogue
    tensors = {operand.name: torch.ones(operand.shape, dtype=DTYPES[operand.dtype]) for operand in problem.operands()}
    tensors |= {a.name: torch.full(values.shape, 0.75) for a in epilogue.arguments if a.kind == "vector"}
    tensors["scale0"] = values
    scalars = (-0.5, 0.7) if "clamp" in epilogue.names else (0.25,) * epilogue.scalars
    precise = {key: tensor.double() for key, tensor in tensors.items()}
    expected, _ = epilogue.apply(torch.ones_like(precise["y"]), precise, scalars)
    tensors["y"].fill_(123.0)
    return tensors, scalars, expected
