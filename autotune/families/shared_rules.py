"""Families that differ between devices by their kernels alone, and share a rule: each base class has one."""

from __future__ import annotations

from collections.abc import Mapping
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
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require(result in arch.dtypes, f"{arch.name} has no {result}")
        yield require(result != dtype, f"result must differ from the input's dtype, which is {dtype} too")

    def decided(self, problem: Cast) -> Mapping[str, Value]:
        return {"result": problem.result}


class UpsampleFamily(Family[Upsample]):
    """Kernels for one mode, the parameter LINEAR."""

    operator = Upsample

    def decided(self, problem: Upsample) -> Mapping[str, Value]:
        return {"linear": int(problem.linear)}


class ActivationsFamily(Family[P]):
    """Kernels for one activation and one gate function, the parameters ACT and GATE."""

    def decided(self, problem: P) -> Mapping[str, Value]:
        return {"act": problem.act, "gate": problem.gate}
