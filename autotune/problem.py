"""Problems: what one layer must compute, apart from any device.

A problem is a frozen record with a canonical text, and the text is its identity in the database:

    conv2d n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,1 groups=1 dtype=f32 epilogue=bias,relu

`parse` reads that text back. `operands()` lists the tensors in the order in which every kernel takes its
pointers. Activations are channels last (n, h, w, c) and contiguous; convolution weights are (k, c/groups, r, s),
as torch has them, and are repacked by whoever binds a kernel that wants another order. The output is always `y`,
and the channels of an epilogue are its last axis.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from autotune.epilogue import MAX_SCALARS, Epilogue
from autotune.errors import ProblemError, choose
from autotune.steps import PLACES

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "s8": torch.int8,
}
"""Project's name -> the tensors' dtype. tf32: float32 whose products are rounded to TF32. s8: products summed in
int32, the epilogue in float32, the result rounded to the nearest (ties to even) and saturated."""
_ALIASES = {
    **{"float32": "f32", "fp32": "f32", "float": "f32"},
    **{"float16": "f16", "fp16": "f16", "half": "f16"},
    **{"bfloat16": "bf16", "tensorfloat32": "tf32", "int8": "s8"},
}


def dtype_name(dtype: str | torch.dtype) -> str:
    """The project's name of a dtype ("f16" for torch.float16, "half", "fp16"); raises UnknownNameError."""
    text = str(dtype).removeprefix("torch.")
    return choose("dtype", _ALIASES.get(text, text), list(DTYPES))


@dataclass(frozen=True)
class Operand:
    """One tensor of a problem. role: "input", "weight" (constant), "vector" (constant, float32) or "output"."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * DTYPES[self.dtype].itemsize


MAX_OPERANDS = 15
"""Tensors one problem may have (AT_WORKSPACE of templates/abi.h, which comes behind them)."""


def output_extent(size: int, kernel: int, stride: int, pad: int, dilation: int = 1, ceil: int = 0) -> int:
    """Output height or width of a sliding window, as torch counts it.

    ceil: 1 counts a last window that hangs over the padded input too, if it begins before the padding behind it.
    """
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    extent = (room + (stride - 1) * ceil) // stride + 1
    return extent - (ceil and (extent - 1) * stride >= size + pad)


_NO_STEPS = Epilogue()
_GATE_ALONE = Epilogue(("gate",))
_CONV_AND_GATE = Epilogue(("conv", "gate"))
_DOWN = Epilogue(("conv", "gate", "project"))
_MAY_BE_ZERO = ("pad", "pool_pad", "ceil")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What every problem has: a dtype, an epilogue, a text, operands, and the least work it takes.

    A problem from outside this package (see `register`) declares two things more and defines `reference`.
    sizes: its attributes that kernels are given as int32, in the order of its C struct, separated by spaces.
    scalars: how many floats it takes at run time; kernels find them before the epilogue's.

    places: the steps of PLACES that its epilogue has, in order: where in the chain something of its own happens.
    """

    operator: ClassVar[str]
    sizes: ClassVar[str]
    scalars: ClassVar[int] = 0
    places: ClassVar[tuple[str, ...]] = ()
    batch_field: ClassVar[str] = "n"
    most_operands: ClassVar[int] = MAX_OPERANDS
    dtype: str
    epilogue: Epilogue = _NO_STEPS

    def __post_init__(self) -> None:
        choose("dtype", self.dtype, list(DTYPES))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            sizes = value if isinstance(value, tuple) else (value,)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if any(isinstance(size, int) and size < least for size in sizes):
                raise ProblemError(f"{self.operator}: {field.name}={value} must be at least {least}")
        if self.epilogue.places != self.places:
            wanted = f"must have {' and then '.join(self.places)}, once" if self.places else "can have none"
            raise ProblemError(f"'{self}': of the steps {', '.join(PLACES)} the epilogue of {self.operator} {wanted}")
        if self.scalars + self.epilogue.scalars > MAX_SCALARS:
            raise ProblemError(f"'{self}' takes more than {MAX_SCALARS} scalars, with its epilogue's")
        if min(self.output_shape) < 1:
            raise ProblemError(f"'{self}' has no output: its window is larger than its padded input")
        if len(self.operands()) > self.most_operands:
            raise ProblemError(f"'{self}' has {len(self.operands())} tensors; at most {MAX_OPERANDS} are possible")

    def __str__(self) -> str:
        order = [f for f in dataclasses.fields(self) if f.name not in ("dtype", "epilogue")]
        words = [f"{f.name}={_to_text(getattr(self, f.name))}" for f in order]
        return " ".join([self.operator, *words, f"dtype={self.dtype}", f"epilogue={self.epilogue}"])

    @property
    def batch(self) -> int:
        """How many samples are solved at once: what `with_batch` changes."""
        return int(getattr(self, self.batch_field))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output `y`, channels last."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Floating-point operations of the definition, a multiply and an add counted as two."""
        raise NotImplementedError

    def _inputs(self) -> tuple[Operand, ...]:
        raise NotImplementedError

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """`y` before the epilogue, in plain torch and in the dtype of the tensors, by operand name."""
        raise NotImplementedError

    def operands(self) -> tuple[Operand, ...]:
        """All tensors in the order in which kernels take them: inputs and weights, `y`, then the epilogue's."""
        shape = self.output_shape
        of_kind = {
            "vector": ("vector", shape[-1:], "f32"),
            "tensor": ("input", shape, self.dtype),
            "output": ("output", shape, self.dtype),
        }
        extra = [Operand(a.name, *of_kind[a.kind]) for a in self.epilogue.arguments if a.kind in of_kind]
        return (*self._inputs(), Operand("y", "output", shape, self.dtype), *extra)

    @property
    def bytes(self) -> int:
        """The fewest bytes to move: every operand once."""
        return sum(operand.bytes for operand in self.operands())


