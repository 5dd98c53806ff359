"""Resizing on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family
from autotune.families.cuda import output_rows
from autotune.families.upsample_rules import LINEAR, require_mode
from autotune.ir import Upsample


def _why_unfit(problem: Upsample, config: Config, arch: Architecture) -> str | None:
    return require_mode(problem, config, arch) or output_rows.require_fit(problem, config, arch)


FAMILY = Family[Upsample](
    name="cuda_upsample",
    operator=Upsample,
    kind=DEVICE_IMAGE,
    template="cuda/upsample.cu.j2",
    architectures=cuda_architectures(),
    parameters=(LINEAR, *output_rows.PARAMETERS),
    why_illegal=output_rows.why_illegal,
    why_unfit=_why_unfit,
    cost=output_rows.cost,
    compile_seconds=(0.9, 0.1),
)
