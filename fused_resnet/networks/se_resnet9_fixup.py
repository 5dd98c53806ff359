"""SE-ResNet9-Fixup in plain torch: the reference of the network that FusedResNet runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from autotune.core import require_one_of


class SpaceToDepth(nn.Module):
    """Moves b x b patches to channels: (N, C, H, W) -> (N, b*b*C, H/b, W/b), output channel (dy*b + dx)*C + c."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Move each block x block patch to channels."""
        n, c, h, w = x.shape
        b = self.block
        patches = x.reshape(n, c, h // b, b, w // b, b)
        return patches.permute(0, 3, 5, 1, 2, 4).reshape(n, b * b * c, h // b, w // b)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (Hu et al., arXiv 1709.01507): scales each channel by a gate.

    The gate is sigmoid(W2 relu(W1 mean(x) + b1) + b2), the mean over the pixels, with planes/16 hidden values.
    """

    def __init__(self, planes: int) -> None:
        super().__init__()
        hidden = planes // 16
        self.excite = nn.Sequential(nn.Linear(planes, hidden), nn.ReLU(), nn.Linear(hidden, planes), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, planes, H, W) scaled by its gate."""
        gate: torch.Tensor = self.excite(x.mean((2, 3)))
        return x * gate[:, :, None, None]


class FixupBlock(nn.Module):
    """A residual block without normalization: scalar biases and a scale, as in Fixup (arXiv 1901.09321), and a gate."""

    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.fixup_bias1a, self.fixup_bias1b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.fixup_bias2a, self.fixup_bias2b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.fixup_scale = nn.Parameter(torch.ones(1))
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.se = SqueezeExcite(planes)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_planes != planes:
            projection = nn.Conv2d(in_planes, planes, 1, bias=False)
            self.downsample = nn.Sequential(nn.AvgPool2d(3, stride, padding=1), projection)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(gated residual branch + identity): (N, planes, H/stride, W/stride)."""
        biased = x + self.fixup_bias1a
        y = F.relu(self.conv1(biased) + self.fixup_bias1b)
        y = self.conv2(y + self.fixup_bias2a) * self.fixup_scale + self.fixup_bias2b
        identity = x if self.downsample is None else self.downsample(biased)
        return F.relu(self.se(y) + identity)


class SEResNet9Fixup(nn.Module):
    """SE-ResNet9-Fixup, the visual encoder of "Large Batch Simulation for Deep RL" (arXiv 2103.07013).

    Input (N, in_channels, 64, 64), output (N, 512, 2, 2).
    """

    input_size = 64
    planes = (64, 128, 256, 512)
    strides = (1, 2, 2, 2)

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self.in_channels = in_channels
        stem = nn.Conv2d(16 * in_channels, 64, 1, bias=False)
        self.stem = nn.Sequential(SpaceToDepth(4), stem, nn.ReLU())
        inputs = (64, *self.planes[:-1])
        blocks = [FixupBlock(*sizes) for sizes in zip(inputs, self.planes, self.strides, strict=True)]
        self.layers = nn.ModuleList([nn.Sequential(block) for block in blocks])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Encode images (N, in_channels, 64, 64) as (N, 512, 2, 2)."""
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return x


LEAST_VARIANCE = 0.01
"""Least variance of a calibrated channel, as a share of the mean of its layer."""

MODELS: dict[str, Callable[[int], nn.Module]] = {"se_resnet9_fixup": SEResNet9Fixup}
"""Model name -> function of in_channels that returns the module."""


def build(model: str = "se_resnet9_fixup", in_channels: int = 3) -> nn.Module:
    """Return a model in eval mode, with its default initialization.

    Raises:
        UnknownNameError: There is no such model.
    """
    return MODELS[require_one_of("model", model, list(MODELS))](in_channels).eval()


@torch.no_grad()
def randomize(module: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter at random, so that each one affects the result; return the module.

    The default initialization has zeros that would hide errors. Weights are normal with variance 2 / fan-in (He et al.,
    arXiv 1502.01852), parameters of one element around 0.5.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            values *= (2 / parameter[0].numel()) ** 0.5
        elif parameter.numel() == 1:
            values = 0.5 + 0.2 * values
        else:
            values *= 0.5
        parameter.copy_(values.to(parameter))
    return module


@torch.no_grad()
def calibrate(module: nn.Module, x: torch.Tensor) -> nn.Module:
    """Set the statistics of all batch normalizations to those of their inputs for x; return the module in eval mode.

    A channel that is constant for x, behind a ReLU that it never passes, would be amplified by 1 / sqrt(eps) for other
    inputs, and float16 would overflow. So no variance is below LEAST_VARIANCE times the mean of its layer.
    """
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average, here of the one batch x
        norm.train()
    if norms:
        module(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        if norm.running_var is not None:
            norm.running_var.clamp_(min=LEAST_VARIANCE * norm.running_var.mean())
    return module.eval()
