"""The base classes of the CUDA families."""

from __future__ import annotations

from typing import TypeVar

from autotune.core import cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Family
from autotune.ir import BYTE_FORMATS, Problem

P = TypeVar("P", bound=Problem)

WITH_BYTES = (*Family.dtypes, *BYTE_FORMATS)
"""The dtypes of families that also have kernels for quantized tensors."""


class CudaFamily(Family[P]):
    """A family of device images for all CUDA architectures."""

    kind = DEVICE_IMAGE
    architectures = cuda_architectures()
    compile_seconds = (0.9, 0.1)


class TensorCoreFamily(CudaFamily[P]):
    """A family whose products are those of fp16 and bf16 on tensor cores, as sm_80 has them first."""

    architectures = cuda_architectures(since=80)
    dtypes = ("f16", "bf16")
