"""A family of kernels for Hopper, with the fields that all of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import DEVICE_IMAGE, Config, Launch, Parameter, Value, all_values
from autotune.families.base import RecordFamily as Family
from autotune.ir import MAP_ELEMENTS, Epilogue, Problem

P = TypeVar("P", bound=Problem)


def hopper_context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    """Return the template's variables: the config, the dtype, and its name in tensor maps."""
    return {**config, "type": dtype, "map_element": MAP_ELEMENTS[dtype]}


def hopper_family(
    name: str,
    operator: type[P] | tuple[type[P], ...],
    *,
    template: str,
    parameters: tuple[Parameter, ...],
    launch_parameters: tuple[Parameter, ...],
    why_illegal: Callable[[Config, Architecture, str, Epilogue], str | None],
    why_unsupported: Callable[[P], str | None],
    why_unfit: Callable[[P, Config, Architecture], str | None],
    launches: Callable[[P, Config, Architecture], list[Launch]],
    cost: Callable[[P, Config, Architecture], float],
    label: Callable[[Config], str],
    weight_layouts: Mapping[str, str],
    candidate_values: Callable[[Parameter, Config, Architecture, str, P | None], Sequence[Value]] = all_values,
    context: Callable[[Config, Architecture, str], Mapping[str, object]] = hopper_context,
    dtypes: tuple[str, ...] = ("f16", "bf16"),
) -> Family[P]:
    """Return a family of kernels for sm90.

    The arguments are the fields of Family, but `weight_layouts` holds for all configs.
    """
    return Family[P](
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template=template,
        architectures=("sm90",),
        dtypes=dtypes,
        parameters=parameters,
        launch_parameters=launch_parameters,
        why_illegal=why_illegal,
        candidate_values=candidate_values,
        why_unsupported=why_unsupported,
        why_unfit=why_unfit,
        launches=launches,
        cost=cost,
        context=context,
        label=label,
        weight_layouts=lambda _: weight_layouts,
        compile_seconds=(1.0, 1.2),
    )
