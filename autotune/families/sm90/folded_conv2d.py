"""sm90_conv2d with squeeze-and-excitation whose squeeze is folded into filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.core import Architecture
from autotune.families import se_gate
from autotune.families.base import Config, Parameter, Rules, Value, require
from autotune.families.sm90.conv2d import Conv2dFamily
from autotune.families.sm90.conv2d_shape import Conv2dShape
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dFoldedSe, Conv2dSeSkip, FoldedSe


class Sm90FoldedConv2d(Conv2dFamily[FoldedSe]):
    """sm90_conv2d with squeeze-and-excitation whose squeeze is folded into filters (problem conv2d_folded_se).

    A tile's products have `hidden` columns beside its channels. See templates/common/folded_se_gate.cuh.
    """

    name = "sm90_folded_conv2d"
    operator = (Conv2dFoldedSe, Conv2dSeSkip)
    parameters = (
        Parameter("image", ("warps", "rows"), "of a multiple of 16 pixels, or 1, 4 or 8 of a warp's rows"),
        Parameter("hidden", se_gate.HIDDEN, "hidden values of a tile's products, beside its channels"),
        *(parameter for parameter in Conv2dFamily.parameters if parameter.name not in ("merge", "tile_k")),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = Conv2dShape.from_config(config, dtype)
        yield from super().illegal(config, arch, dtype, epilogue)
        yield from se_gate.folded_epilogue_rules(epilogue)
        yield require(
            "project" not in epilogue.names or not (x.patch or x.resident or x.slices > 1),
            "with a projection, activations must be im2col, weights streamed and slices 1",
        )

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: FoldedSe | None
    ) -> Sequence[Value]:
        match parameter.name:
            case "image" if problem:
                return [se_gate.image_kind(problem)]
            case "hidden" if problem:
                return [se_gate.hidden_columns(problem.hidden)]
        return super().candidate_values(parameter, chosen, arch, dtype, problem)

    def unsupported(self, problem: FoldedSe) -> Rules:
        yield from super().unsupported(problem)
        yield from se_gate.problem_rules(problem)
        yield require(problem.c > 32, f"c must be more than 32, for steps of 64 channels; it is {problem.c}")
        if isinstance(problem, Conv2dSeSkip):
            channels = problem.skip_c // problem.skip_groups
            yield require(channels % 8 == 0, "the projection's input channels must be a multiple of 8")
            yield require(
                problem.skip_groups == 1 or channels % 64 == 0,
                "the input channels of a projection's group must be a multiple of 64",
            )

    def unfit(self, problem: FoldedSe, config: Config, arch: Architecture) -> Rules:
        yield from se_gate.folded_fit_rules(problem, config)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**super().context(config, arch, dtype), "tile_k": 64, "merge": 1}

    def label(self, config: Config) -> str:
        return f"{super().label(config)} hidden {config['hidden']}"

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "wgmma", "w1": "krsc", "projection": "wgmma"}


FAMILIES = (Sm90FoldedConv2d(),)
