"""Convolution weights in the orders that kernels read. `pack_weight` repacks torch's own (k, c/groups, r, s).

- `kcrs`: torch's own.
- `krsc`: (k, r, s, c/groups), input channels innermost.
- `rsck`: (r, s, c/groups, k), output channels innermost.
- `k<B>`, such as `k32`: (groups, blocks, r, s, c/groups, B): the k/groups output channels of each group in blocks of B,
  the last one filled up with zeros, the channels of a block innermost.
"""

from __future__ import annotations

import re

import torch


def pack_weight(weight: torch.Tensor, layout: str, groups: int = 1) -> torch.Tensor:
    """A contiguous copy of `weight` (k, c/groups, r, s) in `layout`; raises ValueError for an unknown layout."""
    if layout == "kcrs":
        return weight.contiguous()
    if layout == "krsc":
        return weight.permute(0, 2, 3, 1).contiguous()
    if layout == "rsck":
        return weight.permute(2, 3, 1, 0).contiguous()
    if match := re.fullmatch(r"k([1-9]\d*)", layout):
        block = int(match[1])
        k, c, r, s = weight.shape
        blocks = -(-(k // groups) // block)
        packed = weight.new_zeros(groups, blocks * block, c, r, s)
        packed[:, : k // groups] = weight.reshape(groups, k // groups, c, r, s)
        return packed.reshape(groups, blocks, block, c, r, s).permute(0, 1, 4, 5, 3, 2).contiguous()
    raise ValueError(f"unknown weight layout '{layout}': choose kcrs, krsc, rsck, or k and a block size, such as k32")
