"""The base of operators on one pixel at a time, and the struct of those that need only an image's size."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.problem.base import Images, Tensors, problem_class

IMAGE_SIZES = "n h w c"
IMAGE_STRUCT = "at_pixels"


@problem_class
class Pixelwise(Images):
    """Each pixel of y (n, h, w, c) depends on the pixel of x (n, h, w, c) at its position."""

    sizes: ClassVar[str] = IMAGE_SIZES
    struct: ClassVar[str] = IMAGE_STRUCT

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Return x: the epilogue is the whole arithmetic."""
        return tensors["x"]
