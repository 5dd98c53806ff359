"""Configs of sm90_conv2d as shapes, and the rules that decide which of them compile."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config
from autotune.families.rules import Rules, first_unmet, require
from autotune.families.sm90.rates import MAX_CLUSTER
from autotune.ir import BYTE_FORMATS, DTYPES, Epilogue

ROW_BYTES = (32, 64, 128)
"""Bytes that a step can have along the channels: those of the swizzles of TMA and wgmma."""
SHARED_OVERHEAD = 1024 + 64
"""Bytes of a block's shared memory that are no buffers: alignment to 1024 bytes, and barriers."""


def max_shared_bytes(arch: Architecture) -> int:
    """Return the shared memory that a block has for its buffers, in bytes."""
    return arch.block_shared - SHARED_OVERHEAD


@dataclass(frozen=True)
class Conv2dShape:
    """A config by name, and what follows from it.

    Attributes:
        element_bytes: Bytes of an element.
        groups: Warpgroups that multiply.
        pingpong: Whether each warpgroup has a tile of its own; else they share one (cooperative).
        patch: Whether the activations of a tile are its patch with a halo; else one filter tap at a time (im2col).
        resident: Whether weights are loaded once for all tiles of a column; else for each tile (streamed).
        slices: Blocks that split the channels and taps of a tile.
        merge: Groups of channels that are computed as one.
        hidden: Columns of a tile beside its channels: the hidden values of a folded squeeze-and-excitation.
        promote: Steps of k channels after which float32 registers take over the sums of e4m3 products; 0: never.
    """

    element_bytes: int
    m: int
    n: int
    k: int
    groups: int
    pingpong: bool
    patch: bool
    resident: bool
    cluster_m: int
    cluster_n: int
    slices: int
    merge: int
    hidden: int
    promote: int

    @classmethod
    def from_config(cls, config: Config, dtype: str) -> Conv2dShape:
        """Return the shape of a config for elements of a dtype.

        Families without `tile_k`, `merge`, `hidden` or `promote` have 64, 1, 0 and 0; so do kernels of older databases,
        which have no `merge`.
        """
        return cls(
            element_bytes=DTYPES[dtype].itemsize,
            m=int(config["tile_m"]),
            n=int(config["tile_n"]),
            k=int(config.get("tile_k", 64)),
            groups=int(config["groups"]),
            pingpong=config["schedule"] == "pingpong",
            patch=config["activations"] == "patch",
            resident=config["weights"] == "resident",
            cluster_m=int(config["cluster_m"]),
            cluster_n=int(config["cluster_n"]),
            slices=int(config["slices"]),
            merge=int(config.get("merge", 1)),
            hidden=int(config.get("hidden", 0)),
            promote=int(config.get("promote", 0)),
        )

    @property
    def threads(self) -> int:
        """Threads of a block: the warpgroups that multiply, and two warps that load."""
        return 128 * self.groups + 64

    @property
    def team(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.pingpong else self.groups

    @property
    def accumulators(self) -> int:
        """Registers of each thread that hold sums."""
        return self.m // self.team // 64 * self.columns // 2 * (2 if self.promote else 1)

    @property
    def columns(self) -> int:
        """Columns of a tile's products."""
        return self.n + self.hidden

    @property
    def max_accumulators(self) -> int:
        """Registers of a thread that can hold sums without spilling, from kernels that were compiled."""
        if self.groups == 3:
            return 96
        return 144 if self.hidden and self.groups == 2 else 128

    @property
    def many_sums(self) -> bool:
        """Whether two warpgroups take registers (setmaxnreg) from the warps that load, for values beside their sums."""
        return self.groups == 2 and self.accumulators > (56 if self.hidden else 96)

    def blocks_by_registers(self, arch: Architecture) -> int:
        """Return how many blocks' registers fit an SM, at most 4."""
        beside = 112 if self.hidden else 64  # registers beside the sums
        return max(1, min(4, arch.sm_registers // (self.threads * (self.accumulators + beside))))

    def staging_bytes(self, staged: int) -> int:
        """Return the shared memory that stages the output and an added tensor; staged: the launch parameter."""
        channels = next(channels for channels in (128 // self.element_bytes, 64, 32) if self.n % channels == 0)
        piece = 16 * channels * self.element_bytes + 8  # of a warp, with its barrier
        return self.groups * 4 * piece * (2 + (staged if staged > 1 else 0)) if staged else 0

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.slices

    @property
    def exchanged_bytes(self) -> int:
        """Shared memory for sums that are sent to and received from the other slices."""
        return 2 * (self.slices - 1) * (self.m * (self.n // self.slices + self.hidden) * 4)

    @property
    def row_bytes(self) -> int:
        """Bytes of a step of one pixel or one output channel in shared memory: 32, 64 or 128."""
        return self.k * self.element_bytes

    @property
    def weight_bytes(self) -> int:
        """Shared memory of a step's weights."""
        return self.columns * self.row_bytes


def why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Return why a config cannot be compiled, or None."""
    x = Conv2dShape.from_config(config, dtype)

    def rules() -> Rules:
        yield from _shape_rules(x, arch)
        yield require(dtype not in BYTE_FORMATS or "gate" not in epilogue.names, "gates are not computed from bytes")
        if x.hidden:
            yield from _folded_rules(x, epilogue)
        elif "gate" in epilogue.names:
            yield from _gate_rules(x, epilogue)

    return first_unmet(rules())


def _shape_rules(x: Conv2dShape, arch: Architecture) -> Rules:
    yield require(
        not x.pingpong or (x.groups == 2 and x.slices == 1),
        "pingpong needs groups=2, each with its own tile, and slices=1",
    )
    yield require(
        x.m % (64 * x.team) == 0, "tile_m must be a multiple of 64 rows for each warpgroup that shares a tile"
    )
    yield require(
        x.accumulators <= x.max_accumulators,
        f"a thread must have at most {x.max_accumulators} sums, or spills; it has {x.accumulators}",
    )
    streamed = not x.patch and not x.resident
    yield require(x.cluster_n == 1 or streamed, "cluster_n > 1 needs activations=im2col and weights=streamed")
    yield require(x.slices == 1 or streamed, "slices > 1 needs activations=im2col and weights=streamed")
    yield require(x.cluster <= MAX_CLUSTER, f"a cluster must have at most {MAX_CLUSTER} blocks; it has {x.cluster}")
    yield require(x.slices == 1 or x.cluster_m == 1, "slices > 1 needs cluster_m=1: split tiles share no weights")
    yield require(
        (x.m // x.team // 64 * 2 * (x.n // 32)) % x.slices == 0,
        "slices must divide a warpgroup's blocks of 32 x 32 sums",
    )
    yield require(
        x.row_bytes in ROW_BYTES, f"a step of tile_k channels must take {', '.join(map(str, ROW_BYTES))} bytes"
    )
    yield require(
        x.row_bytes == ROW_BYTES[-1] or (x.n <= 128 and x.m <= 128 and x.cluster == 1),
        "tile_k below 128 bytes is for few channels: tile_m and tile_n must be at most 128, and a cluster one block",
    )
    room, least = max_shared_bytes(arch), 2 * (x.m + x.columns) * x.row_bytes
    yield require(least <= room, f"two stages must fit {room} bytes of shared memory; they take {least}")
    yield require(x.columns <= 256, f"wgmma has at most 256 columns; tile_n and hidden make {x.columns}")


def _gate_rules(x: Conv2dShape, epilogue: Epilogue) -> Rules:
    yield from se_gate.epilogue_rules(epilogue)
    yield require(
        not (x.pingpong or x.resident or x.cluster_m > 1),
        "with a gate, schedule must be cooperative, weights streamed and cluster_m 1",
    )
    yield require(
        x.n % (64 * x.slices) == 0, "with a gate, each block needs a multiple of 64 channels: tile_n / slices"
    )


def _folded_rules(x: Conv2dShape, epilogue: Epilogue) -> Rules:
    yield from se_gate.folded_epilogue_rules(epilogue)
    yield require(
        "project" not in epilogue.names or not (x.patch or x.resident or x.slices > 1),
        "with a projection, activations must be im2col, weights streamed and slices 1",
    )
