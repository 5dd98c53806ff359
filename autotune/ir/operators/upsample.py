"""Resizing of images by the nearest pixel or by linear interpolation."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.core import ProblemError, require_one_of
from autotune.ir.problem.base import Images, Tensors
from autotune.ir.problem.fields import NonNegativePair
from autotune.ir.problem.registry import register

MODES = ("nearest", "nearest_exact", "bilinear", "bilinear_corners")
"""bilinear_corners: torch's align_corners=True."""
_LARGEST = 2**31 - 1  # of the kernels' 32-bit positions


@register
class Upsample(Images):
    """Resized images: x (n, h, w, c), y (n, p, q, c), by the nearest pixel or by linear interpolation in both axes.

    rows=a,b says that a/b input rows correspond to one output row, and columns=a,b the same of columns; they are given
    because h/p is not the ratio of a resize by a factor that does not divide p. Positions are computed from these
    integers without rounding. Output row i reads from row a i / b (nearest, bilinear_corners), or
    a (i + 1/2) / b (nearest_exact) less 1/2 (bilinear).
    """

    operator: ClassVar[str] = "upsample"
    sizes: ClassVar[str] = "n h w c p q slope_h shift_h over_h slope_w shift_w over_w linear"
    size_fields: ClassVar[tuple[str, ...]] = ("h", "w", "p", "q", "rows", "columns")
    p: int
    q: int
    rows: NonNegativePair
    columns: NonNegativePair
    mode: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("mode of upsample", self.mode, list(MODES))
        if 0 in (self.rows[1], self.columns[1]):
            raise ProblemError(f"'{self}': the second numbers of rows and columns must be at least 1")
        for ratio, extent in ((self.rows, self.p), (self.columns, self.q)):
            slope, _, over = self._position(ratio)
            if slope * extent + over > _LARGEST:
                raise ProblemError(f"'{self}': positions exceed 32 bits: write rows and columns in smaller numbers")

    @property
    def linear(self) -> int:
        """Return 1 if it interpolates, 0 if it takes the nearest pixel."""
        return int(self.mode.startswith("bilinear"))

    def struct_values(self) -> tuple[int, ...]:
        """Return the sizes, and the fractions of `_position` for rows and for columns."""
        of_axes = (*self._position(self.rows), *self._position(self.columns))
        return (self.n, self.h, self.w, self.c, self.p, self.q, *of_axes, self.linear)

    def _position(self, ratio: tuple[int, int]) -> tuple[int, int, int]:
        """Return (slope, shift, over): output pixel i reads from position (slope i + shift) / over, at least 0."""
        a, b = ratio
        if self.mode in ("nearest", "bilinear_corners"):
            return a, 0, b
        return 2 * a, a if self.mode == "nearest_exact" else a - b, 2 * b

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, c)."""
        return (self.n, self.p, self.q, self.c)

    @property
    def short_name(self) -> str:
        """Return the mode, the channels and both sizes."""
        return f"{self.mode} {self.c} @{self.h}x{self.w}>{self.p}x{self.q}"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Interpolate along rows, then along columns."""
        return self._resized(self._resized(tensors["x"], 1, self.rows), 2, self.columns)

    def source(
        self, axis: int, ratio: tuple[int, int], device: torch.device | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input position of each output position along an axis: its whole part, and its fraction.

        Args:
            axis: 1 for rows, 2 for columns.
            ratio: `rows` or `columns`.
            device: Of the results; by default the CPU. On a GPU nothing is copied from the host, so that a CUDA graph
                can hold the computation.
        """
        slope, shift, over = self._position(ratio)
        last = (self.h, self.w)[axis - 1] - 1
        numerator = (torch.arange(self.output_shape[axis], device=device) * slope + shift).clamp_min(0)
        whole = numerator.div(over, rounding_mode="floor").clamp_max(last)
        return whole, (numerator - whole * over).double() / over

    def _resized(self, x: torch.Tensor, axis: int, ratio: tuple[int, int]) -> torch.Tensor:
        whole, fraction = self.source(axis, ratio, x.device)
        near = x.index_select(axis, whole)
        if not self.linear:
            return near
        shape = [-1 if i == axis else 1 for i in range(4)]
        far = x.index_select(axis, (whole + 1).clamp_max(x.shape[axis] - 1))
        return near + (far - near) * fraction.to(x.dtype).view(shape)
