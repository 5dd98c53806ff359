"""A config of sm90_conv2d as a shape, and which configs compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config
from autotune.ir import Epilogue

SHARED_OVERHEAD = 1024 + 64
"""The buffers begin at a multiple of 1024; some barriers."""
MOST_SHARED = 232448 - SHARED_OVERHEAD
_REGISTERS = 65536


@dataclass(frozen=True)
class Shape:
    """A config with its names spelt out."""

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
    merge: int = 1
    hidden: int = 0
    """Columns of a tile beside its channels: the hidden values of a folded squeeze-and-excitation."""

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
        return self.m // self.team // 64 * self.columns // 2

    @property
    def columns(self) -> int:
        """Of a tile's products."""
        return self.n + self.hidden

    @property
    def most_accumulators(self) -> int:
        """So many leave registers for the rest."""
        if self.groups == 3:
            return 96
        return 144 if self.hidden and self.groups == 2 else 128

    @property
    def many_sums(self) -> bool:
        """Whether two warpgroups take registers from the warps that load, if there is something to keep beside sums."""
        return self.groups == 2 and self.accumulators > (56 if self.hidden else 96)

    @property
    def blocks_by_registers(self) -> int:
        """Blocks whose registers fit a multiprocessor."""
        beside = 112 if self.hidden else 64  # beside the sums
        return max(1, min(4, _REGISTERS // (self.threads * (self.accumulators + beside))))

    def staging_bytes(self, staged: int) -> int:
        """Shared memory that the output, and an added tensor, pass through, by the launch parameter `staged`."""
        piece = 16 * (64 if self.n % 64 == 0 else 32) * 2 + 8  # of a warp, with its barrier
        return self.groups * 4 * piece * (2 + (staged if staged > 1 else 0)) if staged else 0

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.slices

    @property
    def exchanged_bytes(self) -> int:
        """Shared memory for the sums that go to and come from the other slices."""
        return 2 * (self.slices - 1) * (self.m * (self.n // self.slices + self.hidden) * 4)

    @property
    def weight_bytes(self) -> int:
        """Shared memory of a step's weights."""
        return self.columns * self.k * 2


def shape_of(config: Config) -> Shape:
    """The shape of a config."""
    return Shape(
        int(config["tile_m"]),
        int(config["tile_n"]),
        int(config.get("tile_k", 64)),
        int(config["groups"]),
        config["schedule"] == "pingpong",
        config["activations"] == "patch",
        config["weights"] == "resident",
        int(config["cluster_m"]),
        int(config["cluster_n"]),
        int(config["slices"]),
        int(config.get("merge", 1)),  # kernels in older databases have none
        int(config.get("hidden", 0)),
    )


def legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Family.legal."""
    x = shape_of(config)
    rules = _folded_rules if x.hidden else _gate_rules if "gate" in epilogue.names else lambda *_: ()
    return next((why for broken, why in chain(_rules(x), rules(x, epilogue)) if broken), None)


def _rules(x: Shape) -> Iterator[tuple[bool, str]]:
    yield x.pingpong and (x.groups != 2 or x.slices > 1), "ping-pong takes two warpgroups, each with a tile of its own"
    yield x.m % (64 * x.team) > 0, "a warpgroup multiplies blocks of 64 rows"
    yield x.accumulators > x.most_accumulators, "the accumulators would spill"
    yield x.cluster_n > 1 and (x.patch or x.resident), "only streamed pixels gathered by TMA are shared"
    yield x.slices > 1 and (x.patch or x.resident), "a split tile is gathered and streamed"
    yield x.cluster > 8, "clusters of up to eight blocks"
    yield x.slices > 1 and x.cluster_m > 1, "split tiles share no weights"
    yield (x.m // x.team // 64 * 2 * (x.n // 32)) % x.slices > 0, "the split must divide the tile"
    yield x.k < 64 and (x.n > 128 or x.m > 128 or x.cluster > 1), "narrow steps are for few channels"
    yield 2 * (x.m + x.columns) * x.k * 2 > MOST_SHARED, "shared memory"
    yield x.columns > 256, "a product of more than 256 columns"


def _gate_rules(x: Shape, epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    yield from se_gate.legal(epilogue)
    yield x.pingpong or x.resident or x.cluster_m > 1, "a gated tile belongs to one block, or to those of its columns"
    yield x.n % (64 * x.slices) > 0, "of a gated tile each block has a multiple of 64 channels: fewer leave registers"


def _folded_rules(x: Shape, epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    yield from se_gate.folded_legal(epilogue)
    projects = "project" in epilogue.names
    yield projects and (x.patch or x.resident or x.slices > 1), "a projection follows gathered, streamed pixels"