@dataclass(frozen=True, kw_only=True)
class Convolution(Problem):
    """What the three passes of one convolution share: its sizes, those of the forward pass, and its arithmetic."""

    n: int
    h: int
    w: int
    c: int
    k: int
    r: int = 1
    s: int = 1
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c % self.groups or self.k % self.groups:
            raise ProblemError(f"'{self}': groups must divide both c and k")
        if min(self.p, self.q) < 1:
            raise ProblemError(f"'{self}': the window is larger than the padded input")

    @property
    def p(self) -> int:
        """Height of the forward pass's output."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0], self.dilation[0])

    @property
    def q(self) -> int:
        """Width of the forward pass's output."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1], self.dilation[1])

    @property
    def flops(self) -> int:
        """2 n p q k r s c/groups, in each pass."""
        return 2 * self.n * self.p * self.q * self.k * self.r * self.s * self.c // self.groups

    @property
    def _x(self) -> Operand:
        return Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype)

    @property
    def _weight(self) -> Operand:
        return Operand("weight", "weight", (self.k, self.c // self.groups, self.r, self.s), self.dtype)

    @property
    def _dy(self) -> Operand:
        return Operand("dy", "input", (self.n, self.p, self.q, self.k), self.dtype)


@dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    """Forward convolution (cross-correlation): x (n, h, w, c), weight (k, c/groups, r, s), y (n, p, q, k)."""

    operator: ClassVar[str] = "conv2d"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, k)."""
        return self._dy.shape

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, self._weight)


@dataclass(frozen=True, kw_only=True)
class Conv2dDgrad(Convolution):
    """Gradient of a convolution by its input: dy (n, p, q, k), weight (k, c/groups, r, s), y = dx (n, h, w, c)."""

    operator: ClassVar[str] = "conv2d_dgrad"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, c)."""
        return self._x.shape

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._dy, self._weight)


