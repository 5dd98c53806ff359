"""The family of the pools with a window on a GPU: a template, its parameters, and which of their values are legal."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda import known_window
from autotune.families.cuda.rules import require_access
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import BYTE_FORMATS, DTYPES, Epilogue, Pool2d

_MAX_REGISTERS = 128  # of a thread's windows and one input row


@dataclass(frozen=True)
class _PoolTile:
    """The outputs of a thread. filter, stride: 0 if they are not known when the kernel is compiled."""

    filter: int
    stride: int
    vector: int
    columns: int
    rows: int
    threads: int

    @classmethod
    def from_config(cls, config: Config) -> _PoolTile:
        return cls(
            filter=int(config["filter"]),
            stride=int(config["stride"]),
            vector=int(config["vector"]),
            columns=int(config["columns"]),
            rows=int(config["rows"]),
            threads=int(config["threads"]),
        )

    def registers(self, dtype: str) -> int:
        """Return the registers of a thread for float32 windows and one input row."""
        line = (self.columns - 1) * self.stride + self.filter
        return self.rows * self.columns * self.vector + ceil(line * self.vector * DTYPES[dtype].itemsize / 4)


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    tile = _PoolTile.from_config(config)

    def rules() -> Rules:
        yield known_window.require_both(config)
        yield require(
            tile.filter or tile.rows * tile.columns == 1,
            "rows and columns must be 1 if filter is 0: outputs share pixels only in a known window",
        )
        yield require_access(tile.vector, dtype)
        yield require(
            tile.registers(dtype) <= _MAX_REGISTERS,
            f"windows and one input row must fit {_MAX_REGISTERS} registers; they take {tile.registers(dtype)}",
        )

    return first_unmet(rules())


def _cost(problem: Pool2d, config: Config, arch: Architecture) -> float:
    """Rank by accesses an output; they cost more where too few threads hide their latency."""
    tile = _PoolTile.from_config(config)
    tall = (tile.rows - 1) * problem.stride[0] + problem.r
    wide = (tile.columns - 1) * problem.stride[1] + problem.s
    accesses = (tall * wide / (tile.rows * tile.columns) + 1) * 8 / tile.vector
    started = problem.n * ceil(problem.p / tile.rows) * ceil(problem.q / tile.columns) * problem.c / tile.vector
    idle = max(1.0, arch.processors * arch.sm_threads / 2 / started)
    return accesses * idle + abs(tile.threads - 128) / 1024


def family(name: str, operator: type[Pool2d], maximum: bool, clipped: bool = False) -> Family[Pool2d]:
    """Return the family of one of the pools.

    Args:
        name: The family's name.
        operator: The problem that it solves.
        maximum: Whether it is the max pool.
        clipped: Whether an average is that of the window's pixels in the image.
    """
    return Family[Pool2d](
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template="cuda/pool2d.cu.j2",
        architectures=cuda_architectures(),
        dtypes=("f16", "bf16", "tf32", "f32", *BYTE_FORMATS),
        parameters=(
            *known_window.parameters(),
            Parameter("vector", (1, 2, 4, 8, 16), "channels a thread"),
            Parameter("columns", (1, 2, 4), "neighbouring output pixels of a row a thread"),
            Parameter("rows", (1, 2, 4), "output rows a thread"),
            Parameter("threads", (64, 128, 256), "threads a block"),
        ),
        why_illegal=_why_illegal,
        why_unfit=known_window.why_unfit,
        cost=_cost,
        context=lambda config, arch, dtype: {**config, "maximum": maximum, "clipped": clipped},
        compile_seconds=(0.9, 0.1),
    )
