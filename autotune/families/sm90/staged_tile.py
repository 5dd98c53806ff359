"""A tile whose two operands share the stages of one ring, and what it takes of a multiprocessor.

One thread loads both operands of a stage, 64 deep, and warpgroups multiply them (templates/sm90/staged_products.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families.base import Rules, require

CHUNK = 64
"""Depth of a stage, rows of a product of wgmma, and channels of a row of 128 bytes."""

_ALIGNMENT, _BARRIER_BYTES = 1024, 8
_SUB_PARTITIONS = 4  # of a multiprocessor: each has a quarter of its registers, and whole warps
_MOST_REGISTERS = 255


@dataclass(frozen=True)
class StagedTile:
    """The sizes of a tile.

    Attributes:
        m: Its rows.
        n: Its columns.
        groups: Warpgroups that multiply.
    """

    m: int
    n: int
    groups: int

    @property
    def threads(self) -> int:
        """Threads of a block; a warp loads."""
        return 128 * self.groups + 32

    @property
    def sums(self) -> int:
        """Registers of a thread for sums."""
        return self._blocks * self.n // 2

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage, with its barriers."""
        return (self.m + self.n) * CHUNK * 2 + 2 * _BARRIER_BYTES

    def slots(self, arch: Architecture, most: int, blocks: int = 1) -> int:
        """Return the stages that fit if some blocks share a multiprocessor, at most `most`."""
        room = min(arch.block_shared, arch.sm_shared // blocks - arch.reserved_shared)
        return min((room - _ALIGNMENT - _BARRIER_BYTES) // self.stage_bytes, most)

    def rules(self, arch: Architecture, rows: str, blocks: int = 1) -> Rules:
        """Yield the requirements of the warpgroups' rows, registers and stages.

        Args:
            arch: The architecture.
            rows: Name of the parameter of the tile's rows.
            blocks: Blocks that share a multiprocessor.
        """
        yield require(self.m % (CHUNK * self.groups) == 0, f"{rows} must be a multiple of 64 for each warpgroup")
        # Beside its sums a thread takes fewer registers than this, by ptxas 13.
        most = _thread_registers(arch, self.threads * blocks) - 24 - 4 * self._blocks
        yield require(self.sums <= most, f"a thread must have at most {most} sums, or spills; it has {self.sums}")
        yield require(self.slots(arch, 2, blocks) == 2, "two stages of each block must fit the shared memory")

    @property
    def _blocks(self) -> int:
        """Blocks of 64 rows of a warpgroup."""
        return self.m // CHUNK // self.groups


def _thread_registers(arch: Architecture, threads: int) -> int:
    """Return the registers that each of a multiprocessor's threads can have."""
    warps = ceil_div(threads // 32, _SUB_PARTITIONS)
    return min(_MOST_REGISTERS, arch.sm_registers // _SUB_PARTITIONS // (32 * warps) // 8 * 8)
