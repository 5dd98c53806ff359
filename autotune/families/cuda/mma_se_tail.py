"""Squeeze-and-excitation and the rest of a residual block, several images a block, both products on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Launch, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Epilogue, SeTail

_ROWS = 8  # rows of a product: images, or parts of an image's pixels
_WARP_CHANNELS = 32
_MAX_CHANNELS, _MAX_HIDDEN = 512, 64
_IMAGES = (1, 2, 4, 8)


@dataclass(frozen=True)
class _SeTailShape:
    """A config's numbers. keep: pixels that a thread keeps in registers; hidden: room for hidden values."""

    threads: int
    keep: int
    hidden: int

    @classmethod
    def from_config(cls, config: Config) -> _SeTailShape:
        return cls(threads=int(config["threads"]), keep=int(config["keep"]), hidden=int(config["hidden"]))

    def registers(self, epilogue: Epilogue) -> int:
        """Return the registers of a thread: pixels, added tensors, operands of the products, and 44 others."""
        return 4 * self.keep * (1 + max(_tensors(epilogue), 1)) + 5 * self.hidden // 4 + 44


def _tensors(epilogue: Epilogue) -> int:
    """Return how many tensors the epilogue reads."""
    return sum(argument.kind == "tensor" for argument in epilogue.arguments)


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    shape = _SeTailShape.from_config(config)
    registers = shape.threads * shape.registers(epilogue)
    return require(
        registers <= arch.sm_registers, f"a block must fit {arch.sm_registers} registers; it takes {registers}"
    )


def _hidden_columns(problem: SeTail) -> int:
    """Return the hidden values, rounded up to whole steps of 16."""
    return ceil(problem.hidden / 16) * 16


def _why_unsupported(problem: SeTail) -> str | None:
    def rules() -> Rules:
        yield require(
            problem.c % _WARP_CHANNELS == 0 and problem.c <= _MAX_CHANNELS,
            f"c must be a multiple of {_WARP_CHANNELS}, at most {_MAX_CHANNELS}",
        )
        yield require(
            problem.hidden % 4 == 0 and problem.hidden <= _MAX_HIDDEN,
            f"hidden must be a multiple of 4, at most {_MAX_HIDDEN}",
        )

    return first_unmet(rules())


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: SeTail | None
) -> tuple[Value, ...]:
    return (_hidden_columns(problem),) if problem and parameter.name == "hidden" else parameter.values


def _why_unfit(problem: SeTail, config: Config, arch: Architecture) -> str | None:
    needed = _hidden_columns(problem)
    return require(
        config["hidden"] == needed, f"it has room for {config['hidden']} hidden values; the problem needs {needed}"
    )


def _pixel_groups(problem: SeTail, threads: int) -> int:
    """Return how many warps have the same channels, of different pixels."""
    return threads // 32 // (problem.c // _WARP_CHANNELS)


def _launches(problem: SeTail, config: Config, arch: Architecture) -> list[Launch]:
    """Numbers of images that a block's threads can hold with more than half of the kept registers in use."""
    shape = _SeTailShape.from_config(config)
    groups, pixels = _pixel_groups(problem, shape.threads), problem.h * problem.w
    lanes = {images: groups * (_ROWS // images) for images in _IMAGES if images <= problem.n}
    return [
        {"images": images}
        for images, side in lanes.items()
        if side and shape.keep / 2 < ceil(pixels / side) <= shape.keep
    ]


def _cost(problem: SeTail, config: Config, arch: Architecture) -> float:
    """Estimate cycles: rounds of blocks, each a few round trips to memory, or bound by 40 bytes a cycle of an SM.

    The constants are estimates from latencies and bandwidth, not fitted.
    """
    shape = _SeTailShape.from_config(config)
    by_registers = arch.sm_registers // shape.registers(problem.epilogue)
    resident = max(1, min(arch.sm_threads, by_registers) // shape.threads)
    best = float("inf")
    for launch in _launches(problem, config, arch):
        images = launch["images"]
        blocks = ceil(problem.n / images)
        sharing = min(resident, ceil(blocks / arch.processors))
        image = 2 * problem.h * problem.w * problem.c
        bytes_ = images * image * (2 + _tensors(problem.epilogue)) + 4 * shape.hidden * problem.c
        wait = 3000 + 20 * shape.keep + 2 * shape.hidden
        best = min(best, ceil(blocks / (arch.processors * resident)) * max(wait, sharing * bytes_ / 40))
    return best


FAMILY = Family[SeTail](
    name="cuda_mma_se_tail",
    operator=SeTail,
    kind=DEVICE_IMAGE,
    template="cuda/mma_se_tail.cu.j2",
    architectures=cuda_architectures(since=80),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("threads", (64, 128, 256, 512), "threads a block, at most"),
        Parameter("keep", (1, 2, 4, 8), "pixels that a thread keeps in registers, 8 channels of each"),
        Parameter("hidden", (16, 32, 48, 64), "room for hidden values"),
    ),
    launch_parameters=(Parameter("images", _IMAGES, "images a block"),),
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    compile_seconds=(0.9, 0.4),
)
