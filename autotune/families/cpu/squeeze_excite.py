"""Squeeze-and-excitation with any activations on the CPU: images in parallel, each in one pass while it is in cache."""

from dataclasses import replace

from autotune.families.cpu.common import over_channels
from autotune.families.squeeze_excite import ACT, GATE, candidate_activations, require_activations
from autotune.ir import SqueezeExcite

_FAMILY = over_channels(SqueezeExcite, "cpu/se_tail.cpp.j2")

FAMILY = replace(
    _FAMILY,
    parameters=(*_FAMILY.parameters, ACT, GATE),
    candidate_values=candidate_activations,
    why_unfit=require_activations,
)
