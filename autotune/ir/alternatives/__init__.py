"""Alternatives to layers of a network: each module has a pattern of layers, what computes the same, and when it may."""

from collections.abc import Sequence

from autotune.ir.alternatives.concat_products import concat_products
from autotune.ir.alternatives.conv_pairs import conv_pairs
from autotune.ir.alternatives.first_layers import first_layers
from autotune.ir.alternatives.gated_convolutions import gated_convolutions
from autotune.ir.alternatives.gated_products import gated_products
from autotune.ir.alternatives.inverted_residuals import inverted_residuals
from autotune.ir.alternatives.merged_groups import merged_groups
from autotune.ir.alternatives.padded_outputs import padded_outputs
from autotune.ir.alternatives.patch_stems import patch_stems
from autotune.ir.alternatives.pointwise_pairs import pointwise_pairs
from autotune.ir.alternatives.pooled_projection import pooled_projection
from autotune.ir.alternatives.projected_skips import projected_skips
from autotune.ir.alternatives.se_blocks import se_blocks
from autotune.ir.alternatives.separate_gates import separate_gates
from autotune.ir.alternatives.separate_norms import separate_norms
from autotune.ir.alternatives.shuffled_product import shuffled_product
from autotune.ir.alternatives.upsampled_convolutions import upsampled_convolutions
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.network import Alternative, Layer

__all__ = ["alternatives"]

_PATTERNS = (
    merged_groups,
    shuffled_product,
    upsampled_convolutions,
    padded_outputs,
    pointwise_pairs,
    projected_skips,
    first_layers,
    inverted_residuals,
    conv_pairs,
    concat_products,
    gated_products,
    separate_gates,
    separate_norms,
    pooled_projection,
    gated_convolutions,
)
"""The alternatives that begin with one layer, in the order in which a network lists them."""


def alternatives(layers: Sequence[Layer]) -> tuple[Alternative, ...]:
    """Return all alternatives to some of the layers."""
    wiring = Wiring(layers)
    found = [one for layer in layers for pattern in _PATTERNS for one in pattern(wiring, layer)]
    blocks = list(se_blocks(wiring))
    return (*found, *blocks, *patch_stems(wiring, blocks))
