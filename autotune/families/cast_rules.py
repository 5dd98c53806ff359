"""Rules that the families of casts share: the dtypes that a kernel can store."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter
from autotune.families.rules import require
from autotune.ir import Cast, Epilogue

RESULT = Parameter("result", ("s8", "f16", "bf16", "f32", "e4m3"), "dtype of the output")


def why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Return why a kernel with a config's result cannot be compiled, or None."""
    result = config["result"]
    return require(result in arch.dtypes, f"{arch.name} has no {result}") or require(
        result != dtype, f"result must differ from the input's dtype, which is {dtype} too"
    )


def why_unfit(problem: Cast, config: Config, arch: Architecture) -> str | None:
    """Return why a kernel with a config's result cannot solve a problem, or None."""
    return require(
        problem.result == config["result"], f"it stores {config['result']}; the problem's output is {problem.result}"
    )
