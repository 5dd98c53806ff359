"""Squeeze-and-excitation and the rest of a residual block on a GPU: a thread block takes one image after the other."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import DTYPES, Epilogue, SeGates, SeTail, SqueezeExcite

GatedProblem = SeTail | SqueezeExcite | SeGates

VECTOR = 8  # channels of an access
_IMAGES = (1, 2, 4, 8)
_MAX_CHANNELS = 8192  # 1024 threads of 8 channels


def why_unsupported(problem: GatedProblem) -> str | None:
    """Return why no kernel can solve a problem; None if one can."""
    return require(
        problem.c % VECTOR == 0 and problem.c <= _MAX_CHANNELS,
        f"c must be a multiple of {VECTOR}, at most {_MAX_CHANNELS}",
    )


def why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Return why a config cannot be compiled; None if it can."""
    if not config["early"]:
        return None
    tensors = sum(argument.kind == "tensor" for argument in epilogue.arguments)
    words = 4 * int(config["keep"]) * (1 + tensors) * DTYPES[dtype].itemsize // 2
    registers = int(config["threads"]) * (words + 32)
    return require(
        (arch.capability or 0) >= 80, "early 1 needs asynchronous copies to shared memory, which sm_80 has first"
    ) or require(
        registers <= arch.sm_registers, f"a block must fit {arch.sm_registers} registers; it takes {registers}"
    )


def why_unfit(problem: GatedProblem, config: Config, arch: Architecture) -> str | None:
    """Return why a kernel cannot solve a problem; None if it can."""

    def rules() -> Rules:
        threads = int(config["threads"])
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

    return first_unmet(rules())


def launches(problem: GatedProblem, config: Config, arch: Architecture) -> list[Launch]:
    """If weights stay in shared memory, also several images a block, as long as 3 of 4 SMs have a block."""
    several = [images for images in _IMAGES if config["early"] and 4 * problem.n >= 3 * images * arch.processors]
    return [{"images": images} for images in dict.fromkeys((1, *several))]


def _cost(problem: SeTail, config: Config, arch: Architecture) -> float:
    """Rank by passes of the threads over an image, and by vectors read twice because registers did not keep them."""
    vectors = problem.h * problem.w * problem.c / VECTOR
    passes = max(1.0, vectors / int(config["threads"]))
    passes -= 0.3 * int(config["early"])
    return passes + 2 * max(0.0, passes - int(config["keep"])) + int(config["keep"]) / 8 + int(config["threads"]) / 512


FAMILY = Family[SeTail](
    name="cuda_se_tail",
    operator=SeTail,
    kind=DEVICE_IMAGE,
    template="cuda/se_tail.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        Parameter("threads", (128, 256, 512, 1024), "threads a block"),
        Parameter("keep", (1, 2, 4, 8, 16), "vectors of 8 channels that a thread keeps in registers"),
        Parameter("early", (0, 1), "1: weights and added tensors are read before they are needed"),
    ),
    launch_parameters=(Parameter("images", _IMAGES, "images that a block takes, one after the other"),),
    why_illegal=why_illegal,
    why_unsupported=why_unsupported,
    why_unfit=why_unfit,
    launches=launches,
    cost=_cost,
    compile_seconds=(0.9, 0.3),
)
