"""Normalizations on a GPU whose threads own channels and walk the pixels: templates/cuda/pixel_columns.cuh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.cuda.common import VectorFamily
from autotune.ir import DTYPES
from autotune.ir.operators import (
    BatchNormGradient,
    BatchNormGradientSums,
    BatchNormStatistics,
    GroupStatistics,
    Normalize,
)
from autotune.ir.problem.base import Images

P = TypeVar("P", bound=Images)

_MAX_SPLITS, _MAX_PIXELS = 4096, 2**30  # of why_refused in the header
_ADDRESSES = 24  # registers of a thread for addresses and counters: a round number from `cuobjdump -res-usage`
_RESIDENT = (1024, 768, 512)
"""Threads that the registers of an SM must hold: the largest number whose threads have registers for all loads of a
chunk. Without such a bound, the compiler may save registers by issuing loads one after the other."""
_SM_THREADS = (1024, 2048, 512, 4096)  # threads of a grid for each SM that are timed, the most promising first
_BANDWIDTH, _LATENCY = 3350, 700
"""Bytes a ns of an H100 (NVIDIA H100 whitepaper), and ns of a load from device memory, an estimate."""
_IN_FLIGHT = _BANDWIDTH * _LATENCY / 132
"""Bytes that loads of an SM must wait for to use all bandwidth."""
_SPLITS = Parameter("splits", tuple(range(1, _MAX_SPLITS + 1)), "blocks that share the pixels of a slab of channels")


def _numbers(config: Config) -> tuple[int, int, int, int]:
    """Return vector, items, columns and threads."""
    vector, items, columns, threads = (int(config[name]) for name in ("vector", "items", "columns", "threads"))
    return vector, items, columns, threads


def _shape(problem: Images, config: Config, images: int) -> tuple[int, int]:
    """Return the slabs of channels of the grid, and the chunks of pixels that the blocks of one slab share.

    images: number of images of which each has slabs of its own.
    """
    vector, items, columns, threads = _numbers(config)
    pixels = problem.n // images * problem.h * problem.w
    return images * ceil_div(problem.c, vector * columns), ceil_div(pixels, threads // columns * items)


class PixelColumnsFamily(VectorFamily[P]):
    """Kernels whose threads own neighbouring channels and walk the pixels.

    Attributes:
        tensors: Most tensors of the problem's size that a thread reads at once.
        channel_floats: Floats that a thread holds for each of its channels.
        by_image: Whether a block has the pixels of one image.
    """

    tensors: int
    channel_floats: int
    by_image = False
    parameters = (
        Parameter("vector", (1, 2, 4, 8), "channels of an access"),
        Parameter("items", (1, 2, 4), "pixels of a thread whose loads are issued together"),
        Parameter("columns", (4, 8, 16, 32), "threads side by side along the channels"),
        Parameter("threads", (128, 256, 512), "threads a block"),
    )
    launch_parameters = (_SPLITS,)

    def _images(self, problem: P) -> int:
        return problem.n if self.by_image else 1

    def unsupported(self, problem: P) -> Rules:
        pixels = problem.n // self._images(problem) * problem.h * problem.w
        yield require(pixels < _MAX_PIXELS, f"there must be less than {_MAX_PIXELS} pixels; there are {pixels}")

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        vector, _, columns, _ = _numbers(config)
        widest = math.gcd(problem.c, 4)
        yield from super().unfit(problem, config, arch)
        yield require(vector >= widest, f"an access of {widest} channels is possible, and faster than one of {vector}")
        yield require(
            columns == 4 or columns // 2 * vector < problem.c,
            f"half of {columns} columns of {vector} channels hold all of {problem.c} channels",
        )

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        *_, threads = _numbers(config)
        slabs, chunks = _shape(problem, config, self._images(problem))
        fills = [arch.processors * sm_threads // (threads * slabs) for sm_threads in _SM_THREADS]
        splits = dict.fromkeys(max(1, min(fill, chunks, _MAX_SPLITS)) for fill in fills)
        return [{_SPLITS.name: count} for count in splits]

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Rank by the bytes in flight of 1024 threads of an SM, short rows of memory, and idle threads and blocks."""
        vector, items, columns, threads = _numbers(config)
        images = self._images(problem)
        slabs, chunks = _shape(problem, config, images)
        size = DTYPES[problem.dtype].itemsize
        in_flight = 1024 * items * vector * size
        row = min(problem.c, columns * vector) * size
        unused = slabs * columns * vector / (images * problem.c)
        idle = unused * max(1.0, arch.processors * 1024 / (slabs * chunks * threads))
        return max(1.0, _IN_FLIGHT / in_flight) * max(1.0, 128 / row) * idle + items / 64 + threads / 16384

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        vector, items, _, _ = _numbers(config)
        words = ceil_div(vector * DTYPES[dtype].itemsize, 4)
        registers = self.tensors * items * words + self.channel_floats * vector + _ADDRESSES
        fits = (size for size in _RESIDENT if registers * size <= arch.sm_registers)
        return {**config, "resident": next(fits, _RESIDENT[-1])}


