"""Convolution of patches that do not overlap, on an NCHW image: tensor cores, operands in registers; fp16 and bf16."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture, ceil_div
from autotune.families import cuda_shared
from autotune.families.base import CHANNELS_LAST, DEVICE_IMAGE, Config, Family, Parameter, Value
from autotune.ir import PatchConv2d, Problem

_STEPS = (1, 2, 3, 4, 6, 8, 12)


def _steps(problem: PatchConv2d) -> int:
    """Tensor-core steps of 16 along K."""
    return ceil_div(problem.c * problem.block**2, 16)


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, PatchConv2d)
    if problem.block % 2:
        return "block must be even"
    if problem.k % 8:
        return "k must be a multiple of 8"
    return None if _steps(problem) in _STEPS else f"c*block*block/16 must be of {_STEPS}"


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    if isinstance(problem, PatchConv2d) and parameter.name == "steps":
        return (_steps(problem),)
    return parameter.values


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, PatchConv2d)
    return None if config["steps"] == _steps(problem) else f"it has {config['steps']} steps along K"


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Rounds of warps over the machine, each bound by its loads."""
    assert isinstance(problem, PatchConv2d)
    warps = problem.n * problem.output_shape[1] * problem.output_shape[2] / (16 * int(config["fragments"]))
    places = arch.processors * min(arch.sm_threads // 32, 32)
    return max(1.0, warps / places) * int(config["fragments"]) + int(config["threads"]) / 1024


FAMILY = Family(
    name="cuda_patch_conv2d",
    operator=PatchConv2d,
    kind=DEVICE_IMAGE,
    template="cuda/patch_conv2d.cu.j2",
    architectures=cuda_shared.MMA_ARCHITECTURES,
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("steps", _STEPS, "tensor-core steps of 16 along K = c*block*block"),
        Parameter("fragments", (1, 2, 4), "times 16 patches a warp"),
        Parameter("threads", (64, 128, 256, 512), "threads a block"),
    ),
    launch_parameters=(CHANNELS_LAST,),
    launches=lambda *_: [{CHANNELS_LAST.name: 0}],
    values=_values,
    legal=lambda config, *_: "too many registers" if int(config["steps"]) * int(config["fragments"]) > 16 else None,
    supports=_supports,
    fits=_fits,
    cost=_cost,
    weight_layouts=lambda _: {"weight": "mma"},
    compile_seconds=(0.9, 0.3),
)
