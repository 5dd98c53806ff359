"""Another dtype on a GPU: the kernel of a lone epilogue, which stores another type."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families import cast_rules
from autotune.families.base import DEVICE_IMAGE, Config, Family
from autotune.families.cuda.elementwise import FAMILY as ELEMENTWISE
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.families.rules import Rules, first_unmet
from autotune.ir import BYTE_FORMATS, Cast, Epilogue


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    def rules() -> Rules:
        yield require_access(int(config["vector"]), dtype)
        yield require_access(int(config["vector"]), str(config["result"]))
        yield cast_rules.why_illegal(config, arch, dtype, epilogue)

    return first_unmet(rules())


def _why_unfit(problem: Cast, config: Config, arch: Architecture) -> str | None:
    return require_whole_vectors(problem.c, int(config["vector"])) or cast_rules.why_unfit(problem, config, arch)


FAMILY = Family[Cast](
    name="cuda_cast",
    operator=Cast,
    kind=DEVICE_IMAGE,
    template=ELEMENTWISE.template,
    architectures=ELEMENTWISE.architectures,
    dtypes=("f16", "bf16", "f32", *BYTE_FORMATS),
    parameters=(cast_rules.RESULT, *ELEMENTWISE.parameters),
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=ELEMENTWISE.cost,
    compile_seconds=ELEMENTWISE.compile_seconds,
)
