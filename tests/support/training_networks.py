"""Networks that the tests of training train, and the inputs they take."""

import torch
from torch import nn


class Small(nn.Module):
    """Convolutions with and without bias, with a stride, in groups, called twice, and in a residual branch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.shared = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.down = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False)
        self.grouped = nn.Conv2d(24, 24, 3, padding=1, groups=3, bias=False)
        self.skip = nn.Conv2d(16, 24, 1, stride=2, bias=False)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.shared(torch.relu(self.shared(x))))
        x = torch.relu(self.grouped(torch.relu(self.down(x))) + self.skip(x))
        return self.head(x.mean((2, 3)))


def images(n=2, seed=0):
    return torch.randn(n, 3, 10, 9, generator=torch.Generator().manual_seed(seed))


def relative_error(found, expected):
    exact = expected.detach().double()
    return float((found.detach().double() - exact).norm() / exact.norm())


class Normed(nn.Module):
    """Batch norms alone, before a ReLU, and before an addition and a ReLU; one is called twice. A max pool."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.shared = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.shared_norm = nn.BatchNorm2d(16, momentum=0.3)
        self.last = nn.Conv2d(16, 24, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(24, eps=1e-3)
        self.skip = nn.Conv2d(16, 24, 1, bias=False)
        self.skip_norm = nn.BatchNorm2d(24)

    def forward(self, x):
        x = self.pool(torch.relu(self.stem_norm(self.stem(x))))
        x = torch.relu(self.shared_norm(self.shared(x)) + x)
        x = nn.functional.relu(x + self.shared_norm(self.shared(x)), inplace=True)
        y = self.last_norm(self.last(x))
        y += self.skip_norm(self.skip(x))
        return y.relu().mean((2, 3))


class Gated(nn.Module):
    """Two blocks with scalars, a scale and a gate; an average pool also reads the result of the first."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.third = nn.Conv2d(16, 24, 3, padding=1, stride=2, bias=False)
        self.shortcut = nn.Conv2d(16, 24, 1, bias=False)
        self.excite = nn.ModuleList([nn.Linear(16, 16), nn.Linear(24, 24)])
        self.scalars = nn.ParameterList([0.3 * torch.randn(1) for _ in range(6)])
        self.scales = nn.ParameterList([1 + 0.3 * torch.randn(1) for _ in range(2)])

    def gated(self, x, i):
        y = x * self.scales[i] + self.scalars[i]
        gate = torch.sigmoid(self.excite[i](y.mean((2, 3))))
        return y * gate[:, :, None, None]

    def forward(self, x):
        x = self.first(x)
        x = nn.functional.relu(x + self.scalars[2]) + self.scalars[3]
        x = nn.functional.relu(self.gated(self.second(x), 0) + x) + self.scalars[4]
        y = self.gated(self.third(x), 1)
        return nn.functional.relu(y + self.shortcut(nn.functional.avg_pool2d(x, 3, 2, 1))) + self.scalars[5]