@dataclass(frozen=True, kw_only=True)
class Conv2dWgrad(Convolution):
    """Gradient of a convolution by its weight: dy (n, p, q, k), x (n, h, w, c), y = dw (k, r, s, c/groups).

    So `y` is torch's weight in channels-last order, and the channels of an epilogue are the input's of a group.
    """

    operator: ClassVar[str] = "conv2d_wgrad"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(k, r, s, c/groups)."""
        return (self.k, self.r, self.s, self.c // self.groups)

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._dy, self._x)


@dataclass(frozen=True, kw_only=True)
class Gemm(Problem):
    """Matrix product of a linear layer: x (m, k), weight (n, k) as torch.nn.Linear has it, y = x weight^T (m, n)."""

    operator: ClassVar[str] = "gemm"
    batch_field: ClassVar[str] = "m"
    m: int
    n: int
    k: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(m, n)."""
        return (self.m, self.n)

    @property
    def flops(self) -> int:
        """2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def as_conv2d(self) -> Conv2d:
        """The same as a 1x1 convolution of m images of one pixel, which is how kernels are told of it."""
        return Conv2d(n=self.m, h=1, w=1, c=self.k, k=self.n, dtype=self.dtype, epilogue=self.epilogue)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", (self.m, self.k), self.dtype),
            Operand("weight", "weight", (self.n, self.k), self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class Pool2d(Problem):
    """What the pools share: a window that slides over x (n, h, w, c) and makes y (n, p, q, c)."""

    n: int
    h: int
    w: int
    c: int
    r: int
    s: int
    stride: tuple[int, int]
    pad: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.pad[0] > self.r or 2 * self.pad[1] > self.s:
            raise ProblemError(f"'{self}': the padding must be at most half the window")
        if min(self.p, self.q) < 1:
            raise ProblemError(f"'{self}': the window is larger than the padded input")

    @property
    def p(self) -> int:
        """Output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def q(self) -> int:
        """Output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, c)."""
        return (self.n, self.p, self.q, self.c)

    @property
    def flops(self) -> int:
        """One addition or comparison a tap."""
        n, p, q, c = self.output_shape
        return n * p * q * c * self.r * self.s

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype),)


@dataclass(frozen=True, kw_only=True)
class AvgPool2d(Pool2d):
    """Average pooling with the padding counted: x (n, h, w, c), y (n, p, q, c)."""

    operator: ClassVar[str] = "avg_pool2d"


@dataclass(frozen=True, kw_only=True)
class MaxPool2d(Pool2d):
    """Max pooling: x (n, h, w, c), y (n, p, q, c). Padding is below every value; ceil=1 is torch's ceil_mode."""

    operator: ClassVar[str] = "max_pool2d"
    ceil: int = 0

    @property
    def p(self) -> int:
        """Output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0], ceil=self.ceil)

    @property
    def q(self) -> int:
        """Output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1], ceil=self.ceil)


@dataclass(frozen=True, kw_only=True)
class GlobalAvgPool2d(Problem):
    """The mean of all pixels: x (n, h, w, c), y (n, 1, 1, c), which is the x (n, c) of a gemm."""

    operator: ClassVar[str] = "global_avg_pool2d"
    n: int
    h: int
    w: int
    c: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, 1, 1, c)."""
        return (self.n, 1, 1, self.c)

    @property
    def flops(self) -> int:
        """One addition a pixel and channel."""
        return self.n * self.h * self.w * self.c

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype),)


@dataclass(frozen=True, kw_only=True)
class Elementwise(Problem):
    """An epilogue of its own, where there is no kernel to append it to: y = epilogue(x), both (n, h, w, c)."""

    operator: ClassVar[str] = "elementwise"
    n: int
    h: int
    w: int
    c: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """None: memory alone bounds it."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", self.output_shape, self.dtype),)


@dataclass(frozen=True, kw_only=True)
class ToChannelsLast(Problem):
    """NCHW to NHWC: x (n, c, h, w) in torch's order, y (n, h, w, to); before the epilogue, channels from c on are 0."""

    operator: ClassVar[str] = "to_channels_last"
    n: int
    h: int
    w: int
    c: int
    to: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to < self.c:
            raise ProblemError(f"'{self}': to must be at least c")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, to)."""
        return (self.n, self.h, self.w, self.to)

    @property
    def flops(self) -> int:
        """None: data only moves."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype),)


