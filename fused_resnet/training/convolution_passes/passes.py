"""The passes of a convolution: torch's operators for the output and the gradients -> problems.

torch calls aten.convolution for the output, and aten.convolution_backward for the input gradient, the weight
gradient and the bias gradient. Each of the first three is a problem of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autotune.core import ProblemError
from autotune.ir import Epilogue, tensor_dtype_name
from autotune.ir.operators import Conv2d, Conv2dDgrad, Conv2dGradientSums, Conv2dStatistics, Conv2dWgrad, Convolution
from fused_resnet.torch_arguments import pair

FORWARD = torch.ops.aten.convolution.default
"""(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups) -> y."""
BACKWARD = torch.ops.aten.convolution_backward.default
"""(dy, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask) -> the
gradients with respect to x, the weight and the bias."""
BY_INPUT, BY_WEIGHT, BY_BIAS = range(3)
"""Positions of the gradients among the results of BACKWARD, and in its output_mask."""


@dataclass(frozen=True)
class Pass:
    """One result of a call, as a problem.

    Attributes:
        problem: The problem, without an epilogue.
        operands: The arguments of the call that are its inputs, in their order, in torch's order of axes.
        result: Position among the results of BACKWARD; 0 for FORWARD, which has one result.
    """

    problem: Convolution
    operands: tuple[Any, Any]
    result: int = 0


def passes(
    operator: object, arguments: Sequence[Any], tensor: Callable[[Any], torch.Tensor] = lambda argument: argument
) -> list[Pass]:
    """Return the passes that a call asks for; none for another operator, and for what is no problem of ours.

    Args:
        operator: The operator that is called.
        arguments: All its arguments.
        tensor: Returns a tensor, maybe without values, with the shape, dtype and device of an argument.
    """
    if operator == FORWARD:
        x, weight, _, *geometry = arguments
        return _known([_pass(Conv2d, (x, weight), tensor(x), tensor(weight), geometry)])
    if operator == BACKWARD:
        dy, x, weight, _, *geometry, mask = arguments
        sizes = tensor(x), tensor(weight)
        return _known(
            [
                _pass(Conv2dDgrad, (dy, weight), *sizes, geometry, BY_INPUT) if mask[BY_INPUT] else None,
                _pass(Conv2dWgrad, (dy, x), *sizes, geometry, BY_WEIGHT) if mask[BY_WEIGHT] else None,
            ]
        )
    return []


def with_statistics(problem: Convolution) -> Conv2dStatistics | None:
    """Return a forward pass with the statistics of its result; None for another pass, and without pixels enough."""
    n, p, q, _ = problem.output_shape
    if not isinstance(problem, Conv2d) or n * p * q < 2:
        return None
    return Conv2dStatistics(**_sizes(problem))


def with_gradient_sums(problem: Convolution, relu: int, gradients: int) -> Conv2dGradientSums | None:
    """Return the input gradient of a pass, with the sums of the batch norm that computed the input.

    It is None for a pass with a stride, whose gradient is no convolution.

    Args:
        problem: The forward pass, or its input gradient.
        relu: As in TrainedNorm.
        gradients: Input gradients that are added up.
    """
    by_input = problem if isinstance(problem, Conv2dDgrad) else Conv2dDgrad(**_sizes(problem))
    convolution = by_input.as_convolution()
    return Conv2dGradientSums(**_sizes(convolution), relu=relu, gradients=gradients) if convolution else None


def with_relu(problem: Convolution, has_bias: bool) -> Conv2d | None:
    """Return a forward pass with the ReLU behind it, and a bias before that; None for another pass."""
    if not isinstance(problem, Conv2d):
        return None
    return replace(problem, epilogue=Epilogue(("bias", "relu") if has_bias else ("relu",)))


def with_mask(problem: Convolution) -> Conv2d | None:
    """Return the input gradient of a pass, as a convolution, where the ReLU that computed the input was active.

    It is None for a pass with a stride, whose gradient is no convolution.

    Args:
        problem: The forward pass, or its input gradient.
    """
    by_input = problem if isinstance(problem, Conv2dDgrad) else Conv2dDgrad(**_sizes(problem))
    convolution = by_input.as_convolution()
    return replace(convolution, epilogue=Epilogue(("relu_mask",))) if convolution else None


def _sizes(problem: Convolution) -> dict[str, Any]:
    names = ("n", "h", "w", "c", "k", "r", "s", "stride", "pad", "dilation", "groups", "dtype")
    return {name: getattr(problem, name) for name in names}


def _known(found: Sequence[Pass | None]) -> list[Pass]:
    return [one for one in found if one]


def _pass(
    kind: type[Convolution],
    operands: tuple[Any, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    geometry: Sequence[Any],
    result: int = 0,
) -> Pass | None:
    """Return a pass; None for a transposed convolution, one that is not 2-d, dynamic sizes, and other dtypes."""
    stride, pad, dilation, transposed, _, groups = geometry
    sizes = [*x.shape, *weight.shape, *stride, *pad, *dilation, groups]
    dtype = _product_dtype(x)
    if transposed or x.dim() != 4 or dtype is None or not all(isinstance(size, int) for size in sizes):
        return None
    n, c, h, w = x.shape
    k, _, r, s = weight.shape
    try:
        problem = kind(
            n=n, h=h, w=w, c=c, k=k, r=r, s=s, stride=pair(stride), pad=pair(pad), dilation=pair(dilation),
            groups=groups, dtype=dtype,
        )  # fmt: skip
    except ProblemError:
        return None
    return Pass(problem, operands, result)


def dtype_name(x: torch.Tensor) -> str | None:
    """Return the project's name of a tensor's dtype; None for one without kernels."""
    name = tensor_dtype_name(x.dtype)
    return name if name in ("f16", "bf16", "f32") else None


def _product_dtype(x: torch.Tensor) -> str | None:
    """Return the dtype of the products; None for one without kernels. torch rounds float32 to TF32 if it may."""
    name = dtype_name(x)
    return "tf32" if name == "f32" and x.device.type == "cuda" and torch.backends.cudnn.allow_tf32 else name
