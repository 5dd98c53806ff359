"""A residual block that halves its images, for Hopper: templates/sm90/se_resnet9/down/se_down_block.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, ConfigNumbers, Launch, Parameter, Rules, Value, require
from autotune.families.se_resnet9.common import require_anchors
from autotune.families.sm90.common import LOADED_BYTES_A_CYCLE, MAX_CLUSTER, HopperFamily
from autotune.ir import Epilogue
from autotune.ir.operators import SeDownBlock

_CHUNK = 64  # channels of a swizzled row of shared memory
_TILE_ROWS = 64
_TILE_BYTES = _TILE_ROWS * _CHUNK * 2
_SIDES = (4, 8)
_FILLS = (2, 3, 4, 6, 9)  # 9: all taps of 64 channels at once
_MAX_CHANNELS, _MAX_HIDDEN, _MAX_WEIGHT_SLOTS = 256, 64, 16

# For the cost: estimates for an H200, not fitted.
_SHARED_BYTES_A_CYCLE = 128  # from or to shared memory: 32 banks of 4 bytes
_TILE_CYCLES, _SPLIT_CYCLES, _BLOCK_CYCLES = 6000, 1000, 200  # of a tile; if parts > 1; for each block of a cluster


@dataclass(frozen=True)
class SeDownBlockShape(ConfigNumbers):
    """A config by name.

    Attributes:
        parts: Blocks that share the channels of a tile.
        peers: Tiles of a cluster.
    """

    out_h: int
    out_w: int
    tile_n: int
    parts: int
    peers: int

    @property
    def channels(self) -> int:
        """Channels of the output."""
        return self.tile_n * self.parts

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.parts * self.peers


def _tiles(problem: SeDownBlock) -> int:
    return ceil_div(problem.n, (_TILE_ROWS // (problem.p * problem.q)))


def _fixed_bytes(problem: SeDownBlock, x: SeDownBlockShape) -> int:
    """Return the shared memory beside the rings: inner values, the gate (templates/common/se_gate.cuh), barriers."""
    pixels = problem.p * problem.q
    inner = 3 * problem.k // _CHUNK * (problem.p + 2) * _TILE_BYTES // problem.p
    run = 16 if pixels == _TILE_ROWS else problem.q
    gate = se_gate.shared_bytes(
        rows=_TILE_ROWS, columns=x.tile_n, pixels=pixels, hidden=problem.hidden, peers=x.parts, run=run
    )
    return 1024 + inner + gate + 8 * (x.parts + 1)


class Sm90SeDownBlock(HopperFamily[SeDownBlock]):
    """A residual block that halves its images in one kernel for Hopper; fp16 and bf16 with float32 sums, NHWC.

    A cluster has whole images in its shared memory and streams the filters.
    """

    name = "sm90_se_down_block"
    operator = SeDownBlock
    template = "sm90/se_resnet9/down/se_down_block.cu.j2"
    parameters = (
        Parameter("out_h", _SIDES, "height of the output"),
        Parameter("out_w", _SIDES, "its width"),
        Parameter("tile_n", (64, 128), "output channels of a block"),
        Parameter("parts", (1, 2, 4), "blocks of a cluster that share the channels of a tile of 64 pixels"),
        Parameter("peers", (1, 2, 4), "tiles of a cluster, which share the loads of the weights"),
    )
    launch_parameters = (
        Parameter("fill_slots", _FILLS, "buffers for the input's taps"),
        Parameter("weight_slots", tuple(range(2, _MAX_WEIGHT_SLOTS + 1)), "buffers for weights"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = SeDownBlockShape.from_config(config)
        yield require_anchors(epilogue, SeDownBlock)
        yield require(not epilogue.accesses_tensors_early, "steps before the projection must not read or write tensors")
        yield require(x.cluster <= MAX_CLUSTER, f"a cluster must have at most {MAX_CLUSTER} blocks; it has {x.cluster}")
        yield require(x.out_h % x.parts == 0, "parts must divide out_h: the blocks of a tile load its lines in turn")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: SeDownBlock | None
    ) -> Sequence[Value]:
        if problem and parameter.name == "parts":
            return [parts for parts in parameter.values if int(parts) * int(chosen["tile_n"]) == problem.k]
        return super().candidate_values(parameter, chosen, arch, dtype, problem)

    def decided(self, problem: SeDownBlock) -> Mapping[str, Value]:
        return {"out_h": problem.p, "out_w": problem.q}

    def unsupported(self, problem: SeDownBlock) -> Rules:
        yield require(problem.p in _SIDES and problem.q in _SIDES, "the output must have 4 or 8 by 4 or 8 pixels")
        yield require(problem.c % _CHUNK == 0, f"c must be a multiple of {_CHUNK}")
        yield require(
            problem.k % _CHUNK == 0 and problem.k <= _MAX_CHANNELS,
            f"k must be a multiple of {_CHUNK}, at most {_MAX_CHANNELS}",
        )
        yield require(
            problem.hidden % 4 == 0 and problem.hidden <= _MAX_HIDDEN,
            f"hidden must be a multiple of 4, at most {_MAX_HIDDEN}",
        )
        elements = problem.n * problem.h * problem.w * max(problem.c, problem.k)
        yield require(elements < 2**31, "tensors must have fewer than 2^31 elements")

    def unfit(self, problem: SeDownBlock, config: Config, arch: Architecture) -> Rules:
        x = SeDownBlockShape.from_config(config)
        yield require(x.channels == problem.k, f"it has {x.channels} channels; the problem has k={problem.k}")
        yield from super().unfit(problem, config, arch)
        yield require(
            problem.c <= 3 * x.tile_n,
            "c must be at most 3 tile_n: the pooled input takes the place of the inner values",
        )
        yield require(x.peers <= _tiles(problem), f"peers must be at most the number of tiles, {_tiles(problem)}")

    def launches(self, problem: SeDownBlock, config: Config, arch: Architecture) -> list[Launch]:
        """Return buffers for the input's taps with as many for weights as fit, and with half of them."""
        x = SeDownBlockShape.from_config(config)
        room = arch.block_shared - _fixed_bytes(problem, x)
        launches: list[Launch] = []
        for fills in _FILLS:
            most = min((room - fills * (_TILE_BYTES + 16)) // (x.tile_n * _CHUNK * 2 + 16), _MAX_WEIGHT_SLOTS)
            launches += [{"fill_slots": fills, "weight_slots": slots} for slots in (most, most // 2) if slots > 1]
        return launches

    def cost(self, problem: SeDownBlock, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the slowest of loads, products and shared memory, and latencies."""
        x = SeDownBlockShape.from_config(config)
        depth = 9 * problem.c + problem.c + 9 * problem.k
        rounds = ceil_div(_tiles(problem) * x.parts, arch.processors_for(x.cluster))
        loaded = depth * 2 * (x.tile_n / x.peers + _TILE_ROWS / x.parts) / LOADED_BYTES_A_CYCLE
        products = depth * _TILE_ROWS * x.tile_n / arch.wgmma_rate
        moved = depth * 2 * (2 * x.tile_n + _TILE_ROWS) / _SHARED_BYTES_A_CYCLE
        latencies = _TILE_CYCLES + _SPLIT_CYCLES * (x.parts > 1) + _BLOCK_CYCLES * x.cluster
        return rounds * (max(loaded, products, moved) + latencies)

    def label(self, config: Config) -> str:
        shared = f" c{config['peers']}" if config["peers"] != 1 else ""
        return f"{_TILE_ROWS}x{config['tile_n']} {config['parts']} parts{shared}"

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight1": "wgmma", "weight2": "wgmma", "projection": "wgmma"}


FAMILIES = (Sm90SeDownBlock(),)