class CudaBatchNormStatistics(PixelColumnsFamily[BatchNormStatistics]):
    """Mean and variance of a batch normalization in training."""

    name = "cuda_batch_norm_statistics"
    operator = BatchNormStatistics
    template = "cuda/batch_norm_statistics.cu.j2"
    tensors, channel_floats = 1, 3
    compile_seconds = (0.9, 0.2)


class CudaBatchNormGradientSums(PixelColumnsFamily[BatchNormGradientSums]):
    """The sums of a batch normalization's gradient."""

    name = "cuda_batch_norm_gradient_sums"
    operator = BatchNormGradientSums
    template = "cuda/batch_norm_gradient_sums.cu.j2"
    tensors, channel_floats = 4, 6
    compile_seconds = (0.9, 0.4)


class CudaBatchNormGradient(PixelColumnsFamily[BatchNormGradient]):
    """The input gradient of a batch normalization."""

    name = "cuda_batch_norm_gradient"
    operator = BatchNormGradient
    template = "cuda/batch_norm_gradient.cu.j2"
    tensors, channel_floats = 2, 4


class CudaGroupStatistics(PixelColumnsFamily[GroupStatistics]):
    """Mean and factor of each group of channels of an image."""

    name = "cuda_group_statistics"
    operator = GroupStatistics
    template = "cuda/group_statistics.cu.j2"
    tensors, channel_floats = 1, 3
    by_image = True

    def unfit(self, problem: GroupStatistics, config: Config, arch: Architecture) -> Rules:
        yield from super().unfit(problem, config, arch)
        vector, _, columns, _ = _numbers(config)
        yield require(
            problem.c <= vector * columns or vector * columns % (problem.c // problem.groups) == 0,
            f"the {vector * columns} channels of a block must be whole groups, or all of c",
        )

    def cost(self, problem: GroupStatistics, config: Config, arch: Architecture) -> float:
        """Add the time in which the last block combines what the others have summed, relative to that of the image."""
        vector, _, columns, threads = _numbers(config)
        at_once = threads // columns * (4 if vector < 8 else 1)  # kTogether of column_sums.cuh
        splits = self.launches(problem, config, arch)[0][_SPLITS.name]
        combining = ceil_div(splits, at_once) * _LATENCY
        return super().cost(problem, config, arch) + combining * _BANDWIDTH / problem.bytes


class CudaNormalize(PixelColumnsFamily[Normalize]):
    """Normalization by given statistics of each image."""

    name = "cuda_normalize"
    operator = Normalize
    template = "cuda/normalize.cu.j2"
    tensors, channel_floats = 1, 2
    by_image = True


FAMILIES = (
    CudaBatchNormStatistics(),
    CudaBatchNormGradientSums(),
    CudaBatchNormGradient(),
    CudaGroupStatistics(),
    CudaNormalize(),
)
