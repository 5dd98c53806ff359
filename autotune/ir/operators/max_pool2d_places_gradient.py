"""Input gradient of a max pool, from the places of the largest values."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.operators.max_pool2d_places import PoolWithPlaces
from autotune.ir.problem.base import Operand, Tensors, as_nhwc
from autotune.ir.problem.registry import register


@register
class MaxPool2dPlacesGradient(PoolWithPlaces):
    """Input gradient of max pooling: dy and places (n, p, q, c), y = dx (n, h, w, c).

    MaxPool2dPlaces computes the places. A place that is in no pixel of the image gets nothing.
    """

    operator: ClassVar[str] = "max_pool2d_places_gradient"

    @property
    def short_name(self) -> str:
        """Return the window, the channels and the image."""
        return f"max gradient by places {self._window_name}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, c)."""
        return self._x.shape

    @property
    def flops(self) -> int:
        """Return one addition for each gradient: n p q c."""
        return self.n * self.p * self.q * self.c

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("dy", "input", (self.n, self.p, self.q, self.c), self.dtype), self._places("input"))

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Add each gradient to the pixel of its place."""
        dy, places = (tensors[name].permute(0, 3, 1, 2) for name in ("dy", "places"))
        taps = torch.arange(self.r * self.s, device=dy.device)[:, None, None]
        shares = torch.where(places[:, :, None] == taps, dy[:, :, None], 0)  # (n, c, r s, p, q)
        columns = shares.reshape(self.n, self.c * self.r * self.s, self.p * self.q)
        tall, wide = (self.p - 1) * self.stride[0] + self.r, (self.q - 1) * self.stride[1] + self.s
        folded = F.fold(columns, (tall, wide), (self.r, self.s), stride=self.stride)
        # Windows begin in the padding. They may end before the image does, or with ceil_mode behind it.
        end_h, end_w = self.pad[0] + self.h, self.pad[1] + self.w
        whole = F.pad(folded, (0, max(0, end_w - wide), 0, max(0, end_h - tall)))
        return as_nhwc(whole[:, :, self.pad[0] : end_h, self.pad[1] : end_w])
