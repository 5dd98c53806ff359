"""Squeeze-and-excitation and the rest of a residual block on a GPU: a thread block takes one image after the other."""

from __future__ import annotations

from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.cuda.common import CudaFamily
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import SeGates, SeTail, SqueezeExcite

P = TypeVar("P", bound=SeTail | SqueezeExcite | SeGates)

VECTOR = 8  # channels of an access
_IMAGES = (1, 2, 4, 8)
_MAX_CHANNELS = 8192  # 1024 threads of 8 channels


class GatedFamily(CudaFamily[P]):
    """Kernels whose blocks take images and compute gates from the means of their channels."""

    parameters: tuple[Parameter, ...] = (
        Parameter("threads", (128, 256, 512, 1024), "threads a block"),
        Parameter("keep", (1, 2, 4, 8, 16), "vectors of 8 channels that a thread keeps in registers"),
        Parameter("early", (0, 1), "1: weights and added tensors are read before they are needed"),
    )
    launch_parameters = (Parameter("images", _IMAGES, "images that a block takes, one after the other"),)

    def unsupported(self, problem: P) -> Rules:
        yield require(
            problem.c % VECTOR == 0 and problem.c <= _MAX_CHANNELS,
            f"c must be a multiple of {VECTOR}, at most {_MAX_CHANNELS}",
        )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        if not config["early"]:
            return
        tensors = sum(argument.kind == "tensor" for argument in epilogue.arguments)
        words = 4 * int(config["keep"]) * (1 + tensors) * DTYPES[dtype].itemsize // 2
        registers = int(config["threads"]) * (words + 32)
        yield require(
            (arch.capability or 0) >= 80, "early 1 needs asynchronous copies to shared memory, which sm_80 has first"
        )
        yield require(
            registers <= arch.sm_registers, f"a block must fit {arch.sm_registers} registers; it takes {registers}"
        )

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        threads = int(config["threads"])
        yield from super().unfit(problem, config, arch)
        yield require(
            problem.c // VECTOR <= threads, f"c must be at most {VECTOR} times the threads, {VECTOR * threads}"
        )
        if config["early"]:
            weights = problem.c * (2 * problem.hidden + VECTOR) * DTYPES[problem.dtype].itemsize
            sums = (threads * VECTOR + 2 * problem.c + 2 * problem.hidden) * 4
            yield require(problem.hidden % 4 == 0, "early 1 loads whole accesses: hidden must be a multiple of 4")
            yield require(
                weights + sums <= arch.block_shared,
                f"weights and sums must fit {arch.block_shared} bytes of shared memory; they take {weights + sums}",
            )

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        """If weights stay in shared memory, also several images a block, as long as 3 of 4 SMs have a block."""
        several = [images for images in _IMAGES if config["early"] and 4 * problem.n >= 3 * images * arch.processors]
        return [{"images": images} for images in dict.fromkeys((1, *several))]


class CudaSeTail(GatedFamily[SeTail]):
    """The gate, its product, and what the epilogue adds."""

    name = "cuda_se_tail"
    operator = SeTail
    template = "cuda/se_tail.cu.j2"
    compile_seconds = (0.9, 0.3)

    def cost(self, problem: SeTail, config: Config, arch: Architecture) -> float:
        """Rank by passes of the threads over an image, and by vectors read twice as registers did not keep them."""
        vectors, keep, threads = problem.h * problem.w * problem.c / VECTOR, int(config["keep"]), int(config["threads"])
        passes = max(1.0, vectors / threads)
        passes -= 0.3 * int(config["early"])
        return passes + 2 * max(0.0, passes - keep) + keep / 8 + threads / 512


FAMILIES = (CudaSeTail(),)
