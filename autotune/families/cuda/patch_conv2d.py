"""Convolution of patches that do not overlap, on an NCHW image, on a GPU; fp16 and bf16."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture, ceil_div
from autotune.families.base import CHANNELS_LAST, Config, Launch, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.ir import Epilogue
from autotune.ir.operators import PatchConv2d

_STEPS = (1, 2, 3, 4, 6, 8, 12)
_MAX_FRAGMENTS = 16  # operand fragments, of 16 patches by 16 of K, that a thread's registers hold


def _steps(problem: PatchConv2d) -> int:
    """Return the tensor-core steps of 16 along K."""
    return ceil_div(problem.c * problem.block**2, 16)


class CudaPatchConv2d(TensorCoreFamily[PatchConv2d]):
    """Convolution of patches that do not overlap, on an NCHW image: tensor cores, operands in registers."""

    name = "cuda_patch_conv2d"
    operator = PatchConv2d
    template = "cuda/patch_conv2d.cu.j2"
    parameters = (
        Parameter("steps", _STEPS, "tensor-core steps of 16 along K = c*block*block"),
        Parameter("fragments", (1, 2, 4), "times 16 patches a warp"),
        Parameter("threads", (64, 128, 256, 512), "threads a block"),
    )
    launch_parameters = (CHANNELS_LAST,)
    compile_seconds = (0.9, 0.3)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        held = int(config["steps"]) * int(config["fragments"])
        yield require(held <= _MAX_FRAGMENTS, f"steps times fragments must be at most {_MAX_FRAGMENTS}; it is {held}")

    def unsupported(self, problem: PatchConv2d) -> Rules:
        yield require(problem.block % 2 == 0, "block must be even")
        yield require(problem.k % 8 == 0, "k must be a multiple of 8")
        yield require(_steps(problem) in _STEPS, f"c*block*block/16, rounded up, must be one of {_STEPS}")

    def decided(self, problem: PatchConv2d) -> Mapping[str, Value]:
        return {"steps": _steps(problem)}

    def launches(self, problem: PatchConv2d, config: Config, arch: Architecture) -> list[Launch]:
        return [{CHANNELS_LAST.name: 0}]

    def cost(self, problem: PatchConv2d, config: Config, arch: Architecture) -> float:
        """Rank by rounds of warps over the machine, each bound by its loads."""
        warps = problem.n * problem.output_shape[1] * problem.output_shape[2] / (16 * int(config["fragments"]))
        places = arch.processors * min(arch.sm_threads // 32, 32)
        return max(1.0, warps / places) * int(config["fragments"]) + int(config["threads"]) / 1024

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "mma"}


FAMILIES = (CudaPatchConv2d(),)
