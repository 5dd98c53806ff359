"""Squeeze-and-excitation with any activations on a GPU: a thread block, or a cluster of blocks, takes an image."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.cuda.rules import require_clusters
from autotune.families.cuda.se_tail import VECTOR, GatedFamily
from autotune.families.shared_rules import ACT, GATE, ActivationsFamily
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import SeGates, SqueezeExcite

P = TypeVar("P", bound=SqueezeExcite | SeGates)

_SM_THREADS = 1024  # threads of 64 registers that a multiprocessor holds
_FEW_KEPT = 4  # vectors that a thread can keep in 64 registers
_GPC_SMS, _GPC_FILL = 16, 0.9  # a cluster lies in one GPC; not all GPCs are complete
_CHAIN_US, _CLUSTER_US = 3.5, 1.5  # latencies of a launch's loads, sums and products; of a cluster's barriers
_LATE_US = 0.15  # of a vector that is read when it is needed
_SM_BYTES_US = 45_000.0  # that a multiprocessor moves in a microsecond


def _blocks(config: Config) -> int:
    """Return the blocks that a multiprocessor can hold: the compiler limits the registers of a thread to that."""
    return max(1, _SM_THREADS // int(config["threads"])) if int(config["keep"]) <= _FEW_KEPT else 1


class ClusterFamily(ActivationsFamily[P], GatedFamily[P]):
    """Kernels of which a block or a cluster takes an image."""

    template = "cuda/squeeze_excite.cu.j2"
    parameters = (
        *GatedFamily.parameters,
        Parameter("cluster", (1, 2, 4, 8), "blocks that share the pixels of an image"),
        ACT,
        GATE,
    )
    compile_seconds = (0.9, 0.4)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_clusters(arch, int(config["cluster"]))
        yield from super().illegal(config, arch, dtype, epilogue)

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        yield require(problem.h * problem.w >= int(config["cluster"]), "each block of a cluster needs a pixel")
        yield from super().unfit(problem, config, arch)

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        return [{"images": 1}] if config["cluster"] != 1 else super().launches(problem, config, arch)

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Estimate microseconds: rounds of clusters, each a chain of latencies and what its blocks move.

        The constants were chosen by hand for 130 measurements on an H200, of kernels of which a multiprocessor held one
        block: for eight of ten, the estimate is 0.83 to 1.65 times the measured time.
        """
        cluster, threads, keep = int(config["cluster"]), int(config["threads"]), int(config["keep"])
        resident, split = _blocks(config), cluster > 1 and not config["early"]
        if cluster > 1:
            at_once = max(1, int(_GPC_FILL * (arch.processors // _GPC_SMS) * (_GPC_SMS * resident // cluster)))
        else:
            at_once = arch.processors * resident
        size = DTYPES[problem.dtype].itemsize
        part = problem.h * problem.w * problem.c * size / cluster
        vectors = part / (VECTOR * size * threads)  # of a thread
        left = max(0.0, 1 - keep / vectors)  # share of the part that is read again
        passes = 1 if isinstance(problem, SeGates) else 2 + left
        weights = 2 * problem.hidden * problem.c * size / (cluster if split else 1)
        sharing = min(resident, ceil(problem.n * cluster / arch.processors))
        chain = _CHAIN_US + threads / 1024 + _CLUSTER_US * ((cluster > 1) + split)
        late = _LATE_US * left * vectors * (passes - 1 or 1)
        each = chain + late + sharing * (part * passes + weights) / _SM_BYTES_US
        return ceil(problem.n / at_once) * each

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "gates": self.operator is SeGates, "blocks": _blocks(config)}


class CudaSqueezeExcite(ClusterFamily[SqueezeExcite]):
    """Gates and their product with the image."""

    name = "cuda_squeeze_excite"
    operator = SqueezeExcite


class CudaSeGates(ClusterFamily[SeGates]):
    """The gates alone."""

    name = "cuda_se_gates"
    operator = SeGates


FAMILIES = (CudaSqueezeExcite(), CudaSeGates())
