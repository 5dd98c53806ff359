"""Another dtype on a GPU: the lone epilogue's kernel, with another type stored."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families import cast_rules, cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family
from autotune.families.cuda.elementwise import FAMILY as ELEMENTWISE
from autotune.ir import Cast, Epilogue, Problem


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    vector = int(config["vector"])
    wide = cuda_shared.too_wide(vector, dtype) or cuda_shared.too_wide(vector, str(config["result"]))
    return wide or cast_rules.legal(config, arch, dtype, epilogue)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Cast)
    return cuda_shared.odd(problem.c, int(config["vector"])) or cast_rules.fits(problem, config, arch)


FAMILY = Family(
    name="cuda_cast",
    operator=Cast,
    kind=DEVICE_IMAGE,
    template=ELEMENTWISE.template,
    architectures=ELEMENTWISE.architectures,
    dtypes=("f16", "bf16", "f32", "s8"),
    parameters=(cast_rules.RESULT, *ELEMENTWISE.parameters),
    legal=_legal,
    fits=_fits,
    cost=ELEMENTWISE.cost,
    compile_seconds=ELEMENTWISE.compile_seconds,
)
