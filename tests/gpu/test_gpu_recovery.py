"""FusedResNet on a GPU that runs out of memory, after a kernel that ended the CUDA context, and without a capture."""

import pytest
import torch
from comparison import relative_error
from gpu_network import BATCH, LIMIT, fused, images, precise
from processes import python
from repository import ROOT
from torch import nn

from fused_resnet import FusedResNet

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]

LARGE = 1500
SUPPORT = ROOT / "tests" / "support"


def test_a_device_out_of_memory_recovers(gpu_db):
    net, x, large = fused(gpu_db), images(BATCH), images(LARGE, seed=1)
    y = net(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**24) / total)
    try:
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                net(large)
            assert torch.equal(net(x), y)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert relative_error(net(large), precise(large)) < LIMIT


def test_a_failed_kernel_is_an_exception_that_says_what_to_do(gpu_db):
    done = python(f"""
import sys, torch
sys.path.insert(0, {str(SUPPORT)!r})
from gpu_network import fused, images
net, x = fused({str(gpu_db)!r}), images(2)
net(x)
torch.cuda.synchronize()
beyond = torch.tensor([2**20], device="cuda")
try:
    torch.zeros(4, device="cuda")[beyond]
    torch.cuda.synchronize()
except RuntimeError:
    pass
for given in (x, x, x[:1]):
    try:
        net(given)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
print("still here")
""")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "still here" and len(lines) == 4, done.stdout + done.stderr
    assert lines[0].startswith("EngineError") and "start the process again" in lines[0]


class Normalized(nn.Module):
    """Reads a value on the host, which a CUDA graph cannot do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Conv2d(3 if i == 0 else 8, 8, 3) for i in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x))
        return self.third(y / y.abs().max().item())


@torch.no_grad()
def test_an_operator_that_cannot_be_captured(empty_db):
    module = Normalized().eval().cuda()
    network = FusedResNet.from_model(module, empty_db)
    x = torch.randn(4, 3, 24, 24, device="cuda")
    with pytest.warns(UserWarning, match="runs without a CUDA graph: one of torch's operators cannot be captured"):
        y = network(x)
    for _ in range(3):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            assert relative_error(network(x), module(x)) < LIMIT
    assert relative_error(y, module(x)) < LIMIT
