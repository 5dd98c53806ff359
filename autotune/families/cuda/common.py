"""The base class of the CUDA families."""

from __future__ import annotations

from typing import TypeVar

from autotune.core import cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Family
from autotune.ir import Problem

P = TypeVar("P", bound=Problem)


class CudaFamily(Family[P]):
    """A family of device images for all CUDA architectures."""

    kind = DEVICE_IMAGE
    architectures = cuda_architectures()
    compile_seconds = (0.9, 0.1)
