"""Squeeze-and-excitation with any activations on a GPU: a thread block, or a cluster of blocks, takes an image."""

from __future__ import annotations

from math import ceil

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.families.cuda import se_tail
from autotune.families.rules import require
from autotune.families.squeeze_excite import ACT, GATE, candidate_activations, require_activations
from autotune.ir import DTYPES, Epilogue, SeGates, SqueezeExcite

_SM_THREADS = 1024  # threads of 64 registers that a multiprocessor holds
_FEW_KEPT = 4  # vectors that a thread can keep in 64 registers
_GPC_SMS, _GPC_FILL = 16, 0.9  # a cluster lies in one GPC; not all GPCs are complete
_CHAIN_US, _CLUSTER_US = 3.5, 1.5  # latencies of a launch's loads, sums and products; of a cluster's barriers
_LATE_US = 0.15  # of a vector that is read when it is needed
_SM_BYTES_US = 45_000.0  # that a multiprocessor moves in a microsecond


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


def blocks(config: Config) -> int:
    """Return the blocks that a multiprocessor can hold: the compiler limits the registers of a thread to that."""
    return max(1, _SM_THREADS // int(config["threads"])) if int(config["keep"]) <= _FEW_KEPT else 1


def cost(problem: SqueezeExcite | SeGates, config: Config, arch: Architecture) -> float:
    """Estimate microseconds: rounds of clusters, each a chain of latencies and what its blocks move.

    The constants were chosen by hand for 130 measurements on an H200, of kernels of which a multiprocessor held one
    block: for eight of ten, the estimate is 0.83 to 1.65 times the measured time.
    """
    cluster, threads, keep = int(config["cluster"]), int(config["threads"]), int(config["keep"])
    resident, split = blocks(config), cluster > 1 and not config["early"]
    if cluster > 1:
        at_once = max(1, int(_GPC_FILL * (arch.processors // _GPC_SMS) * (_GPC_SMS * resident // cluster)))
    else:
        at_once = arch.processors * resident
    size = DTYPES[problem.dtype].itemsize
    part = problem.h * problem.w * problem.c * size / cluster
    vectors = part / (se_tail.VECTOR * size * threads)  # of a thread
    left = max(0.0, 1 - keep / vectors)  # share of the part that is read again
    passes = 1 if isinstance(problem, SeGates) else 2 + left
    weights = 2 * problem.hidden * problem.c * size / (cluster if split else 1)
    sharing = min(resident, ceil(problem.n * cluster / arch.processors))
    chain = _CHAIN_US + threads / 1024 + _CLUSTER_US * ((cluster > 1) + split)
    late = _LATE_US * left * vectors * (passes - 1 or 1)
    each = chain + late + sharing * (part * passes + weights) / _SM_BYTES_US
    return ceil(problem.n / at_once) * each


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
    context=lambda config, arch, dtype: {**config, "gates": False, "blocks": blocks(config)},
    compile_seconds=(0.9, 0.4),
)
