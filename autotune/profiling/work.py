"""The work that an operator must do, from the shapes that the profiler recorded: operations, and bytes moved.

Bytes are the fewest possible: each input read once, the output written once. Operators that move nothing (views) and
those that are not known have no work.
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
class Work:
    """Floating-point operations, a multiply and an add counted as two, and bytes."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class _Call:
    """An operator's arguments: shapes, () for what is no tensor; texts of what is no tensor; bytes an element."""

    shapes: Sequence[tuple[int, ...]]
    texts: Sequence[str]
    sizes: Sequence[int]

    @property
    def read(self) -> float:
        """Bytes of all tensors."""
        return sum(math.prod(shape) * size for shape, size in zip(self.shapes, self.sizes, strict=True) if size)

    def written(self, elements: float) -> float:
        """Bytes of an output of the first input's type."""
        return elements * self.sizes[0]

    def numbers(self, index: int) -> list[int]:
        """The whole numbers of an argument; none if it was not given."""
        return [int(text) for text in re.findall(r"-?\d+", self.texts[index])] if index < len(self.texts) else []


def of_operator(name: str, args: Mapping[str, Any]) -> Work | None:
    """The work of one call of an ATen operator, with the arguments that the profiler recorded; None if not known."""
    formula = _FORMULAS.get(name.removeprefix("aten::").removesuffix("_")) if name.startswith("aten::") else None
    shapes = args.get("Input Dims")
    if formula is None or not shapes or not shapes[0]:
        return None
    types = args.get("Input type", [])
    if not all(isinstance(side, int) for shape in shapes for side in shape):  # a list of tensors
        return None
    sizes = [_SIZES.get(kind, 0) if shape else 0 for kind, shape in zip(types, shapes, strict=True)]
    return formula(_Call([tuple(shape) for shape in shapes], args.get("Concrete Inputs", []), sizes))


def _convolution(call: _Call) -> Work | None:
    (n, _, *image), (k, c, *window) = call.shapes[0], call.shapes[1]
    stride, pad, dilation = (_each(call.numbers(i), len(image)) for i in (3, 4, 5))
    if not (stride and pad and dilation):
        return None  # "same" and "valid" leave it to the convolution within
    output = n * k * math.prod(map(_extent, image, window, stride, pad, dilation))
    return Work(2 * output * c * math.prod(window), call.read + call.written(output))


def _linear(call: _Call) -> Work:
    *rows, k = call.shapes[0]
    n = call.shapes[1][0]
    return Work(2 * math.prod(rows) * n * k, call.read + call.written(math.prod(rows) * n))


def _product(first: int) -> Callable[[_Call], Work]:
    """Matrix products (…, m, k) times (…, k, n), which stand from argument `first` on."""

    def formula(call: _Call) -> Work:
        *batch, m, k = call.shapes[first]
        output = math.prod(batch) * m * call.shapes[first + 1][-1]
        return Work(2 * output * k, call.read + call.written(output))

    return formula


def _pool(call: _Call) -> Work | None:
    """Windows of an image: arguments are the input, window, stride, pad, and perhaps dilation."""
    *planes, h, w = call.shapes[0]
    window, pad = _each(call.numbers(1), 2), _each(call.numbers(3), 2)
    stride = _each(call.numbers(2), 2) or window
    if not (window and stride and pad):
        return None
    output = math.prod(planes) * math.prod(map(_extent, (h, w), window, stride, pad, (1, 1)))
    return Work(output * math.prod(window), call.read + call.written(output))


def _adaptive_pool(call: _Call) -> Work:
    *planes, h, w = call.shapes[0]
    output = math.prod(planes) * math.prod(_each(call.numbers(1), 2) or (h, w))
    return Work(math.prod(call.shapes[0]), call.read + call.written(output))


def _reduction(call: _Call) -> Work:
    shape, axes = call.shapes[0], call.numbers(1)
    kept = [side for i, side in enumerate(shape) if axes and i not in {axis % len(shape) for axis in axes}]
    return Work(math.prod(shape), call.read + call.written(math.prod(kept)))


def _elementwise(operations: float) -> Callable[[_Call], Work]:
    """So many operations, a function counted as one, for each element of the inputs' common shape."""

    def formula(call: _Call) -> Work:
        shapes = [shape for shape, size in zip(call.shapes, call.sizes, strict=True) if size]
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        output = math.prod(max(sides) for sides in zip(*padded, strict=True))
        return Work(operations * output, call.read + call.written(output))

    return formula


def _normalization(call: _Call) -> Work:
    """A scale and a shift of each element, whose factors are known."""
    elements = math.prod(call.shapes[0])
    return Work(2 * elements, call.read + call.written(elements))


def _copy(call: _Call) -> Work:
    """aten::copy_(target, source): what is copied is the target's size."""
    return Work(0, 2 * call.written(math.prod(call.shapes[0])))


def _extent(size: int, window: int, stride: int, pad: int, dilation: int) -> int:
    return (size + 2 * pad - dilation * (window - 1) - 1) // stride + 1


def _each(numbers: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(numbers) if len(numbers) == rank else tuple(numbers) * rank if len(numbers) == 1 else ()


_FORMULAS: dict[str, Callable[[_Call], Work | None]] = {
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
