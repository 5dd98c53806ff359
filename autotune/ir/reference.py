"""The reference of a problem, the problems with the same result, and bounds of the rounding error of sums.

The reference is the operator's definition in plain torch, followed by its epilogue.

Sums of int8 products are exact, unless a factor was rounded in the kernel. Hopper's tensor cores add products of e4m3
with fewer bits than float32 has: they align the products of a wgmma and the sum so far to the largest of them and keep
about 14 bits (DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3.2). A kernel that promotes its sums adds them
to float32 registers every so often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from autotune.ir.byte_formats import E4M3, S8
from autotune.ir.operators import Conv2dDgrad, Convolution
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


@dataclass(frozen=True)
class Form:
    """A problem that computes a pass.

    Attributes:
        problem: The problem.
        turned: Whether its weight is the turned weight of the pass (see `turn_weight`).
    """

    problem: Convolution
    turned: bool = False


def forms(problem: Convolution) -> tuple[Form, ...]:
    """Return the forms of a pass, its own problem first.

    An input gradient with stride 1 is a convolution, too, and there are more kernels for that operator.
    """
    convolution = problem.as_convolution() if isinstance(problem, Conv2dDgrad) else None
    return (Form(problem), *([Form(convolution, turned=True)] if convolution else []))


def all_forms(problem: Problem) -> list[Problem]:
    """Return a problem and, if it is a pass, the problems of its other forms."""
    return [form.problem for form in forms(problem)] if isinstance(problem, Convolution) else [problem]


MAX_SUM_ERROR = 2.0**-4
"""Largest bound of the error of a kernel's sums, relative to their spread: that of e4m3's largest rounding."""
_ROUNDED_FACTORS = 0.5
"""Error of an int8 result, in its own numbers, if the kernel rounds factors of its sums, such as a hidden tensor. Few
values are so near a tie that float32 may round them either way, but a layer has up to 10^8 sums. Each such factor
changes a result by one weight, at most 0.12 to 0.25 of sums that spread over the range. An H100 had 0.33 among 10^8
sums of 256 factors."""
_STEP_ERROR = 2.0**-12
"""Error of one wgmma, relative to its sum. Twice what 14 bits lose at most, because a layer has up to 10^8 sums, whose
largest error is far above a typical one."""
_FIRST_STEPS = 8
"""Steps' errors that are added for the first ones: the largest of their products may exceed the sum."""
_PRODUCTS = 32
"""Products that one wgmma adds to each sum."""


@lru_cache
def _products(problem: Problem) -> int:
    """Return the products of a sum, with all weights; a search asks for those of one problem thousands of times."""
    return sum(math.prod(operand.shape[1:]) for operand in problem.operands() if operand.role == "weight")


def sum_error(problem: Problem, config: Mapping[str, int | str]) -> float:
    """Return an upper bound of the accumulation error of a kernel; 0 for sums in float32, or in int32 of given factors.

    For s8 it is in units of the output, for e4m3 relative to the standard deviation of the sums. In e4m3 a sum takes
    n = products / 32 steps, and each loses up to 2^-12 of the partial sum. If float32 registers take over partial sums
    of m steps, these are smaller than the whole by sqrt(m / n), as sums of random terms are. So the error is at most
    2^-12 (n sqrt(m / n) + 8). In 12 million sums of 2 steps of random normal factors, which are the worst, the largest
    error was 0.43 of the bound.

    Args:
        problem: The problem.
        config: The kernel's config: `promote` is the number of steps of `tile_k` channels after which float32 registers
            take over, 0 for never; `slices` is the number of blocks that split a sum.
    """
    if problem.dtype == S8.dtype:
        return _ROUNDED_FACTORS * (problem.roundings - 1)
    if problem.dtype != E4M3.dtype or "promote" not in config:
        return 0.0
    whole = max(_products(problem) / _PRODUCTS, 1.0)
    part = whole / int(config.get("slices", 1))
    if config["promote"]:
        part = min(part, int(config["promote"]) * int(config["tile_k"]) / _PRODUCTS)
    return _STEP_ERROR * (math.sqrt(whole * max(part, 1.0)) + _FIRST_STEPS)
