"""cuda_conv2d with squeeze-and-excitation whose squeeze is folded into filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config, Parameter, Rules, Value, require
from autotune.families.cuda.conv2d import MmaConvFamily
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dFoldedSe

_HIDDEN = se_gate.HIDDEN[:-1]  # 64 columns leave too few registers


class CudaFoldedConv2d(MmaConvFamily[Conv2dFoldedSe]):
    """cuda_conv2d with squeeze-and-excitation whose squeeze is folded into filters (problem conv2d_folded_se).

    A warp multiplies its pixels by `hidden` filters beside those of its channels. See
    templates/common/folded_se_gate.cuh.
    """

    name = "cuda_folded_conv2d"
    operator = Conv2dFoldedSe
    parameters = (
        Parameter("hidden", _HIDDEN, "hidden values of a warp's products, beside its channels"),
        *MmaConvFamily.parameters,
    )

    def convolution(self, problem: Conv2dFoldedSe) -> Conv2dFoldedSe:
        return problem

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield from se_gate.folded_epilogue_rules(epilogue)
        yield require("project" not in epilogue.names, "the epilogue must have no projection")
        yield from super().illegal(config, arch, dtype, epilogue)

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2dFoldedSe | None
    ) -> Sequence[Value]:
        if problem and parameter.name == "hidden":
            return [se_gate.hidden_columns(problem.hidden)]
        return super().candidate_values(parameter, chosen, arch, dtype, problem)

    def unsupported(self, problem: Conv2dFoldedSe) -> Rules:
        yield require(problem.hidden <= _HIDDEN[-1], f"hidden must be at most {_HIDDEN[-1]}")
        yield require(problem.p * problem.q % 16 == 0, "images must have a multiple of 16 output pixels")
        yield from super().unsupported(problem)

    def unfit(self, problem: Conv2dFoldedSe, config: Config, arch: Architecture) -> Rules:
        room = int(config["hidden"])
        yield require(problem.hidden <= room, f"it has room for {room} hidden values; the problem has {problem.hidden}")
        yield from super().unfit(problem, config, arch)

    def label(self, config: Config) -> str:
        return f"{super().label(config)} hidden {config['hidden']}"

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "krsc", "w1": "krsc"}


FAMILIES = (CudaFoldedConv2d(),)
