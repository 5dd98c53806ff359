"""The end of a residual block with squeeze-and-excitation on tensor cores; fp16 and bf16, channels last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture, round_up
from autotune.families.base import Config, ConfigNumbers, Launch, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.ir import Epilogue
from autotune.ir.operators import SeTail

_ROWS = 8  # rows of a product: images, or parts of an image's pixels
_WARP_CHANNELS = 32
_MAX_CHANNELS, _MAX_HIDDEN = 512, 64
_IMAGES = (1, 2, 4, 8)


@dataclass(frozen=True)
class _SeTailShape(ConfigNumbers):
    """A config's numbers. keep: pixels that a thread keeps in registers; hidden: room for hidden values."""

    threads: int
    keep: int
    hidden: int

    def registers(self, epilogue: Epilogue) -> int:
        """Return the registers of a thread: pixels, added tensors, operands of the products, and 44 others."""
        return 4 * self.keep * (1 + max(_tensors(epilogue), 1)) + 5 * self.hidden // 4 + 44


def _tensors(epilogue: Epilogue) -> int:
    """Return how many tensors the epilogue reads."""
    return sum(argument.kind == "tensor" for argument in epilogue.arguments)


class CudaMmaSeTail(TensorCoreFamily[SeTail]):
    """Squeeze-and-excitation and the rest of a residual block: several images a block, products on tensor cores."""

    name = "cuda_mma_se_tail"
    operator = SeTail
    template = "cuda/mma_se_tail.cu.j2"
    parameters = (
        Parameter("threads", (64, 128, 256, 512), "threads a block, at most"),
        Parameter("keep", (1, 2, 4, 8), "pixels that a thread keeps in registers, 8 channels of each"),
        Parameter("hidden", (16, 32, 48, 64), "room for hidden values"),
    )
    launch_parameters = (Parameter("images", _IMAGES, "images a block"),)
    compile_seconds = (0.9, 0.4)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        shape = _SeTailShape.from_config(config)
        registers = shape.threads * shape.registers(epilogue)
        yield require(
            registers <= arch.sm_registers, f"a block must fit {arch.sm_registers} registers; it takes {registers}"
        )

    def unsupported(self, problem: SeTail) -> Rules:
        yield require(
            problem.c % _WARP_CHANNELS == 0 and problem.c <= _MAX_CHANNELS,
            f"c must be a multiple of {_WARP_CHANNELS}, at most {_MAX_CHANNELS}",
        )
        yield require(
            problem.hidden % 4 == 0 and problem.hidden <= _MAX_HIDDEN,
            f"hidden must be a multiple of 4, at most {_MAX_HIDDEN}",
        )

    def decided(self, problem: SeTail) -> Mapping[str, Value]:
        return {"hidden": round_up(problem.hidden, 16)}

    def launches(self, problem: SeTail, config: Config, arch: Architecture) -> list[Launch]:
        """Return numbers of images that a block's threads can hold with more than half of the kept registers in use."""
        shape = _SeTailShape.from_config(config)
        pixels = problem.h * problem.w
        groups = shape.threads // 32 // (problem.c // _WARP_CHANNELS)  # warps that have the same channels
        lanes = {images: groups * (_ROWS // images) for images in _IMAGES if images <= problem.n}
        return [
            {"images": images}
            for images, side in lanes.items()
            if side and shape.keep / 2 < ceil(pixels / side) <= shape.keep
        ]

    def cost(self, problem: SeTail, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of blocks, each a few round trips to memory, or bound by 40 bytes a cycle of an SM.

        The constants are estimates from latencies and bandwidth, not fitted.
        """
        shape = _SeTailShape.from_config(config)
        by_registers = arch.sm_registers // shape.registers(problem.epilogue)
        resident = max(1, min(arch.sm_threads, by_registers) // shape.threads)
        best = float("inf")
        for launch in self.launches(problem, config, arch):
            images = launch["images"]
            blocks = ceil(problem.n / images)
            sharing = min(resident, ceil(blocks / arch.processors))
            image = 2 * problem.h * problem.w * problem.c
            bytes_ = images * image * (2 + _tensors(problem.epilogue)) + 4 * shape.hidden * problem.c
            wait = 3000 + 20 * shape.keep + 2 * shape.hidden
            best = min(best, ceil(blocks / (arch.processors * resident)) * max(wait, sharing * bytes_ / 40))
        return best


FAMILIES = (CudaMmaSeTail(),)
