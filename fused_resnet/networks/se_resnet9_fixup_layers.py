"""SE-ResNet9-Fixup as layers: its problems, their wiring, and the alternatives that fuse them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune.core import ProblemError, require_one_of
from autotune.ir import (
    INPUT,
    OUTPUT,
    Alternative,
    CallerTensor,
    ConstantExpr,
    Epilogue,
    Layer,
    Network,
    NetworkKey,
    as_one_pixel,
    fold_gate,
    fuse_pool_projection,
    fuse_projection,
)
from autotune.ir.operators import (
    AvgPool2d,
    Conv2d,
    Gemm,
    PatchConv2d,
    SeBlock,
    SeDownBlock,
    SeTail,
    SpaceToDepth,
    StemSeBlock,
    StemSeBlockPool,
)
from fused_resnet.networks.se_resnet9_fixup import SEResNet9Fixup

_MIN_SIDE = 4  # of the output of a block that runs as one kernel; smaller images have too many channels for it

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
    whole = replace(
        layers[1],
        name="stem",
        problem=PatchConv2d(n=n, h=size, w=size, c=in_channels, k=64, block=4, dtype=dtype, epilogue=stem.epilogue),
        buffers={**layers[1].buffers, "x": INPUT},
        weights={"weight": ConstantExpr("patch_filter", ("stem.1.weight",), (4,))},
    )
    alternatives = [Alternative("stem", ("stem.0", "stem.1"), (whole,))]
    h, c = size // 4, 64
    last = len(SEResNet9Fixup.planes) - 1
    for i, (k, stride) in enumerate(zip(SEResNet9Fixup.planes, SEResNet9Fixup.strides, strict=True)):
        block = _Block(i, i == last, n, h, c, k, stride, dtype)
        layers += block.layers()
        alternatives += block.alternatives()
        h, c = h // stride, k
    # Listed after the alternatives that it excludes: it must be faster than both together to be chosen.
    block0 = next(one for one in alternatives if one.name == "layers.0.0.block")
    both = _stem_and_block(alternatives[0], block0)
    pool = next(layer for layer in layers if isinstance(layer.problem, AvgPool2d))
    return layers, [*alternatives, both, _with_pool(both, pool)]


def _stem_and_block(stem: Alternative, block: Alternative) -> Alternative:
    """Return the stem and block 0 as one kernel, which keeps the tensors between them on the multiprocessor."""
    (first,), (second,) = stem.layers, block.layers
    patches, residual = first.problem, second.problem
    assert isinstance(patches, PatchConv2d) and isinstance(residual, SeBlock)
    names = ["keep" if name == "store" else name for name in patches.epilogue.names]
    names += ["conv", *("add_kept" if name == "add" else name for name in residual.epilogue.names)]
    layer = Layer(
        "stem.block",
        StemSeBlock(
            n=patches.n, h=patches.h, w=patches.w, c=patches.c, k=patches.k, block=patches.block,
            hidden=residual.hidden, dtype=patches.dtype, epilogue=Epilogue(tuple(names)),
        ),
        {"x": INPUT, "y": second.buffers["y"]},
        {**first.weights, **second.weights},
        (*first.scalars, *second.scalars),
    )  # fmt: skip
    return Alternative(layer.name, (*stem.replaces, *block.replaces), (layer,))


def _with_pool(block: Alternative, pool: Layer) -> Alternative:
    """Return the same with the average pool of the next block as a second output, so that no kernel reads y for it."""
    (layer,) = block.layers
    whole = replace(
        layer,
        name=f"{layer.name}.pool",
        problem=StemSeBlockPool(**vars(layer.problem)),
        buffers={**layer.buffers, "pooled": pool.buffers["y"]},
    )
    return Alternative(whole.name, (*block.replaces, pool.name), (whole,))


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
        """Return the alternatives to the block's layers.

        - pool and projection as one convolution;
        - for images of up to 2x2 pixels, the second convolution as a product with whole images;
        - the second convolution with the gate, and with the projection;
        - the whole block as one kernel.
        """
        found = []
        if self._projects:
            pool, project = self._pool(), self._project()
            both = fuse_pool_projection(pool, project, self._key("downsample"))
            found.append(Alternative(both.name, (pool.name, project.name), (both,)))
        conv2, tail = self._conv2(), self._tail()
        pairs = {"": (conv2, tail)}
        if self.h // self.stride <= 2:
            dense = self._dense_conv2()
            found.append(Alternative(dense.name, (conv2.name,), (dense,)))
            pairs[".dense"] = as_one_pixel(dense, tail)
        for kind, (product, gate) in pairs.items():
            with_gate = fold_gate(product, gate, self._key(f"conv2{kind}.folded_se"))
            assert with_gate
            found.append(Alternative(with_gate.name, (conv2.name, tail.name), (with_gate,)))
            if self._projects:
                project = self._project()
                skip = fuse_projection(with_gate, project, self._key(f"conv2{kind}.se_skip"))
                assert skip
                found.append(Alternative(skip.name, (project.name, conv2.name, tail.name), (skip,)))
        if not self._projects or self.h // self.stride >= _MIN_SIDE:
            whole = self._fused_with_projection() if self._projects else self._fused()
            found.append(Alternative(whole.name, tuple(layer.name for layer in self.layers()), (whole,)))
        return found

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

    def _dense_conv2(self) -> Layer:
        """Return the second convolution as a matrix product with whole images.

        On images of 2x2 pixels five of the nine taps of each output read only padding, so the product is less work.
        """
        plain, size = self._conv2(), self.h // self.stride
        count = size * size * self.k
        return replace(
            plain,
            name=f"{plain.name}.dense",
            problem=Gemm(m=self.n, n=count, k=count, dtype=self.dtype, epilogue=plain.problem.epilogue),
            weights={"weight": ConstantExpr("dense", (self._key("conv2.weight"),), (size, size, 1, 1))},
        )

    def _fused(self) -> Layer:
        """Return the block as one kernel, which keeps all tensors between input and output on the multiprocessor."""
        conv1, conv2, tail = self.layers()
        chains = [part.problem.epilogue.names for part in (conv1, conv2, tail)]
        return Layer(
            self._key("block"),
            SeBlock(
                n=self.n, h=self.h, w=self.h, c=self.c, hidden=self.k // 16, dtype=self.dtype,
                epilogue=Epilogue((*chains[0], "conv", *chains[1], "gate", *chains[2])),
            ),
            {**tail.buffers, "x": self._buffer("biased")},
            {"weight1": conv1.weights["weight"], "weight2": conv2.weights["weight"], **tail.weights},
            (*conv1.scalars, *conv2.scalars, *tail.scalars),
        )  # fmt: skip

    def _fused_with_projection(self) -> Layer:
        """Return a block that halves its image as one kernel; `project` takes the place of the tail's first `add`."""
        conv1, _, project, conv2, tail = self.layers()
        first, second, (_, *last) = (part.problem.epilogue.names for part in (conv1, conv2, tail))
        weights = {"weight1": conv1.weights["weight"], "weight2": conv2.weights["weight"]}
        return Layer(
            self._key("block"),
            SeDownBlock(
                n=self.n, h=self.h, w=self.h, c=self.c, k=self.k, hidden=self.k // 16, dtype=self.dtype,
                epilogue=Epilogue((*first, "conv", *second, "gate", "project", *last)),
            ),
            {"x": self._buffer("biased"), "y": tail.buffers["y"]},
            {**weights, "projection": project.weights["weight"], **tail.weights},
            (*conv1.scalars, *conv2.scalars, *tail.scalars),
        )  # fmt: skip

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
