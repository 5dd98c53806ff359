"""The least work of an ATen operator, from the shapes that the profiler recorded: operations and bytes.

Bytes are the compulsory traffic: each input is read once and the output is written once. Views, and operators that are
not listed here, have no work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SIZES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long": 8, "long int": 8, "short": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class OperatorWork:
    """OperatorWork of one call.

    flops: Floating-point operations; a fused multiply-add counts as two.
    bytes: Bytes read and written.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class _OperatorCall:
    """The arguments of an operator's call, one entry in each list for each argument.

    shapes: Shape of a tensor; () for other arguments.
    texts: Value of an argument that is no tensor, as text.
    sizes: Bytes of an element of a tensor; 0 for other arguments.
    """

    shapes: Sequence[tuple[int, ...]]
    texts: Sequence[str]
    sizes: Sequence[int]

    @property
    def read(self) -> float:
        """Bytes of all input tensors."""
        return sum(math.prod(shape) * size for shape, size in zip(self.shapes, self.sizes, strict=True) if size)

    def written(self, elements: float) -> float:
        """Return the bytes of an output with the dtype of the first input."""
        return elements * self.sizes[0]

    def numbers(self, index: int) -> list[int]:
        """Return the integers of an argument; none if it was not given."""
        return [int(text) for text in re.findall(r"-?\d+", self.texts[index])] if index < len(self.texts) else []


def operator_work(name: str, args: Mapping[str, Any]) -> OperatorWork | None:
    """Return the work of one call of an ATen operator; None if it is not known.

    Args:
        name: Name of the operator, such as "aten::conv2d".
        args: Arguments as torch's profiler records them.
    """
    formula = _FORMULAS.get(name.removeprefix("aten::").removesuffix("_")) if name.startswith("aten::") else None
    shapes = args.get("Input Dims")
    if formula is None or not shapes or not shapes[0]:
        return None
    types = args.get("Input type", [])
    if not all(isinstance(side, int) for shape in shapes for side in shape):  # a list of tensors
        return None
    sizes = [_SIZES.get(kind, 0) if shape else 0 for kind, shape in zip(types, shapes, strict=True)]
    return formula(_OperatorCall([tuple(shape) for shape in shapes], args.get("Concrete Inputs", []), sizes))


def _convolution(call: _OperatorCall) -> OperatorWork | None:
    (n, _, *image), (k, c, *window) = call.shapes[0], call.shapes[1]
    stride, pad, dilation = (_each(call.numbers(i), len(image)) for i in (3, 4, 5))
    if not (stride and pad and dilation):
        return None  # padding="same" or "valid": the convolution within has numbers
    output = n * k * math.prod(map(_extent, image, window, stride, pad, dilation))
    return OperatorWork(2 * output * c * math.prod(window), call.read + call.written(output))


def _linear(call: _OperatorCall) -> OperatorWork:
    *rows, k = call.shapes[0]
    n = call.shapes[1][0]
    return OperatorWork(2 * math.prod(rows) * n * k, call.read + call.written(math.prod(rows) * n))


def _product(first: int) -> Callable[[_OperatorCall], OperatorWork]:
    """Return the work of a matrix product (..., m, k) x (..., k, n). first: position of the first factor."""

    def formula(call: _OperatorCall) -> OperatorWork:
        *batch, m, k = call.shapes[first]
        output = math.prod(batch) * m * call.shapes[first + 1][-1]
        return OperatorWork(2 * output * k, call.read + call.written(output))

    return formula


def _pool(call: _OperatorCall) -> OperatorWork | None:
    """Return the work of pooling. Arguments: input, window, stride, pad and, for some operators, dilation."""
    *planes, h, w = call.shapes[0]
    window, pad = _each(call.numbers(1), 2), _each(call.numbers(3), 2)
    stride = _each(call.numbers(2), 2) or window
    if not (window and stride and pad):
        return None
    output = math.prod(planes) * math.prod(map(_extent, (h, w), window, stride, pad, (1, 1)))
    return OperatorWork(output * math.prod(window), call.read + call.written(output))


def _adaptive_pool(call: _OperatorCall) -> OperatorWork:
    *planes, h, w = call.shapes[0]
    output = math.prod(planes) * math.prod(_each(call.numbers(1), 2) or (h, w))
    return OperatorWork(math.prod(call.shapes[0]), call.read + call.written(output))


def _reduction(call: _OperatorCall) -> OperatorWork:
    shape, axes = call.shapes[0], call.numbers(1)
    kept = [side for i, side in enumerate(shape) if axes and i not in {axis % len(shape) for axis in axes}]
    return OperatorWork(math.prod(shape), call.read + call.written(math.prod(kept)))


def _elementwise(operations: float) -> Callable[[_OperatorCall], OperatorWork]:
    """Return the work of a pointwise operator.

    operations: Operations for each element of the inputs' broadcast shape; a function counts as one.
    """

    def formula(call: _OperatorCall) -> OperatorWork:
        shapes = [shape for shape, size in zip(call.shapes, call.sizes, strict=True) if size]
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        output = math.prod(max(sides) for sides in zip(*padded, strict=True))
        return OperatorWork(operations * output, call.read + call.written(output))

    return formula


def _normalization(call: _OperatorCall) -> OperatorWork:
    """Return the work of a normalisation with known statistics: one scale and one shift of each element."""
    elements = math.prod(call.shapes[0])
    return OperatorWork(2 * elements, call.read + call.written(elements))


def _copy(call: _OperatorCall) -> OperatorWork:
    """Return the work of aten::copy_(target, source), which copies the size of the target."""
    return OperatorWork(0, 2 * call.written(math.prod(call.shapes[0])))


def _extent(size: int, window: int, stride: int, pad: int, dilation: int) -> int:
    return (size + 2 * pad - dilation * (window - 1) - 1) // stride + 1


def _each(numbers: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(numbers) if len(numbers) == rank else tuple(numbers) * rank if len(numbers) == 1 else ()


_FORMULAS: dict[str, Callable[[_OperatorCall], OperatorWork | None]] = {
    **dict.fromkeys(["conv1d", "conv2d", "conv3d", "convolution"], _convolution),
    "linear": _linear,
    **dict.fromkeys(["mm", "bmm"], _product(0)),
    **dict.fromkeys(["addmm", "baddbmm"], _product(1)),
    **dict.fromkeys(["avg_pool2d", "max_pool2d", "max_pool2d_with_indices"], _pool),
    **dict.fromkeys(["adaptive_avg_pool2d", "adaptive_max_pool2d"], _adaptive_pool),
    **dict.fromkeys(["mean", "sum"], _reduction),
    **dict.fromkeys(["add", "sub", "mul", "div", "maximum", "minimum"], _elementwise(1)),
    **dict.fromkeys(["relu", "relu6", "clamp", "clamp_min", "hardtanh", "threshold", "leaky_relu"], _elementwise(1)),
    **dict.fromkeys(["sigmoid", "tanh", "silu", "gelu", "hardsigmoid", "hardswish", "elu", "mish"], _elementwise(1)),
    **dict.fromkeys(["batch_norm", "group_norm", "layer_norm", "native_layer_norm"], _normalization),
    **dict.fromkeys(["clone"], _elementwise(0)),
    "copy": _copy,
}
