"""The 8-bit formats of quantized tensors, and the arithmetic of quantization.

Quantization is symmetric: value = scale * byte, where `byte` is a number of the format. Weights have one scale per
output channel, activations one scale per tensor. Everything that differs between formats is in `ByteFormat`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

MAX_PRODUCTS = 2**31 // 2**14
"""Number of products of two signed bytes, each at most 2^14 in magnitude, from which a sum could overflow an int32."""


@dataclass(frozen=True)
class ByteFormat:
    """A format of 8-bit numbers.

    Attributes:
        dtype: Its name in DTYPES.
        precision: The name of the precision that runs networks in it.
        tensors: The dtype of its tensors.
        largest: The largest magnitude of a quantized value. For s8 it is 127, so that the range is symmetric.
        range: (lowest, highest) number, at which the stores of kernels saturate.
        products: The most products that a sum can have without overflow; None if a sum cannot overflow.
        capability: The oldest compute capability (times ten) with instructions for it; 0 where plain integers do.
        constants: Names of the functions of constants (`constant_expr.FUNCTIONS`) that return the quantized weight, and
            the factor of each output channel's sum. They are part of the keys of stored networks.
        nearest: values -> the nearest numbers of the format, ties to even, for values within the range.
    """

    dtype: str
    precision: str
    tensors: torch.dtype
    largest: float
    range: tuple[float, float]
    products: int | None
    capability: int
    constants: tuple[str, str]
    nearest: Callable[[torch.Tensor], torch.Tensor]

    def overflows(self, products: int) -> bool:
        """Return whether a sum of this number of products could overflow."""
        return self.products is not None and products >= self.products

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Return the nearest numbers of the format in the dtype of the values, ties to even; kernels store these."""
        return self.nearest(values.clamp(*self.range))

    def stored(self, values: torch.Tensor) -> torch.Tensor:
        """Return values as a tensor of the format, rounded and saturated."""
        return self.rounded(values).to(self.tensors)

    def scale_of(self, largest: torch.Tensor) -> torch.Tensor:
        """Return the scale with which magnitudes up to `largest` use the whole range.

        It is 1 where that is no normal number of float32, so that such magnitudes become 0.
        """
        scale = largest / self.largest
        return torch.where(scale >= torch.finfo(torch.float32).tiny, scale, torch.ones_like(scale))

    def quantized(self, values: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
        """Return values / scale, rounded to the nearest number and saturated to +-largest, in the values' dtype."""
        return self.nearest((values / scale).clamp(-self.largest, self.largest))

    def quantize_weight(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize a weight (k, ...).

        Returns:
            The weight in the format, in its own shape, and the scale of each output channel, float32 (k,).
        """
        values = weight.detach().float()
        scale = self.scale_of(values.abs().flatten(1).amax(1))
        return self.quantized(values, scale.view(-1, *[1] * (values.dim() - 1))).to(self.tensors), scale


def _nearest_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Round to 3 bits behind the leading one; below 2^-6 to multiples of 2^-9 (OCP 8-bit floating point, E4M3)."""
    exponent = torch.frexp(values).exponent.clamp(min=-5)  # frexp's mantissa is in [0.5, 1)
    step = torch.ldexp(torch.ones_like(values), exponent - 4)
    return (values / step).round() * step


S8 = ByteFormat(
    dtype="s8",
    precision="int8",
    tensors=torch.int8,
    largest=127,
    range=(-128, 127),
    products=MAX_PRODUCTS,
    capability=0,
    constants=("bytes", "byte_scales"),
    nearest=torch.round,
)
"""Signed bytes; sums of products are int32."""
E4M3 = ByteFormat(
    dtype="e4m3",
    precision="fp8",
    tensors=torch.float8_e4m3fn,
    largest=448,
    range=(-448, 448),
    products=None,
    capability=89,
    constants=("e4m3", "e4m3_scales"),
    nearest=_nearest_e4m3,
)
"""Floating point with 4 bits of exponent and 3 of mantissa, without infinities; sums of products are float32."""
BYTE_FORMATS = {one.dtype: one for one in (S8, E4M3)}
"""Dtype -> format."""
BYTE_PRECISIONS = {one.precision: one for one in (S8, E4M3)}
"""Precision -> format."""
