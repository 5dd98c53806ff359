"""The base classes of the CUDA families."""

from __future__ import annotations

from typing import TypeVar

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Rules
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.ir import BYTE_FORMATS, Epilogue, Problem
from autotune.ir.operators import Concat
from autotune.ir.problem.base import Images

P = TypeVar("P", bound=Problem)
V = TypeVar("V", bound=Images | Concat)

WITH_BYTES = (*Family.dtypes, *BYTE_FORMATS)
"""The dtypes of families that also have kernels for quantized tensors."""


class CudaFamily(Family[P]):
    """A family of device images for all CUDA architectures."""

    kind = DEVICE_IMAGE
    architectures = cuda_architectures()
    compile_seconds = (0.9, 0.1)


class VectorFamily(CudaFamily[V]):
    """Kernels whose threads access neighbouring channels together; the parameter `vector` is their number."""

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_access(int(config["vector"]), dtype)

    def unfit(self, problem: V, config: Config, arch: Architecture) -> Rules:
        yield require_whole_vectors(problem.c, int(config["vector"]))
        yield from super().unfit(problem, config, arch)


class TensorCoreFamily(CudaFamily[P]):
    """A family whose products are those of fp16 and bf16 on tensor cores, as sm_80 has them first."""

    architectures = cuda_architectures(since=80)
    dtypes = ("f16", "bf16")
