"""Networks with layers on torch's operators that come and go beside CUDA graphs of torch and torch.compile."""

import gc

import pytest
import torch
from comparison import relative_error
from torch import nn

from fused_resnet import FusedResNet

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]

LIMIT = 5e-3
PATTERN = 0x5A


class Mixer(nn.Module):
    """Convolutions, normalisation and matrix products with few rows and long sums, for which cuBLAS splits K."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 4, 4), nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
        )
        self.norm = nn.LayerNorm(64 * width)
        self.head = nn.Sequential(nn.Linear(64 * width, 2048), nn.GELU(), nn.Linear(2048, 256), nn.Softmax(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.stem(x).flatten(1)))


def mixer(width: int) -> nn.Module:
    torch.manual_seed(width)
    return Mixer(width).eval().cuda().half()


def images(seed: int = 0) -> torch.Tensor:
    return torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).cuda().half()


@torch.no_grad()
def in_graph(module: nn.Module, x: torch.Tensor):
    """Return a function that replays the module as a CUDA graph of torch, and keeps what the graph reads."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            module(x)
    torch.cuda.current_stream().wait_stream(side)
    torch._C._cuda_clearCublasWorkspaces()  # else the graph may use a workspace in the pool of another, which goes
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module(x)
    return lambda: (graph.replay(), y, module, x)[1]


def test_a_network_writes_to_no_memory_that_it_does_not_own(empty_db):
    """torch.compile frees cuBLAS's workspaces when it records a CUDA graph; later allocations get their memory."""
    network, x = FusedResNet.from_model(mixer(64), empty_db), images()
    expected = network(x)
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    mega = 2**20
    sizes = [size * mega for size in (1, 2, 4, 8, 16, 32, 64) for _ in range(8)]
    others = [torch.full((size,), PATTERN, dtype=torch.uint8, device="cuda") for size in sizes]
    results = [network(x) for _ in range(20)]
    torch.cuda.synchronize()
    assert all(torch.equal(y, expected) for y in results)
    assert all(bool((other == PATTERN).all()) for other in others)


def test_networks_that_come_and_go_beside_graphs_of_torch(empty_db):
    kept = []
    for round_ in range(3):
        for width in (32, 64, 96):
            module, x = mixer(width), images(width)
            with torch.no_grad():
                expected = module(x)
            network = FusedResNet.from_model(module, empty_db)
            compiled = torch.compile(module, mode="reduce-overhead", dynamic=False)
            calls = {"ours": lambda x=x, network=network: network(x), "graph": in_graph(module, x)}
            if round_ < 2:
                calls["compile"] = torch.no_grad()(lambda x=x, compiled=compiled: compiled(x))
            kept.append((calls, expected))
            for calls, expected in kept:
                for _ in range(5):
                    for name, call in calls.items():
                        y = call()
                        torch.cuda.synchronize()
                        assert relative_error(y, expected) < LIMIT, (round_, width, name)
            if len(kept) > 2:
                del kept[0]  # the oldest network goes, with its graphs
        gc.collect()
        torch.cuda.empty_cache()
