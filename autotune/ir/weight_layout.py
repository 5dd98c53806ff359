"""Weights in the orders that kernels read. `pack_weight` repacks torch's own (k, c/groups, r, s), or (n, k) of a GEMM.

- `kcrs`: torch's own.
- `krsc`: (k, r, s, c/groups), input channels innermost.
- `rsck`: (r, s, c/groups, k), output channels innermost.
- `k<B>`, such as `k32`: (groups, blocks, r, s, c/groups, B): the k/groups output channels of each group in blocks of B,
  the last one filled up with zeros, the channels of a block innermost.
- `c<B>`: (groups, blocks, r, s, k/groups, B): the same with the input channels in blocks, as the gradient by the input
  reads them.
- `wgmma`: krsc with k filled up with zeros to a multiple of 32 and permuted within each 32, so that the columns of
  Hopper's accumulators that one thread holds (2t, 2t + 1 of every eight) are eight neighbouring channels.
- `wgmma<M>`, such as `wgmma8`: the same where each M groups are one, with zeros between them.
- `wgmma_patch`: the second operand of a wgmma whose first is in registers: (steps of 16 along c*r*s, k, 16), filled up
  with zeros, k as in `wgmma`. Of each step a thread holds 2t, 2t + 1, 2t + 8 and 2t + 9 of the first operand: their
  order is such that these are neighbours in torch's, as in a line of a patch of 4 x 4.
- `mma`: the second operand of m16n8k16 as registers: (blocks of 32 channels, steps of 16 along c*r*s, 2, 32 lanes, 16
  bytes), filled up with zeros, the channels permuted as in `wgmma`.
"""

from __future__ import annotations

import re

import torch
from torch.nn.functional import pad

from autotune.core import ceil_div


def pack_weight(weight: torch.Tensor, layout: str, groups: int = 1) -> torch.Tensor:  # noqa: PLR0911 -- a table
    """A contiguous copy of `weight` in `layout`; raises ValueError for an unknown layout.

    weight: (k, c/groups, r, s), or (n, k), which is read as (n, k, 1, 1).
    """
    weight = weight[:, :, None, None] if weight.dim() == 2 else weight
    if layout == "kcrs":
        return weight.contiguous()
    if layout == "krsc":
        return weight.permute(0, 2, 3, 1).contiguous()
    if layout == "rsck":
        return weight.permute(2, 3, 1, 0).contiguous()
    if layout == "wgmma":
        k, c, r, s = weight.shape
        blocks = ceil_div(k, 32)
        packed = weight.new_zeros(blocks * 32, r, s, c)
        packed[:k] = weight.permute(0, 2, 3, 1)
        return packed.view(blocks, 4, 4, 2, r, s, c).transpose(1, 2).contiguous()
    if layout == "wgmma_patch":
        depth = weight[0].numel()
        flat = pad(weight.flatten(1), (0, -depth % 16))
        rows = pack_weight(flat, "wgmma").flatten(0, -2)
        # depth: step, lane % 4, register / 2, element
        return rows.view(len(rows), -1, 4, 2, 2).permute(1, 0, 3, 2, 4).flatten(2).contiguous()
    if layout == "mma":
        k, depth = weight.shape[0], weight[0].numel()
        blocks, steps = ceil_div(k, 32), ceil_div(depth, 16)
        packed = weight.new_zeros(blocks * 32, steps * 16)
        packed[:k, :depth] = weight.reshape(k, depth)
        # channels: block, group / 2, half, tile of the half, group % 2; depth: step, register, lane % 4, element
        axes = packed.view(blocks, 4, 2, 2, 2, steps, 2, 4, 2)
        return axes.permute(0, 5, 2, 1, 4, 7, 3, 6, 8).contiguous()
    if match := re.fullmatch(r"wgmma([1-9]\d*)", layout):
        return pack_weight(merge_groups(weight, groups, int(match[1])), "wgmma")
    if match := re.fullmatch(r"([kc])([1-9]\d*)", layout):
        block = int(match[2])
        if match[1] == "c":  # exchange the channels of each group
            k, c, r, s = weight.shape
            weight = weight.reshape(groups, k // groups, c, r, s).transpose(1, 2).reshape(groups * c, -1, r, s)
        k, c, r, s = weight.shape
        blocks = ceil_div(k // groups, block)
        packed = weight.new_zeros(groups, blocks * block, c, r, s)
        packed[:, : k // groups] = weight.reshape(groups, k // groups, c, r, s)
        return packed.reshape(groups, blocks, block, c, r, s).permute(0, 1, 4, 5, 3, 2).contiguous()
    raise ValueError(
        f"unknown weight layout '{layout}': choose kcrs, krsc, rsck, wgmma, wgmma_patch, mma, "
        "k or c and a block's size (k32), or wgmma and how many groups are one (wgmma8)"
    )


def merge_groups(weight: torch.Tensor, groups: int, merged: int) -> torch.Tensor:
    """(k, c/groups, r, s) of a convolution in groups -> the same where each `merged` of them are one."""
    k, c, *window = weight.shape
    parts = weight.reshape(groups // merged, merged, k // groups, c, *window)
    whole = weight.new_zeros(groups // merged, merged, k // groups, merged, c, *window)
    for i in range(merged):
        whole[:, i, :, i] = parts[:, i]
    return whole.reshape(k, merged * c, *window)
