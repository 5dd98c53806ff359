"""Families that differ between devices by their kernels alone, and share a rule: each base class has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Family, Parameter, Rules, Value, require
from autotune.ir import Epilogue
from autotune.ir.operators import GATE_ACTIVATIONS, HIDDEN_ACTIVATIONS, Cast, SeGates, SqueezeExcite, Upsample

RESULT = Parameter("result", ("s8", "f16", "bf16", "f32", "e4m3"), "dtype of the output")
LINEAR = Parameter("linear", (0, 1), "1: linear interpolation; 0: the nearest pixel")
ACT = Parameter("act", tuple(HIDDEN_ACTIVATIONS), "activation of the hidden values")
GATE = Parameter("gate", tuple(GATE_ACTIVATIONS), "activation of the gates")

P = TypeVar("P", bound=SqueezeExcite | SeGates)


class CastFamily(Family[Cast]):
    """Kernels that store one dtype, the parameter RESULT."""

    operator = Cast

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        result = config["result"]
        yield require(result in arch.dtypes, f"{arch.name} has no {result}")
        yield require(result != dtype, f"result must differ from the input's dtype, which is {dtype} too")

    def unfit(self, problem: Cast, config: Config, arch: Architecture) -> Rules:
        yield require(
            problem.result == config["result"],
            f"it stores {config['result']}; the problem's output is {problem.result}",
        )


class UpsampleFamily(Family[Upsample]):
    """Kernels for one mode, the parameter LINEAR."""

    operator = Upsample

    def unfit(self, problem: Upsample, config: Config, arch: Architecture) -> Rules:
        yield require(
            problem.linear == config["linear"],
            f"this kernel is compiled for linear = {config['linear']}; the problem's mode is {problem.mode}",
        )


class ActivationsFamily(Family[P]):
    """Kernels for one activation and one gate function, the parameters ACT and GATE."""

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        if problem and parameter in (ACT, GATE):
            return (getattr(problem, parameter.name),)
        return parameter.values

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        yield require(
            (config["act"], config["gate"]) == (problem.act, problem.gate),
            f"it computes {config['act']} and {config['gate']}; the problem needs {problem.act} and {problem.gate}",
        )
