"""SE-ResNet9-Fixup as layers: its problems, their wiring, and the alternatives that fuse them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.core import ProblemError, require_one_of
from autotune.ir import (
    INPUT,
    OUTPUT,
    Alternative,
    CallerTensor,
    Epilogue,
    Layer,
    Network,
    NetworkKey,
    fold_gate,
    fuse_pool_projection,
)
from autotune.ir.alternatives import patch_stems, se_blocks
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.operators import (
    AvgPool2d,
    Conv2d,
    SeTail,
    SpaceToDepth,
)
from fused_resnet.networks.se_resnet9_fixup import SEResNet9Fixup

Layers = tuple[list[Layer], list[Alternative]]
"""Layers of a network, and the alternatives to them."""


def se_resnet9_fixup(n: int, in_channels: int, dtype: str) -> Layers:
    """Return the layers of SE-ResNet9-Fixup and their alternatives.

    A bias before a padded convolution cannot become a bias after it, because fewer taps read it at the border. So the
    layer that writes a block's input adds the block's bias1a. It also stores the input without this bias if the block's
    identity is its input.

    Args:
        n: Batch size.
        in_channels: Channels of the image.
        dtype: Name of the dtype.
    """
    size = SEResNet9Fixup.input_size
    patches = SpaceToDepth(n=n, h=size, w=size, c=in_channels, block=4, dtype=dtype)
    stem = Conv2d(
        n=n, h=size // 4, w=size // 4, c=16 * in_channels, k=64, dtype=dtype, epilogue=_chain("relu,store,add_scalar")
    )
    layers = [
        Layer("stem.0", patches, {"x": INPUT, "y": "patches"}),
        Layer(
            "stem.1",
            stem,
            {"x": "patches", "store0": "block0.identity", "y": "block0.biased"},
            {"weight": "stem.1.weight"},
            ("layers.0.0.fixup_bias1a",),
        ),
    ]
    alternatives: list[Alternative] = []
    h, c = size // 4, 64
    last = len(SEResNet9Fixup.planes) - 1
    for i, (k, stride) in enumerate(zip(SEResNet9Fixup.planes, SEResNet9Fixup.strides, strict=True)):
        block = _Block(i, i == last, n, h, c, k, stride, dtype)
        layers += block.layers()
        alternatives += block.alternatives()
        h, c = h // stride, k
    wiring = Wiring(layers)
    blocks = list(se_blocks(wiring))
    return layers, [*alternatives, *blocks, *patch_stems(wiring, blocks)]


@dataclass(frozen=True)
class _Block:
    """A residual block: input (n, h, h, c), output (n, h/stride, h/stride, k)."""

    index: int
    last: bool
    n: int
    h: int
    c: int
    k: int
    stride: int
    dtype: str

    def layers(self) -> list[Layer]:
        """Return the two convolutions, the projection if there is one, and the tail, which adds the next block's bias.

        The projection comes after the first convolution, so that the convolution, which the others wait for, starts
        first.
        """
        projection = [self._pool(), self._project()] if self._projects else []
        return [self._conv1(), *projection, self._conv2(), self._tail()]

    def alternatives(self) -> list[Alternative]:
        """Return the pool and the projection as one convolution, and the second convolution with the gate."""
        found = []
        if self._projects:
            pool, project = self._pool(), self._project()
            both = fuse_pool_projection(pool, project, self._key("downsample"))
            found.append(Alternative(both.name, (pool.name, project.name), (both,)))
        conv2, tail = self._conv2(), self._tail()
        with_gate = fold_gate(conv2, tail, self._key("conv2.folded_se"))
        assert with_gate
        return [*found, Alternative(with_gate.name, (conv2.name, tail.name), (with_gate,))]

    @property
    def _projects(self) -> bool:
        return self.stride != 1 or self.c != self.k

    def _key(self, name: str) -> str:
        return f"layers.{self.index}.0.{name}"

    def _buffer(self, name: str) -> str:
        return f"block{self.index}.{name}"

    def _conv(self, c: int, h: int, size: int, stride: int, epilogue: str) -> Conv2d:
        return Conv2d(
            n=self.n, h=h, w=h, c=c, k=self.k, r=size, s=size, stride=(stride, stride), pad=(size // 2, size // 2),
            dtype=self.dtype, epilogue=_chain(epilogue),
        )  # fmt: skip

    def _conv1(self) -> Layer:
        return Layer(
            self._key("conv1"),
            self._conv(self.c, self.h, 3, self.stride, "add_scalar,relu,add_scalar"),
            {"x": self._buffer("biased"), "y": self._buffer("inner")},
            {"weight": self._key("conv1.weight")},
            (self._key("fixup_bias1b"), self._key("fixup_bias2a")),
        )

    def _conv2(self) -> Layer:
        return Layer(
            self._key("conv2"),
            self._conv(self.k, self.h // self.stride, 3, 1, "mul_scalar,add_scalar"),
            {"x": self._buffer("inner"), "y": self._buffer("residual")},
            {"weight": self._key("conv2.weight")},
            (self._key("fixup_scale"), self._key("fixup_bias2b")),
        )

    def _pool(self) -> Layer:
        stride = (self.stride, self.stride)
        return Layer(
            self._key("downsample.0"),
            AvgPool2d(n=self.n, h=self.h, w=self.h, c=self.c, r=3, s=3, stride=stride, pad=(1, 1), dtype=self.dtype),
            {"x": self._buffer("biased"), "y": self._buffer("pooled")},
        )

    def _project(self) -> Layer:
        return Layer(
            self._key("downsample.1"),
            self._conv(self.c, self.h // self.stride, 1, 1, "none"),
            {"x": self._buffer("pooled"), "y": self._buffer("identity")},
            {"weight": self._key("downsample.1.weight")},
        )

    def _tail(self) -> Layer:
        h, output = self.h // self.stride, OUTPUT if self.last else f"block{self.index + 1}.biased"
        chain = _chain("add,relu" if self.last else "add,relu,add_scalar")
        return Layer(
            self._key("se"),
            SeTail(n=self.n, h=h, w=h, c=self.k, hidden=self.k // 16, dtype=self.dtype, epilogue=chain),
            {"x": self._buffer("residual"), "add0": self._buffer("identity"), "y": output},
            {
                "w1": self._key("se.excite.0.weight"),
                "b1": self._key("se.excite.0.bias"),
                "w2": self._key("se.excite.2.weight"),
                "b2": self._key("se.excite.2.bias"),
            },
            () if self.last else (f"layers.{self.index + 1}.0.fixup_bias1a",),
        )


def _chain(text: str) -> Epilogue:
    return Epilogue.parse(text)


GRAPHS: dict[str, Callable[[int, int, str], Layers]] = {"se_resnet9_fixup": se_resnet9_fixup}
"""Model name -> function of (n, in_channels, dtype) that returns layers and alternatives."""


def network(model: str, n: int, in_channels: int, dtype: str) -> Network:
    """Return a model as a network of layers.

    Args:
        model: A name in GRAPHS.
        n: Batch size.
        in_channels: Channels of the image.
        dtype: Name of the dtype.

    Raises:
        UnknownNameError: There is no such model or dtype.
        ProblemError: `n` or `in_channels` is less than 1.
    """
    make = GRAPHS[require_one_of("model", model, list(GRAPHS))]
    if n < 1 or in_channels < 1:
        raise ProblemError(f"batch {n} and in_channels {in_channels} must be at least 1")
    key = NetworkKey(model, n, (("in_channels", str(in_channels)), ("dtype", dtype)))
    layers, alternatives = make(n, in_channels, dtype)
    first, last = layers[0].problem.operands()[0], layers[-1].problem
    n, p, q, k = last.output_shape
    return Network(
        key,
        tuple(layers),
        (CallerTensor(first.shape, dtype),),
        (CallerTensor((n, k, p, q), dtype),),
        tuple(alternatives),
    )
