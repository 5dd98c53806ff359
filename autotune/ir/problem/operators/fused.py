"""Several layers as one problem: a network's first, and squeeze-and-excitation with its surroundings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autotune.core import ProblemError
from autotune.ir.epilogue import Epilogue
from autotune.ir.problem.base import Images, Operand
from autotune.ir.problem.operators.convolution import Convolution, PatchConv2d
from autotune.ir.problem.operators.pool import AvgPool2d
from autotune.ir.problem.window import output_extent

_GATE_ALONE = Epilogue(("gate",))
_GATE_AND_PROJECT = Epilogue(("gate", "project"))
_CONV_AND_GATE = Epilogue(("conv", "gate"))
_DOWN = Epilogue(("conv", "gate", "project"))
_BEHIND_A_STEM = Epilogue(("keep", "conv", "conv", "gate", "add_kept"))


def _excitation(channels: int, hidden: int, dtype: str) -> tuple[Operand, ...]:
    """The weights of squeeze-and-excitation."""
    return (
        Operand("w1", "weight", (hidden, channels), dtype),
        Operand("b1", "vector", (hidden,), "f32"),
        Operand("w2", "weight", (channels, hidden), dtype),
        Operand("b2", "vector", (channels,), "f32"),
    )


@dataclass(frozen=True, kw_only=True)
class Stem(Images):
    """First layers of a network: x (n, c, h, w) in torch's order, weight (k, c, r, s), y (n, p, q, k).

    y = epilogue(max_pool(conv(x))), the pool with a square window of `pool` pixels; pool=1 is none. Steps that never
    fall as their argument rises, such as bias and relu, give the same behind the pool as before it, to the bit.
    """

    operator: ClassVar[str] = "stem"
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
            self._x_nchw,
            Operand("weight", "weight", (self.k, self.c, self.r, self.s), self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class SeTail(Images):
    """Squeeze-and-excitation and what follows it in a residual block.

    y = epilogue(x * sigmoid(w2 relu(w1 mean(x) + b1) + b2)), the mean over h and w, w1 (hidden, c), w2 (c, hidden).
    The epilogue is where the identity is added: "add,relu".
    """

    operator: ClassVar[str] = "se_tail"
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
            self._x,
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
class FoldedSe(Convolution):
    """What conv2d_folded_se and conv2d_se_skip share."""

    hidden: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > 1:
            raise ProblemError(f"'{self}': the hidden values are of all channels, so there can be no groups")

    @property
    def flops(self) -> int:
        """Those of both convolutions, the second product and the scaling."""
        hidden = super().flops // self.k * self.hidden
        return super().flops + hidden + self.n * (self.p * self.q * self.k + 2 * self.k * self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        _, *others = _excitation(self.k, self.hidden, self.dtype)
        first = Operand("w1", "weight", (self.hidden, *self._weight.shape[1:]), self.dtype)
        return (self._x, self._weight, first, *others)


@dataclass(frozen=True, kw_only=True)
class Conv2dFoldedSe(FoldedSe):
    """Convolution with squeeze-and-excitation that begins with a filter of the convolution's own input.

    The step `gate` scales the value so far by sigmoid(w2 relu(mean(conv(x, w1)) + b1) + b2), the mean over the output's
    pixels, w1 (hidden, c, r, s), w2 (k, hidden). In most networks what lies between a convolution and its gate is
    linear, as the mean is: then it is what conv2d_se computes, with w1 as `squeeze_filter` of ir/constant_expr.py
    makes it. A tile that computes the hidden values beside its channels needs nothing of other tiles. A residual block
    ends with "bias,gate,add,relu".
    """

    operator: ClassVar[str] = "conv2d_folded_se"
    places: ClassVar[tuple[str, ...]] = ("gate",)
    epilogue: Epilogue = _GATE_ALONE


@dataclass(frozen=True, kw_only=True)
class Conv2dSeSkip(FoldedSe):
    """As conv2d_folded_se, with the projection of the block's skip connection.

    In the epilogue, `project` stands where the identity is added: skip (n, p, q, skip_c) behind a 1x1 convolution in
    skip_groups with `projection` (k, skip_c/skip_groups, 1, 1): "bias,gate,project,relu".
    """

    operator: ClassVar[str] = "conv2d_se_skip"
    places: ClassVar[tuple[str, ...]] = ("gate", "project")
    skip_c: int
    skip_groups: int = 1
    epilogue: Epilogue = _GATE_AND_PROJECT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skip_c % self.skip_groups or self.k % self.skip_groups:
            raise ProblemError(f"'{self}': skip_groups must divide both skip_c and k")

    @property
    def flops(self) -> int:
        """Those of conv2d_folded_se and of the projection."""
        return super().flops + 2 * self.n * self.p * self.q * self.k * self.skip_c // self.skip_groups

    def _inputs(self) -> tuple[Operand, ...]:
        skip = Operand("skip", "input", (self.n, self.p, self.q, self.skip_c), self.dtype)
        shape = (self.k, self.skip_c // self.skip_groups, 1, 1)
        return (*super()._inputs(), skip, Operand("projection", "weight", shape, self.dtype))


@dataclass(frozen=True, kw_only=True)
class SeBlock(Images):
    """A residual block: two 3x3 convolutions, squeeze-and-excitation, and the steps around them.

    x (n, h, w, c) is convolved with weight1 (c, c, 3, 3), stride and padding 1. In the epilogue, the step `conv` stands
    where the value so far is convolved with weight2 (c, c, 3, 3) likewise, and `gate` where it is scaled as by
    conv2d_se, with w1 (hidden, c) and w2 (c, hidden): "bias,relu,conv,bias,gate,add,relu".
    """

    operator: ClassVar[str] = "se_block"
    places: ClassVar[tuple[str, ...]] = ("conv", "gate")
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
            self._x,
            Operand("weight1", "weight", (self.c, self.c, 3, 3), self.dtype),
            Operand("weight2", "weight", (self.c, self.c, 3, 3), self.dtype),
            *_excitation(self.c, self.hidden, self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class StemBlock(Images):
    """What stem_se_block and stem_se_block_pool share."""

    places: ClassVar[tuple[str, ...]] = _BEHIND_A_STEM.places
    k: int
    block: int
    hidden: int
    epilogue: Epilogue = _BEHIND_A_STEM

    @property
    def stem(self) -> PatchConv2d:
        """The first layer, without what follows it."""
        return PatchConv2d(n=self.n, h=self.h, w=self.w, c=self.c, k=self.k, block=self.block, dtype=self.dtype)

    @property
    def behind(self) -> SeBlock:
        """The block, without what surrounds its convolutions."""
        n, h, w, c = self.output_shape
        return SeBlock(n=n, h=h, w=w, c=c, hidden=self.hidden, dtype=self.dtype)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h/block, w/block, k)."""
        return self.stem.output_shape

    @property
    def flops(self) -> int:
        """Those of both."""
        return self.stem.flops + self.behind.flops

    def _inputs(self) -> tuple[Operand, ...]:
        return (*self.stem.operands()[:2], *self.behind.operands()[1:-1])


