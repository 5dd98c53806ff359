"""A compiled module among threads: each new shape is captured at a call, while other threads run."""

import pytest
import torch
from comparison import relative_error
from processes import in_threads
from torch import nn

from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

THREADS, CALLS = 8, 12


@pytest.mark.filterwarnings("error:backend='autotune'")
def test_threads_call_a_warm_module_with_changing_sizes(empty_db, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    compiled = torch.compile(model, backend="autotune", options={"tuning_db": str(empty_db), "max_plans": 64})
    captured = FusedResNet.from_model(model, empty_db, compile=False)
    inputs = [torch.randn(n, 3, size, size) for n in range(2, 10) for size in (8, 9, 10)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        for x in (inputs[0], inputs[-1]):  # from now on, all sizes are dynamic to Dynamo
            compiled(x)

    def work(start):
        with torch.no_grad():
            for i in range(CALLS):
                at = (5 * start + 7 * i) % len(inputs)
                network = captured if start == 0 else compiled  # a capture by torch.export, too
                assert relative_error(network(inputs[at]), expected[at]) < 1e-5

    in_threads(work, ((i,) for i in range(THREADS)))
