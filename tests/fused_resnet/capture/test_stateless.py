"""Models whose forward keeps values: what is a state is refused, and what forward would compute again is not."""

import pytest
import torch
from comparison import relative_error
from torch import nn

from autotune.core import CaptureError
from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")

LIMIT = 1e-6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.scales = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), [1.0, 2.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)) * self.scales[0]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(1))


class Counting(Model):
    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x) + self.count


class Listing(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scales.append(1.0)
        return super().forward(x)


class Recurrent(Model):
    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(2, 8, 8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = super().forward(x) + self.state
        return self.state


class Remembering(Model):
    """Keeps values in a dictionary that is empty at first."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, torch.Tensor] = {}


class Memo(Remembering):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type not in self.kept:
            self.kept[x.device.type] = self.norm.running_mean.view(-1, 1, 1) * 2
        return super().forward(x) + self.kept[x.device.type]


class Streaming(Remembering):
    """Adds the results of all calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.kept["sum"] = self.kept["sum"] + y if "sum" in self.kept else y
        return self.kept["sum"]


class Accumulating(Remembering):
    """Adds the results of all calls in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return self.kept.setdefault("sum", torch.zeros_like(y)).add_(y).clone()


class Anchored(Remembering):
    """Adds the result of the first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + self.kept.setdefault("first", y)


STATES = {
    Counting: "'count' of the model",
    Listing: "'scales' of the model",
    Recurrent: "'state' of the model",
    Streaming: "'sum' of 'kept' of the model",
    Accumulating: "'sum' of 'kept' of the model",
    Anchored: "'first' of 'kept' of the model",
}


@torch.no_grad()
def test_a_memo_is_no_state_and_follows_the_weights(empty_db, x):
    module = Memo().eval()
    network = FusedResNet.from_model(module, empty_db)
    assert relative_error(network(x), module(x)) < LIMIT
    assert not network.kept, "tracing leaves nothing in it"
    for one in (network, module):
        one.norm.running_mean.add_(1)
    module.kept.clear()
    assert relative_error(network(x), module(x)) < LIMIT


@pytest.mark.parametrize(("kind", "name"), STATES.items())
def test_a_forward_that_changes_its_state_is_refused(kind, name, empty_db, x):
    network = FusedResNet.from_model(kind().eval(), empty_db)
    for _ in range(2):
        with pytest.raises(CaptureError, match=f"forward changes .*{name} .*changes no state"):
            network(x)
