"""Squeeze-and-excitation and the rest of a residual block on a GPU: a thread block takes one image after the other."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.ir import DTYPES, Epilogue, Problem, SeTail

_VECTOR = 8
_IMAGES = (1, 2, 4, 8)


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SeTail)
    return "c must be a multiple of 8, at most 8192" if problem.c % _VECTOR or problem.c > 8192 else None


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    if not config["early"]:
        return None
    if arch.capability is None or arch.capability < 80:
        return "copies to shared memory that run by themselves exist from sm_80 on"
    tensors = sum(argument.kind == "tensor" for argument in epilogue.arguments)
    words = 4 * int(config["keep"]) * (1 + tensors) * DTYPES[dtype].itemsize // 2
    return "too many registers" if int(config["threads"]) * (words + 32) > 65536 else None


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, SeTail)
    if problem.c // _VECTOR > int(config["threads"]):
        return "more channels than its threads hold"
    if config["early"]:
        weights = problem.c * (2 * problem.hidden + _VECTOR) * DTYPES[problem.dtype].itemsize
        sums = (int(config["threads"]) * _VECTOR + 2 * problem.c + 2 * problem.hidden) * 4
        if problem.hidden % 4 or weights + sums > arch.block_shared:
            return "weights that do not fit shared memory, or not in whole accesses"
    return None


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """Where the weights are kept, also several images a block, as long as most multiprocessors have a block."""
    assert isinstance(problem, SeTail)
    several = [images for images in _IMAGES if config["early"] and 4 * problem.n >= 3 * images * arch.processors]
    return [{"images": images} for images in dict.fromkeys((1, *several))]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Passes over an image by the threads, and what must be read twice because registers did not keep it."""
    assert isinstance(problem, SeTail)
    vectors = problem.h * problem.w * problem.c / _VECTOR
    passes = max(1.0, vectors / int(config["threads"]))
    passes -= 0.3 * int(config["early"])
    return passes + 2 * max(0.0, passes - int(config["keep"])) + int(config["keep"]) / 8 + int(config["threads"]) / 512


FAMILY = Family(
    name="cuda_se_tail",
    operator=SeTail,
    kind=DEVICE_IMAGE,
    template="cuda/se_tail.cu.j2",
    architectures=cuda_shared.ARCHITECTURES,
    parameters=(
        Parameter("threads", (128, 256, 512, 1024), "threads a block"),
        Parameter("keep", (1, 2, 4, 8, 16), "vectors of 8 channels that a thread keeps in registers"),
        Parameter("early", (0, 1), "1: weights and added tensors are read before they are needed"),
    ),
    launch_parameters=(Parameter("images", _IMAGES, "images that a block takes, one after the other"),),
    legal=_legal,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    compile_seconds=(0.9, 0.3),
)
