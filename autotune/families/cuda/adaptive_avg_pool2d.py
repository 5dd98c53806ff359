"""Average pooling to a given size on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter
from autotune.families.cuda.common import WITH_BYTES, VectorFamily
from autotune.ir.operators import AdaptiveAvgPool2d


class CudaAdaptiveAvgPool2d(VectorFamily[AdaptiveAvgPool2d]):
    """Average pooling to a given size: a thread computes some channels of an output pixel."""

    name = "cuda_adaptive_avg_pool2d"
    operator = AdaptiveAvgPool2d
    template = "cuda/adaptive_avg_pool2d.cu.j2"
    dtypes = WITH_BYTES
    parameters = (
        Parameter("vector", (1, 2, 4, 8, 16), "channels a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )

    def cost(self, problem: AdaptiveAvgPool2d, config: Config, arch: Architecture) -> float:
        """Rank by accesses; they cost more where too few threads hide their latency."""
        vector, threads = int(config["vector"]), int(config["threads"])
        started = problem.n * problem.p * problem.q * problem.c / vector
        return 8 / vector * max(1.0, arch.processors * arch.sm_threads / 2 / started) + abs(threads - 128) / 1024


FAMILIES = (CudaAdaptiveAvgPool2d(),)
