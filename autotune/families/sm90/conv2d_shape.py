"""Configs of the families of sm90/conv2d.cu.j2 as shapes."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core import Architecture
from autotune.families.base import Config
from autotune.ir import DTYPES

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
