"""SE-ResNet9-Fixup on the CPU for tests: fused from a database, with random weights, and its expected result."""

from functools import cache

import torch
from comparison import relative_error

from autotune.ir import DTYPES
from fused_resnet import FusedResNet
from fused_resnet.capture import capture
from fused_resnet.networks import se_resnet9_fixup

BLOCK = [
    "conv1.weight",
    "conv2.weight",
    "fixup_bias1a",
    "fixup_bias1b",
    "fixup_bias2a",
    "fixup_bias2b",
    "fixup_scale",
    "se.excite.0.weight",
    "se.excite.0.bias",
    "se.excite.2.weight",
    "se.excite.2.bias",
]
KEYS = {
    "stem.1.weight",
    *(f"layers.{i}.0.{name}" for i in range(4) for name in BLOCK),
    *(f"layers.{i}.0.downsample.1.weight" for i in (1, 2, 3)),
}
"""Names of the network's parameters."""
LIMIT = 1e-5


def plain(channels=3, seed=0):
    return se_resnet9_fixup.randomize(se_resnet9_fixup.build(in_channels=channels), seed)


@cache
def network(n, channels=3, dtype="f32"):
    """Its layers, without the alternative that calls torch for all of them."""
    model = se_resnet9_fixup.build(in_channels=channels).to(DTYPES["f32" if dtype == "tf32" else dtype])
    return capture(model, (n, channels, 64, 64), dtype).without_whole


@cache
def weights(channels, seed):
    return plain(channels, seed).state_dict()


def fused(database, channels=3, seed=0):
    network = FusedResNet(database, in_channels=channels)
    network.load_state_dict(weights(channels, seed))
    return network


def images(n, channels=3, seed=0):
    return torch.randn(n, channels, 64, 64, generator=torch.Generator().manual_seed(seed))


def expected(network, x):
    """What the plain network makes of x in float64 with the weights that `network` has now."""
    with torch.device("meta"):
        other = se_resnet9_fixup.build(in_channels=x.shape[1])
    other.load_state_dict({name: value.double() for name, value in network.state_dict().items()}, assign=True)
    with torch.no_grad():
        return other(x.double())


def assert_result(network, x, y):
    assert relative_error(y, expected(network, x)) < LIMIT


def assert_right(network, x):
    y = network(x)
    assert y.shape == (x.shape[0], 512, 2, 2) and y.dtype == x.dtype
    assert relative_error(y, expected(network, x)) < LIMIT
