"""Input gradient of max pooling on a GPU, channels last."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Launch, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda import known_window
from autotune.families.cuda.rules import require_access
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import DTYPES, Epilogue, MaxPool2dGradient

_MAX_REGISTERS = 160  # of `_Strip.registers`, an estimate: ptxas of CUDA 13 then takes at most 224, and spills none
_MAX_SUMS = 32  # of a row of dx that a thread stores at once; with 64, kernels in bf16 spill on sm_80
_ROWS = Parameter(
    "rows", (1, 2, 4, 8, 16, 32, 64), "rows of windows a thread; it also compares those above that reach its pixels"
)
_FILLED = 1 / 8  # of the threads that a GPU holds at once; `rows` that would start fewer are not timed
_CHOICES = 4  # values of `rows` that are timed, the largest


@dataclass(frozen=True)
class _Strip:
    """The pixels of a thread. filter, stride: 0 if they are not known when the kernel is compiled."""

    filter: int
    stride: int
    vector: int
    columns: int
    threads: int

    @classmethod
    def from_config(cls, config: Config) -> _Strip:
        return cls(
            filter=int(config["filter"]),
            stride=int(config["stride"]),
            vector=int(config["vector"]),
            columns=int(config["columns"]),
            threads=int(config["threads"]),
        )

    @property
    def halo(self) -> int:
        """The windows before the first of a thread that reach its pixels."""
        return (self.filter - 1) // self.stride

    @property
    def windows(self) -> int:
        """The windows of a row that a thread compares."""
        return self.columns + self.halo

    @property
    def wide(self) -> int:
        """The pixels of these windows in a row."""
        return (self.windows - 1) * self.stride + self.filter

    @property
    def sums(self) -> int:
        """The elements of a row of dx that a thread makes."""
        return self.columns * self.stride * self.vector

    def registers(self, dtype: str) -> int:
        """Return the registers of a thread: float32 sums, largest values with their places, and a row of pixels."""
        kept = self.filter - self.stride
        words = DTYPES[dtype].itemsize / 4
        largest = kept * self.windows * 2 * words
        gradients = self.windows * (1 + words)  # places of 32 bits, and dy
        return ceil((kept + 1) * self.sums + self.vector * (largest + gradients + self.wide * words))


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    strip = _Strip.from_config(config)

    def rules() -> Rules:
        yield known_window.require_both(config)
        yield require_access(strip.vector, dtype)
        if strip.filter == 0:
            yield require(strip.columns == 1, "columns must be 1 if filter is 0: pixels share only known windows")
        else:
            yield require(
                strip.registers(dtype) <= _MAX_REGISTERS,
                f"a thread must fit {_MAX_REGISTERS} registers; it takes {strip.registers(dtype)}",
            )
            yield require(
                strip.sums <= _MAX_SUMS, f"a thread must fit {_MAX_SUMS} sums of a row of dx; it has {strip.sums}"
            )

    return first_unmet(rules())


def _started(problem: MaxPool2dGradient, strip: _Strip, rows: int) -> float:
    """Return the threads of a launch."""
    if strip.filter == 0:
        return problem.n * problem.h * problem.w * problem.c / strip.vector
    tiles = ceil((problem.w + problem.pad[1]) / (strip.columns * strip.stride))
    strips = ceil(ceil((problem.h + problem.pad[0]) / strip.stride) / rows)
    return problem.n * tiles * strips * problem.c / strip.vector


def _rows(problem: MaxPool2dGradient, strip: _Strip, arch: Architecture) -> list[int]:
    """Return the numbers of rows that are worth timing."""
    if strip.filter == 0:
        return [1]
    filled = arch.processors * arch.sm_threads * _FILLED
    steps = ceil((problem.h + problem.pad[0]) / strip.stride)
    worth = [rows for rows in map(int, _ROWS.values) if rows < 2 * steps and _started(problem, strip, rows) >= filled]
    return worth[-_CHOICES:] or [1, 2]


def _launches(problem: MaxPool2dGradient, config: Config, arch: Architecture) -> list[Launch]:
    return [{_ROWS.name: rows} for rows in _rows(problem, _Strip.from_config(config), arch)]


def _cost(problem: MaxPool2dGradient, config: Config, arch: Architecture) -> float:
    """Rank by accesses a pixel of dx, with the best of the launch values: of x, of dy, and of dx itself."""
    strip = _Strip.from_config(config)

    def accesses(rows: int) -> float:
        if strip.filter == 0:
            windows = max(1.0, problem.r / problem.stride[0]) * max(1.0, problem.s / problem.stride[1])
            return windows * (problem.r * problem.s + 1) + 1
        steps = 1 + strip.halo / rows
        of_step = strip.stride * strip.wide + strip.windows
        return steps * of_step / (strip.stride**2 * strip.columns) + 1

    def rank(rows: int) -> float:
        idle = max(1.0, arch.processors * arch.sm_threads / 2 / _started(problem, strip, rows))
        return accesses(rows) * 8 / strip.vector * float(idle**0.5)

    return min(map(rank, _rows(problem, strip, arch))) + abs(strip.threads - 128) / 1024


FAMILY = Family[MaxPool2dGradient](
    name="cuda_max_pool2d_gradient",
    operator=MaxPool2dGradient,
    kind=DEVICE_IMAGE,
    template="cuda/max_pool2d_gradient.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        *known_window.parameters(),
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("columns", (1, 2, 4), "neighbouring windows of a row a thread, with `stride` columns of pixels each"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    launch_parameters=(_ROWS,),
    launches=_launches,
    why_illegal=_why_illegal,
    why_unfit=known_window.why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.3),
)
