"""Networks with layers on torch's operators: one CUDA graph, with copies of the caller's tensors."""

import itertools

import pytest
import torch
from comparison import relative_error
from processes import in_threads
from torch import nn
from torch.nn import functional as F

from fused_resnet import FusedResNet

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]

LIMIT = 2e-3


class Sums(nn.Module):
    """Begins and ends with operators that no kernel of ours computes; its first result is read again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        first = torch.cumsum(x, 2)
        return first, torch.cumsum(self.conv(first), 3)


class Dropped(nn.Module):
    """Draws random numbers also in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        return F.dropout(self.conv(x), 0.5, training=True)


def images(seed, memory_format=torch.contiguous_format):
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(4, 3, 24, 24, device="cuda", generator=generator)
    return x.contiguous(memory_format=memory_format)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("inductor", [False, True])
@torch.no_grad()
def test_each_run_reads_and_writes_the_callers_tensors(empty_db, memory_format, inductor):
    module = Sums().eval().cuda()
    network = FusedResNet.from_model(module, empty_db, compile=inductor)
    kept = [(x, network(x)) for x in (images(seed, memory_format) for seed in range(6))]
    assert len({y.data_ptr() for _, ys in kept for y in ys}) == 12
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for x, ys in kept:
            for y, expected in zip(ys, module(x), strict=True):
                assert relative_error(y, expected) < LIMIT


@torch.no_grad()
def test_the_fast_path_runs_what_torch_captured(empty_db):
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Softshrink()).eval().cuda()
    network = FusedResNet.from_model(module, empty_db, compile=False)
    inputs = [images(seed) for seed in range(3)]
    expected = [network(x) for x in inputs]  # the first call binds; the next ones are the engine's
    _, context, _ = network._bound(inputs[0])
    assert context.direct is not None
    wrong = []

    def work(i):
        for _ in range(20):
            y = torch.full_like(expected[i], torch.nan).contiguous(memory_format=torch.channels_last)
            network(inputs[i], out=y)
            if not torch.equal(y, expected[i]):
                wrong.append(i)

    torch.cuda.synchronize()
    in_threads(work, ((i,) for i in range(3)))
    assert not wrong
    for x, y in zip(inputs, expected, strict=True):
        assert relative_error(y, module(x)) < LIMIT


@torch.no_grad()
def test_each_call_draws_new_random_numbers(empty_db):
    network = FusedResNet.from_model(Dropped().eval().cuda(), empty_db, compile=False)
    x = images(0)
    results = [network(x) for _ in range(4)]
    assert all(0.4 < float((y == 0).float().mean()) < 0.6 for y in results)
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(results))