@dataclass(frozen=True, kw_only=True)
class SpaceToDepth(Problem):
    """Moves block x block patches to channels, and NCHW to NHWC.

    x (n, c, h, w) in torch's order; y (n, h/block, w/block, block*block*c), output channel
    (dy*block + dx)*c + channel.
    """

    operator: ClassVar[str] = "space_to_depth"
    n: int
    h: int
    w: int
    c: int
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.h % self.block or self.w % self.block:
            raise ProblemError(f"'{self}': block must divide both h and w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h/block, w/block, block*block*c)."""
        return (self.n, self.h // self.block, self.w // self.block, self.block * self.block * self.c)

    @property
    def flops(self) -> int:
        """None: data only moves."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype),)


def _excitation(channels: int, hidden: int, dtype: str) -> tuple[Operand, ...]:
    """The weights of squeeze-and-excitation."""
    return (
        Operand("w1", "weight", (hidden, channels), dtype),
        Operand("b1", "vector", (hidden,), "f32"),
        Operand("w2", "weight", (channels, hidden), dtype),
        Operand("b2", "vector", (channels,), "f32"),
    )


@dataclass(frozen=True, kw_only=True)
class Stem(Problem):
    """First layers of a network: x (n, c, h, w) in torch's order, weight (k, c, r, s), y (n, p, q, k).

    y = epilogue(max_pool(conv(x))), the pool with a square window of `pool` pixels; pool=1 is none. Steps that never
    fall as their argument rises, such as bias and relu, give the same behind the pool as before it, to the bit.
    """

    operator: ClassVar[str] = "stem"
    n: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    pool: int = 1
    pool_stride: int = 1
    pool_pad: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.pool_pad > self.pool:
            raise ProblemError(f"'{self}': the pool's padding must be at most half its window")
        if min(self.conv_p, self.conv_q, self.p, self.q) < 1:
            raise ProblemError(f"'{self}': a window is larger than its padded input")

    @property
    def conv_p(self) -> int:
        """Height of the convolution's result."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def conv_q(self) -> int:
        """Width of the convolution's result."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])

    @property
    def p(self) -> int:
        """Output height."""
        return output_extent(self.conv_p, self.pool, self.pool_stride, self.pool_pad)

    @property
    def q(self) -> int:
        """Output width."""
        return output_extent(self.conv_q, self.pool, self.pool_stride, self.pool_pad)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def flops(self) -> int:
        """The convolution's: 2 n conv_p conv_q k r s c."""
        return 2 * self.n * self.conv_p * self.conv_q * self.k * self.r * self.s * self.c

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype),
            Operand("weight", "weight", (self.k, self.c, self.r, self.s), self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class SeTail(Problem):
    """Squeeze-and-excitation and what follows it in a residual block.

    y = epilogue(x * sigmoid(w2 relu(w1 mean(x) + b1) + b2)), the mean over h and w, w1 (hidden, c), w2 (c, hidden).
    The epilogue is where the identity is added: "add,relu".
    """

    operator: ClassVar[str] = "se_tail"
    n: int
    h: int
    w: int
    c: int
    hidden: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """Mean, scale and the two products."""
        return self.n * (2 * self.h * self.w * self.c + 4 * self.c * self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", self.output_shape, self.dtype),
            *_excitation(self.c, self.hidden, self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class Conv2dSe(Convolution):
    """Convolution with squeeze-and-excitation among the steps that follow it.

    The step `gate` stands where the value x so far is scaled: x * sigmoid(w2 relu(w1 mean(x) + b1) + b2), the mean over
    the output's pixels, w1 (hidden, k), w2 (k, hidden). A residual block ends with "bias,gate,add,relu".
    """

    operator: ClassVar[str] = "conv2d_se"
    places: ClassVar[tuple[str, ...]] = ("gate",)
    hidden: int
    epilogue: Epilogue = _GATE_ALONE

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, k)."""
        return self._dy.shape

    @property
    def flops(self) -> int:
        """The convolution's, the mean, the scaling and the two products."""
        return super().flops + self.n * (2 * self.p * self.q * self.k + 4 * self.k * self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            self._weight,
            *_excitation(self.k, self.hidden, self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class SeBlock(Problem):
    """A residual block: two 3x3 convolutions, squeeze-and-excitation, and the steps around them.

    x (n, h, w, c) is convolved with weight1 (c, c, 3, 3), stride and padding 1. In the epilogue, the step `conv` stands
    where the value so far is convolved with weight2 (c, c, 3, 3) likewise, and `gate` where it is scaled as by
    conv2d_se, with w1 (hidden, c) and w2 (c, hidden): "bias,relu,conv,bias,gate,add,relu".
    """

    operator: ClassVar[str] = "se_block"
    places: ClassVar[tuple[str, ...]] = ("conv", "gate")
    n: int
    h: int
    w: int
    c: int
    hidden: int
    epilogue: Epilogue = _CONV_AND_GATE

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """The two convolutions, the mean, the scaling and the two products."""
        pixels = self.h * self.w
        return self.n * (36 * pixels * self.c**2 + 2 * pixels * self.c + 4 * self.c * self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", self.output_shape, self.dtype),
            Operand("weight1", "weight", (self.c, self.c, 3, 3), self.dtype),
            Operand("weight2", "weight", (self.c, self.c, 3, 3), self.dtype),
            *_excitation(self.c, self.hidden, self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class SeDownBlock(Problem):
    """A residual block that halves its image: as se_block, but with stride 2, and with a projection as its identity.

    x (n, h, w, c) is convolved with weight1 (k, c, 3, 3), stride 2 and padding 1. In the epilogue, `conv` stands where
    the value so far is convolved with weight2 (k, k, 3, 3), stride and padding 1, `gate` where it is scaled as by
    conv2d_se, and `project` where the mean of x over 3x3 pixels, stride 2 and padding 1, which counts, is added, after a
    1x1 convolution with `projection` (k, c, 1, 1): "bias,relu,conv,bias,gate,project,relu".
    """

    operator: ClassVar[str] = "se_down_block"
    places: ClassVar[tuple[str, ...]] = ("conv", "gate", "project")
    r: ClassVar[int] = 3
    s: ClassVar[int] = 3
    stride: ClassVar[tuple[int, int]] = (2, 2)
    pad: ClassVar[tuple[int, int]] = (1, 1)
    dilation: ClassVar[tuple[int, int]] = (1, 1)
    groups: ClassVar[int] = 1
    n: int
    h: int
    w: int
    c: int
    k: int
    hidden: int
    epilogue: Epilogue = _DOWN

    @property
    def p(self) -> int:
        """Output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def q(self) -> int:
        """Output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def flops(self) -> int:
        """The three convolutions, the pool, the mean, the scaling and the two products."""
        products = 9 * self.c * self.k + 9 * self.k**2 + self.c * self.k
        a_pixel = 2 * products + 9 * self.c + 2 * self.k
        return self.n * (self.p * self.q * a_pixel + 4 * self.k * self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype),
            Operand("weight1", "weight", (self.k, self.c, 3, 3), self.dtype),
            Operand("weight2", "weight", (self.k, self.k, 3, 3), self.dtype),
            Operand("projection", "weight", (self.k, self.c, 1, 1), self.dtype),
            *_excitation(self.k, self.hidden, self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class PatchConv2d(Problem):
    """Convolution of patches that do not overlap, on an image in torch's order: stride and filter are the block.

    x (n, c, h, w), weight (k, c, block, block), y (n, h/block, w/block, k).
    """

    operator: ClassVar[str] = "patch_conv2d"
    n: int
    h: int
    w: int
    c: int
    k: int
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.h % self.block or self.w % self.block:
            raise ProblemError(f"'{self}': block must divide both h and w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h/block, w/block, k)."""
        return (self.n, self.h // self.block, self.w // self.block, self.k)

    @property
    def flops(self) -> int:
        """2 n h w c k."""
        return 2 * self.n * self.h * self.w * self.c * self.k

    @property
    def as_conv2d(self) -> Conv2d:
        """The convolution that it is, apart from the order of x: how kernels are told of it."""
        block = (self.block, self.block)
        return Conv2d(
            n=self.n, h=self.h, w=self.w, c=self.c, k=self.k, r=self.block, s=self.block, stride=block,
            dtype=self.dtype, epilogue=self.epilogue,
        )  # fmt: skip

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype),
            Operand("weight", "weight", (self.k, self.c, self.block, self.block), self.dtype),
        )


OPERATORS: dict[str, type[Problem]] = {
    cls.operator: cls
    for cls in (
        *(Conv2d, Conv2dSe, PatchConv2d, Conv2dDgrad, Conv2dWgrad, Gemm),
        *(AvgPool2d, MaxPool2d, GlobalAvgPool2d, Elementwise),
        *(ToChannelsLast, SpaceToDepth, Stem, SeTail, SeBlock, SeDownBlock),
    )
}


def register(cls: type[Problem]) -> type[Problem]:
    """Make a problem from outside this package known, as a decorator of its class; raises ProblemError.

    Its kernels are given the struct `at_<operator>`, which is declared for them from `sizes`.
    """
    for name in (cls.operator, *cls.sizes.split()):
        if not re.fullmatch(r"[a-z]\w*", name):
            raise ProblemError(f"{cls.__name__}: '{name}' cannot be a name in C: use small letters, digits and _")
    fields = {field.name for field in dataclasses.fields(cls)}
    if unknown := [name for name in cls.sizes.split() if name not in fields and not hasattr(cls, name)]:
        raise ProblemError(f"{cls.__name__}: sizes names {', '.join(unknown)}, which the problem does not have")
    if cls.operator in OPERATORS:
        raise ProblemError(f"{cls.__name__}: there is already an operator '{cls.operator}'")
    OPERATORS[cls.operator] = cls
    return cls


def _to_text(value: int | tuple[int, ...]) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse(text: str) -> Problem:
    """Read a problem from its text; fields with a default may be left out. Raises ProblemError or UnknownNameError."""
    operator, *words = text.split() or [""]
    cls = OPERATORS[choose("operator", operator, list(OPERATORS))]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, object] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in fields:
            raise ProblemError(f"'{word}' in '{text}' is not one of {', '.join(fields)} written as name=value")
        if name in values:
            raise ProblemError(f"'{text}' gives {name} twice")
        values[name] = _from_text(name, value, text)
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ProblemError(f"'{text}' lacks {', '.join(missing)}")
    return cls(**values)  # type: ignore[arg-type]


def _from_text(name: str, value: str, text: str) -> object:
    if name == "dtype":
        return dtype_name(value)
    if name == "epilogue":
        return Epilogue.parse(value)
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ProblemError(f"'{name}={value}' in '{text}' is not a whole number or a pair of them") from None
    pair = name in ("stride", "pad", "dilation")
    if len(numbers) > 1 + pair:
        raise ProblemError(f"'{name}={value}' in '{text}' has too many numbers")
    if pair:
        return numbers * 2 if len(numbers) == 1 else numbers
    return numbers[0]


def with_batch(problem: Problem, n: int) -> Problem:
    """The same problem for another batch size."""
    return dataclasses.replace(problem, **{problem.batch_field: n})  # type: ignore[arg-type]


def limit_us(problem: Problem, flops_per_us: float, bytes_per_us: float) -> float:
    """The time below which no device of these two rates can solve the problem, in microseconds."""
    return max(problem.flops / flops_per_us, problem.bytes / bytes_per_us)


Tensors = Mapping[str, torch.Tensor]
"""Operand name -> tensor."""
