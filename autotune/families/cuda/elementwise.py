"""`elementwise` and `cast` on a GPU: an epilogue without an operator, channels last."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules
from autotune.families.cuda.common import WITH_BYTES, VectorFamily
from autotune.families.cuda.rules import require_access
from autotune.families.shared_rules import RESULT, CastFamily
from autotune.ir import BYTE_FORMATS, Epilogue
from autotune.ir.operators import Cast, Elementwise

_PARAMETERS = (
    Parameter("vector", (1, 2, 4, 8, 16), "channels of an access"),
    Parameter("items", (1, 2, 4), "accesses a thread"),
    Parameter("threads", (64, 128, 256), "threads a block"),
)


def _cost(problem: Elementwise | Cast, config: Config, arch: Architecture) -> float:
    """Rank by accesses; several accesses a thread cost more where they leave SMs without threads."""
    vector, items, threads = (int(config[name]) for name in ("vector", "items", "threads"))
    started = problem.n * problem.h * problem.w * problem.c / (vector * items)
    idle = max(1.0, arch.processors * arch.sm_threads / started)
    return 8 / vector * (1 + 0.1 / items) * float(idle**0.25) + abs(threads - 128) / 1024


class CudaElementwise(VectorFamily[Elementwise]):
    """A lone epilogue."""

    name = "cuda_elementwise"
    operator = Elementwise
    template = "cuda/elementwise.cu.j2"
    dtypes = WITH_BYTES
    parameters = _PARAMETERS

    def cost(self, problem: Elementwise, config: Config, arch: Architecture) -> float:
        return _cost(problem, config, arch)


class CudaCast(CastFamily, VectorFamily[Cast]):
    """The kernel of a lone epilogue, which stores another type."""

    name = "cuda_cast"
    template = "cuda/elementwise.cu.j2"
    dtypes = ("f16", "bf16", "f32", *BYTE_FORMATS)
    parameters = (RESULT, *_PARAMETERS)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require_access(int(config["vector"]), str(config["result"]))

    def cost(self, problem: Cast, config: Config, arch: Architecture) -> float:
        return _cost(problem, config, arch)


FAMILIES = (CudaElementwise(), CudaCast())
