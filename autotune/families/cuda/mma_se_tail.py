"""Squeeze-and-excitation and the rest of a residual block, several images a block, both products on tensor cores."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.ir import Epilogue, Problem, SeTail

_ROWS = 8  # of a product: images, or parts of their pixels
_WARP_CHANNELS = 32
_IMAGES = (1, 2, 4, 8)


def _numbers(config: Config) -> tuple[int, ...]:
    return tuple(int(config[name]) for name in ("threads", "keep", "hidden"))


def _tensors(epilogue: Epilogue) -> int:
    """Tensors that the steps read."""
    return sum(argument.kind == "tensor" for argument in epilogue.arguments)


def _registers(config: Config, epilogue: Epilogue) -> int:
    _, keep, hidden = _numbers(config)
    return 4 * keep * (1 + max(_tensors(epilogue), 1)) + 5 * hidden // 4 + 44


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return (
        "too many registers" if int(config["threads"]) * _registers(config, epilogue) > cuda_shared.REGISTERS else None
    )


def _room(problem: SeTail) -> int:
    """Hidden values, up to whole steps of 16."""
    return ceil(problem.hidden / 16) * 16


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SeTail)
    if problem.c % _WARP_CHANNELS or problem.c > 512:
        return f"c must be a multiple of {_WARP_CHANNELS}, at most 512"
    return "hidden must be a multiple of 4, at most 64" if problem.hidden % 4 or problem.hidden > 64 else None


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> tuple[Value, ...]:
    return (_room(problem),) if isinstance(problem, SeTail) and parameter.name == "hidden" else parameter.values


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, SeTail)
    return None if config["hidden"] == _room(problem) else f"it has room for {config['hidden']} hidden values"


def _groups(problem: SeTail, threads: int) -> int:
    """Warps that have the same channels of other pixels."""
    return threads // 32 // (problem.c // _WARP_CHANNELS)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """As many images a block as its threads hold, none of whose registers stay empty."""
    assert isinstance(problem, SeTail)
    threads, keep, _ = _numbers(config)
    lanes = {images: _groups(problem, threads) * (_ROWS // images) for images in _IMAGES if images <= problem.n}
    pixels = problem.h * problem.w
    return [{"images": images} for images, side in lanes.items() if side and keep / 2 < ceil(pixels / side) <= keep]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: rounds of blocks, each a few trips to memory, or bound by what they read and write."""
    assert isinstance(problem, SeTail)
    threads, keep, hidden = _numbers(config)
    resident = max(1, min(arch.sm_threads, cuda_shared.REGISTERS // _registers(config, problem.epilogue)) // threads)
    best = float("inf")
    for launch in _launches(problem, config, arch):
        images = launch["images"]
        blocks = ceil(problem.n / images)
        sharing = min(resident, ceil(blocks / arch.processors))
        image = 2 * problem.h * problem.w * problem.c
        bytes_ = images * image * (2 + _tensors(problem.epilogue)) + 4 * hidden * problem.c
        wait = 3000 + 20 * keep + 2 * hidden
        best = min(best, ceil(blocks / (arch.processors * resident)) * max(wait, sharing * bytes_ / 40))
    return best


FAMILY = Family(
    name="cuda_mma_se_tail",
    operator=SeTail,
    kind=DEVICE_IMAGE,
    template="cuda/mma_se_tail.cu.j2",
    architectures=cuda_shared.MMA_ARCHITECTURES,
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("threads", (64, 128, 256, 512), "threads a block, at most"),
        Parameter("keep", (1, 2, 4, 8), "pixels that a thread keeps in registers, 8 channels of each"),
        Parameter("hidden", (16, 32, 48, 64), "room for so many hidden values"),
    ),
    launch_parameters=(Parameter("images", _IMAGES, "images a block"),),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    compile_seconds=(0.9, 0.4),
)
