"""Average pooling to a given size on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.ir import BYTE_FORMATS, AdaptiveAvgPool2d


def _cost(problem: AdaptiveAvgPool2d, config: Config, arch: Architecture) -> float:
    """Rank by accesses; they cost more where too few threads hide their latency."""
    vector, threads = int(config["vector"]), int(config["threads"])
    started = problem.n * problem.p * problem.q * problem.c / vector
    return 8 / vector * max(1.0, arch.processors * arch.sm_threads / 2 / started) + abs(threads - 128) / 1024


FAMILY = Family[AdaptiveAvgPool2d](
    name="cuda_adaptive_avg_pool2d",
    operator=AdaptiveAvgPool2d,
    kind=DEVICE_IMAGE,
    template="cuda/adaptive_avg_pool2d.cu.j2",
    architectures=cuda_architectures(),
    dtypes=("f16", "bf16", "tf32", "f32", *BYTE_FORMATS),
    parameters=(
        Parameter("vector", (1, 2, 4, 8, 16), "channels a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=lambda config, arch, dtype, epilogue: require_access(int(config["vector"]), dtype),
    why_unfit=lambda problem, config, arch: require_whole_vectors(problem.c, int(config["vector"])),
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