@dataclass(frozen=True, kw_only=True)
class StemSeBlock(StemBlock):
    """A network's first layer and the residual block behind it, whose identity is the layer's result.

    x (n, c, h, w) in torch's order is convolved as by patch_conv2d, with weight (k, c, block, block). In the epilogue,
    `keep` stands where the value so far is kept as the identity, the first `conv` where it is convolved as by se_block
    with weight1 (k, k, 3, 3), the second with weight2 (k, k, 3, 3), `gate` where it is scaled as by conv2d_se, and
    `add_kept` where the identity is added: "relu,keep,conv,bias,relu,conv,bias,gate,add_kept,relu".
    """

    operator: ClassVar[str] = "stem_se_block"


@dataclass(frozen=True, kw_only=True)
class StemSeBlockPool(StemBlock):
    """As stem_se_block, with a second output.

    `pooled` (n, p/2, q/2, k), rounded up, is the mean of y over 3x3 pixels, stride 2 and padding 1, which counts.
    """

    operator: ClassVar[str] = "stem_se_block_pool"

    @property
    def pool(self) -> AvgPool2d:
        """The pool alone."""
        n, h, w, c = self.output_shape
        return AvgPool2d(n=n, h=h, w=w, c=c, r=3, s=3, stride=(2, 2), pad=(1, 1), dtype=self.dtype)

    def operands(self) -> tuple[Operand, ...]:
        """Those of a stem and its block, and `pooled`."""
        return (*super().operands(), Operand("pooled", "output", self.pool.output_shape, self.dtype))


@dataclass(frozen=True, kw_only=True)
class SeDownBlock(Images):
    """A residual block that halves its image: as se_block, but with stride 2, and with a projection as its identity.

    x (n, h, w, c) is convolved with weight1 (k, c, 3, 3), stride 2 and padding 1. In the epilogue, `conv` stands where
    the value so far is convolved with weight2 (k, k, 3, 3), stride and padding 1, `gate` where it is scaled as by
    conv2d_se, and `project` where the identity is added: the mean of x over 3x3 pixels, stride 2 and padding 1, which
    counts, behind a 1x1 convolution with `projection` (k, c, 1, 1): "bias,relu,conv,bias,gate,project,relu".
    """

    operator: ClassVar[str] = "se_down_block"
    places: ClassVar[tuple[str, ...]] = ("conv", "gate", "project")
    r: ClassVar[int] = 3
    s: ClassVar[int] = 3
    stride: ClassVar[tuple[int, int]] = (2, 2)
    pad: ClassVar[tuple[int, int]] = (1, 1)
    dilation: ClassVar[tuple[int, int]] = (1, 1)
    groups: ClassVar[int] = 1
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
            self._x,
            Operand("weight1", "weight", (self.k, self.c, 3, 3), self.dtype),
            Operand("weight2", "weight", (self.k, self.k, 3, 3), self.dtype),
            Operand("projection", "weight", (self.k, self.c, 1, 1), self.dtype),
            *_excitation(self.k, self.hidden, self.dtype),
        )
