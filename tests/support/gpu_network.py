"""SE-ResNet9-Fixup on a GPU for tests: fused from a database, with random weights, and its expected result."""

import torch

from fused_resnet import FusedResNet
from fused_resnet.networks import se_resnet9_fixup

BATCH = 8
LIMIT = 5e-3


def plain(channels=3, dtype=torch.float32):
    return se_resnet9_fixup.randomize(se_resnet9_fixup.build(in_channels=channels), seed=channels).to("cuda", dtype)


def fused(path, channels=3, dtype=torch.float16, **options):
    network = FusedResNet(path, in_channels=channels, **options)
    network.load_state_dict(plain(channels).state_dict())
    return network.to("cuda", dtype)


def images(n, channels=3, seed=0, dtype=torch.float16):
    values = torch.randn(n, channels, 64, 64, generator=torch.Generator().manual_seed(seed))
    return values.to("cuda", dtype)


@torch.no_grad()
def precise(x):
    """The plain network in float32, without TF32, on the rounded input."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return plain(x.shape[1])(x.float())


def assert_streams_do_not_meet(network, num_streams, runs):
    """Check the results of runs on several streams that nobody orders."""
    inputs = [images(BATCH, seed=seed) for seed in range(num_streams)]
    expected = [network(x) for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    results = [[] for _ in inputs]
    for _ in range(runs):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i].append(network(inputs[i]))
    torch.cuda.synchronize()
    for found, y in zip(results, expected, strict=True):
        assert all(torch.equal(other, y) for other in found)
