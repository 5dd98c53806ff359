"""Depthwise convolution on a GPU, channels last. Each channel has its own filter, so memory limits the speed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda import known_window
from autotune.families.cuda.rules import require_access
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import DTYPES, Conv2d, Epilogue

_FILTERS = (3, 5, 7)  # sides that kernels are compiled for
_MAX_REGISTERS = 160  # of a thread's sums and one input row; addresses and weights take the rest of 255


@dataclass(frozen=True)
class _DepthwiseTile:
    """The outputs of a thread. filter, stride: 0 if they are not known when the kernel is compiled."""

    filter: int
    stride: int
    vector: int
    columns: int
    rows: int
    threads: int

    @classmethod
    def from_config(cls, config: Config) -> _DepthwiseTile:
        return cls(
            filter=int(config["filter"]),
            stride=int(config["stride"]),
            vector=int(config["vector"]),
            columns=int(config["columns"]),
            rows=int(config["rows"]),
            threads=int(config["threads"]),
        )

    def registers(self, dtype: str) -> int:
        """Return the registers of a thread for float32 sums and one input row."""
        line = (self.columns - 1) * self.stride + self.filter if self.filter else 1
        return self.rows * self.columns * self.vector + ceil(line * self.vector * DTYPES[dtype].itemsize / 4)


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    tile = _DepthwiseTile.from_config(config)
    registers = tile.registers(dtype)

    def rules() -> Rules:
        yield known_window.require_both(config)
        yield require_access(tile.vector, dtype)
        yield require(
            registers <= _MAX_REGISTERS,
            f"sums and one input row of a thread must fit {_MAX_REGISTERS} registers; they take {registers}",
        )

    return first_unmet(rules())


def _why_unsupported(problem: Conv2d) -> str | None:
    return require(problem.c == problem.k == problem.groups > 1, "groups must equal c and k: one channel a group")


def _cost(problem: Conv2d, config: Config, arch: Architecture) -> float:
    """Estimate cycles: waves of threads, each bound by its accesses or its multiply-adds, plus 600 to start one.

    The weights of accesses and products are estimates, not fitted.
    """
    tile = _DepthwiseTile.from_config(config)
    tiles = problem.n * ceil(problem.p / tile.rows) * ceil(problem.q / tile.columns)
    blocks = ceil(tiles * problem.c / tile.vector / tile.threads)
    registers = (tile.registers(problem.dtype) + 40) * tile.threads
    resident = max(1, min(arch.sm_threads // tile.threads, arch.sm_registers // registers))
    tall = (tile.rows - 1) * problem.stride[0] + problem.r
    wide = (tile.columns - 1) * problem.stride[1] + problem.s
    accesses = (tall * wide + tile.rows * tile.columns) * (8 if tile.filter else 12) / (8 / tile.vector + 1)
    products = tile.rows * tile.columns * problem.r * problem.s * tile.vector / 4
    waves = ceil(blocks / (arch.processors * resident))
    return waves * (resident * tile.threads / 128 * max(accesses, products) + 600)


FAMILY = Family[Conv2d](
    name="cuda_depthwise_conv2d",
    operator=Conv2d,
    kind=DEVICE_IMAGE,
    template="cuda/depthwise_conv2d.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        *known_window.parameters(_FILTERS, "filter"),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4, 8), "neighbouring output pixels of a row a thread"),
        Parameter("rows", (1, 2, 4), "output rows a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unsupported=_why_unsupported,
    why_unfit=partial(known_window.why_unfit, filters=_FILTERS),
    cost=_cost,
    weight_layouts=lambda _: {"weight": "rsck"},
)
