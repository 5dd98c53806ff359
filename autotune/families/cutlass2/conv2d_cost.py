"""Cost model of the CUTLASS 2.x forward convolution, and the launch values worth timing."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch
from autotune.families.cutlass2.conv2d_rules import FLAT, as_conv2d
from autotune.families.cutlass2.tile import BITS, swizzles, tile_of
from autotune.ir.operators import Conv2d, Gemm

_ADDRESSING = {"optimized": 0.0, "analytic": 5.0, "fixed_channels": 8.0, "few_channels": 12.0}  # cycles a row


def launches(problem: Conv2d | Gemm, config: Config, arch: Architecture) -> list[Launch]:
    """Return the launch values worth timing."""
    conv = as_conv2d(problem)
    tiles_n = _tiles(conv, config)[1]
    slices = _slices(conv, config, arch)
    if len(slices) > 1:  # enumerating a space asks for the launches of each config
        slices.sort(key=lambda count: _cycles(conv, config, count, arch))
    return [{"swizzle": log, "slices": s} for s in slices for log in swizzles(tiles_n)]


def cost(problem: Conv2d | Gemm, config: Config, arch: Architecture) -> float:
    """Estimate the cycles of the best split."""
    conv = as_conv2d(problem)
    best = min(_cycles(conv, config, slices, arch) for slices in _slices(conv, config, arch))
    return best * (0.97 if tile_of(config, conv.dtype).accumulator == "f16" else 1.0)


def _cycles(conv: Conv2d, config: Config, slices: int, arch: Architecture) -> float:
    """Estimate cycles: waves of blocks, each bound by arithmetic, by its loads or by latency.

    A tensor-core step is 1024 multiply-adds of halves a cycle, the peak of an A100's SM; one of CUDA cores is 64. The
    other constants (48 bytes a cycle from L2, latencies of 600 to 700 cycles, 2500 cycles a block) are estimates.
    """
    tile = tile_of(config, conv.dtype)
    (tm, tn, tk), resident, bits = tile.shape, tile.resident(arch), BITS[conv.dtype]
    tiles_m, tiles_n = _tiles(conv, config)
    rate = 64 if tile.simt else 1024 * 16 // bits  # multiply-adds a cycle
    accesses = (tm + tn) * tk // tile.alignment / (tile.threads * (1 if tile.simt else 4))
    blocks = tiles_m * tiles_n * slices
    waves = ceil_div(blocks, arch.processors * resident)
    sharing = min(resident, ceil_div(blocks, arch.processors))
    arithmetic = tm * tn * tk / rate * sharing
    loads = ((tm + tn) * tk * bits / 8 / 48 + _ADDRESSING[str(config["iterator"])] * accesses) * sharing
    latency = 700 / (tile.stages - 1) if tile.stages != 2 else 600
    gather = 0.4 * tm * tn * (slices + 1) / 32 if slices > 1 else 0
    step = max(arithmetic, loads + accesses * sharing, latency)
    store = tm * tn / (3 * min(8, tile.vector) if not tile.simt else 12)
    return waves * (_iterations(conv, config, slices) * step + 2500 + gather + store)


def _tiles(problem: Conv2d, config: Config) -> tuple[int, int]:
    tm, tn = int(config["tile_m"]), int(config["tile_n"])
    return ceil_div(problem.n * problem.p * problem.q, tm), ceil_div(problem.k, tn)


def _slices(problem: Conv2d, config: Config, arch: Architecture) -> list[int]:
    """Return the splits of the channels worth trying: more than 1 only where tiles alone do not fill the machine."""
    if config["iterator"] in FLAT or problem.groups > 1:
        return [1]
    tiles_m, tiles_n = _tiles(problem, config)
    room = 2 * arch.processors * tile_of(config, problem.dtype).resident(arch)
    chunks = problem.c // int(config["tile_k"])
    return [s for s in (1, 2, 4, 8, 16) if s == 1 or (s <= chunks and tiles_m * tiles_n * s <= room)]


def _iterations(problem: Conv2d, config: Config, slices: int) -> int:
    """Return the steps of a block's main loop."""
    tile_k, channels = int(config["tile_k"]), problem.c // problem.groups
    if config["iterator"] in FLAT:
        return ceil_div(problem.r * problem.s * problem.c, tile_k)
    groups_a_tile = int(config["tile_n"]) * problem.groups // problem.k if config["groups"] == "multiple" else 1
    return problem.r * problem.s * ceil_div(channels, slices * tile_k) * groups_a_tile
