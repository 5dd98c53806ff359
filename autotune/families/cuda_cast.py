"""Another dtype on a GPU: the lone epilogue's kernel, with another type stored."""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families import cast
from autotune.families.base import DEVICE_IMAGE, Config, Family
from autotune.families.cuda_elementwise import FAMILY as ELEMENTWISE
from autotune.families.cuda_elementwise import access
from autotune.problem import Cast, Problem


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    wide = access(config, dtype) or access(config, str(config["result"]))
    return wide or cast.legal(config, arch, dtype, epilogue)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Cast)
    narrow = "c must be a multiple of the vector" if problem.c % int(config["vector"]) else None
    return narrow or cast.fits(problem, config, arch)


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
