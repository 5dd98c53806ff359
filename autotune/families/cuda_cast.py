"""Another dtype on a GPU: the lone epilogue's kernel, with another type stored."""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families import cast, cuda
from autotune.families.base import DEVICE_IMAGE, Config, Family
from autotune.families.cuda_elementwise import FAMILY as ELEMENTWISE
from autotune.problem import Cast, Problem


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    vector = int(config["vector"])
    wide = cuda.too_wide(vector, dtype) or cuda.too_wide(vector, str(config["result"]))
    return wide or cast.legal(config, arch, dtype, epilogue)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Cast)
    return cuda.odd(problem.c, int(config["vector"])) or cast.fits(problem, config, arch)


FAMILY = Family(
    name="cuda_cast",
    operator=Cast,
    kind=DEVICE_IMAGE,
    template=ELEMENTWISE.template,
    architectures=ELEMENTWISE.architectures,
    dtypes=("f16", "bf16", "f32", "s8"),
    parameters=(cast.RESULT, *ELEMENTWISE.parameters),
    legal=_legal,
    fits=_fits,
    cost=ELEMENTWISE.cost,
    compile_seconds=ELEMENTWISE.compile_seconds,
)
