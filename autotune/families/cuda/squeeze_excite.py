"""Squeeze-and-excitation with any activations on a GPU: a thread block, or a cluster of blocks, takes an image."""

from __future__ import annotations

from math import ceil, log2

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.families.cuda import se_tail
from autotune.families.rules import require
from autotune.families.squeeze_excite import ACT, GATE, candidate_activations, require_activations
from autotune.ir import Epilogue, SeGates, SqueezeExcite

_BARRIER = 0.5  # cost of a cluster's barriers for each doubling, in passes over an image; an estimate


def why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Return why a config cannot be compiled; None if it can."""
    return require(
        config["cluster"] == 1 or (arch.capability or 0) >= 90, "clusters of blocks need sm_90"
    ) or se_tail.why_illegal(config, arch, dtype, epilogue)


def why_unfit(problem: SqueezeExcite | SeGates, config: Config, arch: Architecture) -> str | None:
    """Return why a kernel cannot solve a problem; None if it can."""
    return (
        require_activations(problem, config, arch)
        or require(problem.h * problem.w >= int(config["cluster"]), "each block of a cluster needs a pixel")
        or se_tail.why_unfit(problem, config, arch)
    )


def launches(problem: SqueezeExcite | SeGates, config: Config, arch: Architecture) -> list[Launch]:
    """Return one image a cluster, or the launch values of a family without clusters."""
    return [{"images": 1}] if config["cluster"] != 1 else se_tail.launches(problem, config, arch)


def cost(problem: SqueezeExcite | SeGates, config: Config, arch: Architecture) -> float:
    """Rank by passes of the threads over their pixels, rounds of blocks, and vectors that registers do not keep."""
    cluster, threads, keep = int(config["cluster"]), int(config["threads"]), int(config["keep"])
    passes = max(1.0, problem.h * problem.w * problem.c / se_tail.VECTOR / cluster / threads)
    resident = max(1, arch.sm_threads // threads)
    rounds = ceil(problem.n * cluster / (arch.processors * resident))
    blocks = min(resident, ceil(problem.n * cluster / arch.processors))  # that share a multiprocessor
    work = passes - 0.3 * int(config["early"]) + 2 * max(0.0, passes - keep)
    return rounds * (4 + blocks * threads / 512 * work) + _BARRIER * log2(cluster) + keep / 8


FAMILY = Family[SqueezeExcite](
    name="cuda_squeeze_excite",
    operator=SqueezeExcite,
    kind=DEVICE_IMAGE,
    template="cuda/squeeze_excite.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        *se_tail.FAMILY.parameters,
        Parameter("cluster", (1, 2, 4, 8), "blocks that share the pixels of an image"),
        ACT,
        GATE,
    ),
    launch_parameters=se_tail.FAMILY.launch_parameters,
    why_illegal=why_illegal,
    candidate_values=candidate_activations,
    why_unsupported=se_tail.why_unsupported,
    why_unfit=why_unfit,
    launches=launches,
    cost=cost,
    context=lambda config, arch, dtype: {**config, "gates": False},
    compile_seconds=(0.9, 0.4),
)
