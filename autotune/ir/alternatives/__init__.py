"""Alternatives to layers of a network: each module has a pattern of layers, what computes the same, and when it may."""

from autotune.ir.alternatives.patch_stem import patch_stems
from autotune.ir.alternatives.se_blocks import se_blocks

__all__ = ["patch_stems", "se_blocks"]
