"""The 3x3 convolution of the residual blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from autotune.ir.problem.base import as_nchw, as_nhwc


def conv3x3(x: torch.Tensor, weight: torch.Tensor, stride: int = 1) -> torch.Tensor:
    """Convolve x (n, h, w, c) with weight (k, c, 3, 3) and padding 1."""
    return as_nhwc(F.conv2d(as_nchw(x), weight, stride=stride, padding=1))
