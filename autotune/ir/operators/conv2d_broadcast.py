"""Convolution whose epilogue reads tensors that are broadcast to its output."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.operators.conv2d import Convolution
from autotune.ir.problem.registry import register


@register
class Conv2dBroadcast(Convolution):
    """Convolution whose epilogue may read tensors that are broadcast to its output.

    mul_image multiplies by one value for each image and channel, such as the gate of squeeze-and-excitation: a residual
    block whose gates another layer has computed ends with "bias,mul_image,add,relu".
    """

    operator: ClassVar[str] = "conv2d_broadcast"
    broadcasts: ClassVar[bool] = True
