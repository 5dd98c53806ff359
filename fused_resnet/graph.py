"""A network as layers: which problems it is made of, and what tensors flow between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.epilogue import Epilogue
from autotune.errors import ProblemError, choose
from autotune.problem import AvgPool2d, Conv2d, Problem, SeTail, SpaceToDepth
from fused_resnet.reference import SEResNet9Fixup

INPUT, OUTPUT = "input", "output"
"""Names of the caller's tensors among the buffers."""


@dataclass(frozen=True)
class Layer:
    """One problem of a network.

    buffers: operand -> activation; weights: operand -> key of the state_dict; scalars: keys, in the epilogue's order.
    """

    name: str
    problem: Problem
    buffers: Mapping[str, str]
    weights: Mapping[str, str] = field(default_factory=dict)
    scalars: tuple[str, ...] = ()


def se_resnet9_fixup(n: int, in_channels: int, dtype: str) -> list[Layer]:
    """SE-ResNet9-Fixup for a batch of n.

    A bias before a padded convolution is not a bias after it: at the border fewer taps see it. So each bias1a is added
    by whoever makes the block's input; the input without it is kept only where the identity needs it.
    """
    size = SEResNet9Fixup.input_size
    layers = [
        Layer(
            "stem.0",
            SpaceToDepth(n=n, h=size, w=size, c=in_channels, block=4, dtype=dtype),
            {"x": INPUT, "y": "patches"},
        ),
        Layer(
            "stem.1",
            Conv2d(
                **{"n": n, "h": size // 4, "w": size // 4, "c": 16 * in_channels, "k": 64, "dtype": dtype},
                epilogue=Epilogue.parse("relu,store,add_scalar"),
            ),
            {"x": "patches", "store0": "block0.identity", "y": "block0.biased"},
            {"weight": "stem.1.weight"},
            ("layers.0.0.fixup_bias1a",),
        ),
    ]
    h, c = size // 4, 64
    last = len(SEResNet9Fixup.planes) - 1
    for i, (k, stride) in enumerate(zip(SEResNet9Fixup.planes, SEResNet9Fixup.strides, strict=True)):
        projected = stride != 1 or c != k
        following = None if i == last else f"layers.{i + 1}.0.fixup_bias1a"
        layers += _block(f"layers.{i}.0", f"block{i}", n, h, c, k, stride, dtype, projected, following)
        h, c = h // stride, k
    return layers


def _block(
    key: str, name: str, n: int, h: int, c: int, k: int, stride: int, dtype: str, projected: bool, following: str | None
) -> list[Layer]:
    """One block: its two convolutions, its projection if it has one, and its tail, which adds the next block's bias."""
    out = h // stride
    common = {"n": n, "dtype": dtype}
    window = {"r": 3, "s": 3, "pad": (1, 1)}
    layers = [
        Layer(
            f"{key}.conv1",
            Conv2d(**common, **window, h=h, w=h, c=c, k=k, stride=(stride, stride),
                   epilogue=Epilogue.parse("add_scalar,relu,add_scalar")),
            {"x": f"{name}.biased", "y": f"{name}.inner"},
            {"weight": f"{key}.conv1.weight"},
            (f"{key}.fixup_bias1b", f"{key}.fixup_bias2a"),
        ),
        Layer(
            f"{key}.conv2",
            Conv2d(**common, **window, h=out, w=out, c=k, k=k, epilogue=Epilogue.parse("mul_scalar,add_scalar")),
            {"x": f"{name}.inner", "y": f"{name}.residual"},
            {"weight": f"{key}.conv2.weight"},
            (f"{key}.fixup_scale", f"{key}.fixup_bias2b"),
        ),
    ]
    if projected:
        layers += [
            Layer(
                f"{key}.downsample.0",
                AvgPool2d(**common, **window, h=h, w=h, c=c, stride=(stride, stride)),
                {"x": f"{name}.biased", "y": f"{name}.pooled"},
            ),
            Layer(
                f"{key}.downsample.1",
                Conv2d(**common, h=out, w=out, c=c, k=k),
                {"x": f"{name}.pooled", "y": f"{name}.identity"},
                {"weight": f"{key}.downsample.1.weight"},
            ),
        ]
    following_name = f"block{int(name.removeprefix('block')) + 1}.biased"
    layers.append(
        Layer(
            f"{key}.se",
            SeTail(**common, h=out, w=out, c=k, hidden=k // 16,
                   epilogue=Epilogue.parse("add,relu,add_scalar" if following else "add,relu")),
            {"x": f"{name}.residual", "add0": f"{name}.identity", "y": following_name if following else OUTPUT},
            {"w1": f"{key}.se.excite.0.weight", "b1": f"{key}.se.excite.0.bias",
             "w2": f"{key}.se.excite.2.weight", "b2": f"{key}.se.excite.2.bias"},
            (following,) if following else (),
        )
    )
    return layers


GRAPHS: dict[str, Callable[[int, int, str], list[Layer]]] = {"se_resnet9_fixup": se_resnet9_fixup}
"""Networks by name: (n, in_channels, dtype) -> layers."""


def network(model: str, n: int, in_channels: int, dtype: str) -> list[Layer]:
    """The layers of a network by name; raises UnknownNameError or ProblemError."""
    make = GRAPHS[choose("model", model, list(GRAPHS))]
    if n < 1 or in_channels < 1:
        raise ProblemError(f"batch {n} and in_channels {in_channels} must be at least 1")
    return make(n, in_channels, dtype)
