"""What the families that change the dtype share: which dtypes there are to change to."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter
from autotune.ir import Cast, Epilogue, Problem

RESULT = Parameter("result", ("s8", "f16", "bf16", "f32"), "dtype of the output")


def legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Family.legal."""
    if config["result"] not in arch.dtypes:
        return f"{arch.name} has no {config['result']}"
    return "it is the dtype already" if config["result"] == dtype else None


def fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    """Family.fits."""
    assert isinstance(problem, Cast)
    return None if problem.result == config["result"] else f"the output is {problem.result}"
