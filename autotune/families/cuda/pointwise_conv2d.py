"""1x1 convolutions of few channels, and products with short rows: tensor cores, all operands straight to registers."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.cutlass2 import tiling
from autotune.families.cutlass2.gemm import no_product, sizes
from autotune.ir import Conv2d, Epilogue, Gemm, Problem

_STEPS = (1, 2, 3, 4, 6, 8)
_WALKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_REGISTERS = 230
_LATENCY = 900  # cycles from a load to its value, from the L2 cache


def _numbers(config: Config) -> tuple[int, ...]:
    return tuple(int(config[name]) for name in ("steps", "rows", "columns", "ahead", "threads"))


def _registers(config: Config) -> int:
    steps, rows, columns, ahead, _ = _numbers(config)
    return 16 * steps * columns + 8 * steps * rows * (1 + ahead) + 16 * rows * columns + 20


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return "the operands would spill" if _registers(config) > _MOST_REGISTERS else None


def _steps(problem: Problem) -> int:
    """Steps of 32 input channels."""
    return ceil(sizes(problem)[2] / 32)


def _supports(problem: Problem) -> str | None:
    _, n, k = sizes(problem)
    if n % 8 or k % 8:
        return "channels, of input and output, in multiples of 8"
    if _steps(problem) not in _STEPS:
        return f"input channels in {', '.join(map(str, _STEPS))} steps of 32"
    return no_product(problem) or tiling.too_large(problem)


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> tuple[Value, ...]:
    return (_steps(problem),) if problem and parameter.name == "steps" else parameter.values


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    return None if config["steps"] == _steps(problem) else f"it has {config['steps']} steps of 32 input channels"


def _walkers(problem: Problem, config: Config) -> tuple[int, int]:
    """(tiles of pixels, warps side by side that take one)."""
    m, n, _ = sizes(problem)
    return ceil(m / (16 * int(config["rows"]))), ceil(n / (32 * int(config["columns"])))


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    tiles, across = _walkers(problem, config)
    busy = 2 * arch.processors  # fewer warps than that leave most of the machine idle
    least = 1 + int(config["ahead"])  # a single tile has none behind it
    most = max(1, tiles * across // busy)
    return [{"walk": walk} for walk in _WALKS if least <= walk <= most]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: trips to memory, or the bytes and products of a multiprocessor's warps."""
    steps, rows, columns, _, threads = _numbers(config)
    tiles, across = _walkers(problem, config)
    resident = min(cuda_shared.REGISTERS // (_registers(config) * threads), arch.sm_threads // threads) * threads // 32
    best = float("inf")
    for launch in _launches(problem, config, arch):
        warps = ceil(tiles / launch["walk"]) * across / arch.processors
        trip = 16 * steps * rows * columns + 32 * rows * columns + _LATENCY
        bytes_ = 32 * 16 * (steps * rows * 2 + rows * columns * 2) * launch["walk"] + 32 * 16 * steps * columns * 4
        waves = ceil(warps / max(1, resident))
        best = min(best, max(waves * (_LATENCY + trip * launch["walk"]), warps * bytes_ / 40))
    return best


FAMILY = Family(
    name="cuda_pointwise_conv2d",
    operator=(Conv2d, Gemm),
    kind=DEVICE_IMAGE,
    template="cuda/pointwise_conv2d.cu.j2",
    architectures=cuda_shared.MMA_ARCHITECTURES,
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("steps", _STEPS, "steps of 32 input channels"),
        Parameter("rows", (1, 2, 4), "times 16 pixels a tile"),
        Parameter("columns", (1, 2, 4), "times 32 output channels a warp"),
        Parameter("ahead", (0, 1), "1: the next tile's pixels are read while these are multiplied"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    launch_parameters=(Parameter("walk", _WALKS, "tiles a warp"),),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    weight_layouts=lambda _: {"weight": "kcrs"},
    compile_seconds=(0.9, 0.4),
)
