"""Weights in the orders that kernels read. `pack_weight` repacks torch's (k, c/groups, r, s), or (n, k) of a GEMM.

- `kcrs`: torch's own.
- `krsc`: (k, r, s, c/groups), input channels innermost.
- `rsck`: (r, s, c/groups, k), output channels innermost.
- `k<B>`, such as `k32`: (groups, blocks, r, s, c/groups, B): the k/groups output channels of each group in blocks of B,
  the last one padded with zeros, the channels of a block innermost.
- `c<B>`: (groups, blocks, r, s, k/groups, B): the same with the input channels in blocks, as the input gradient reads
  them.
- `wgmma`: krsc with the output channels in the order of wgmma's accumulator columns, see `_wgmma`.
- `wgmma<M>`, such as `wgmma8`: the same with each M groups merged into one, with zeros between them.
- `wgmma_dgrad`: the same with input and output channels exchanged, as the input gradient reads them.
- `wgmma_pair`: wgmma with the input channels as wgmma's results in registers have them, see `_wgmma_pair`.
- `wgmma_patch`: the second operand of a wgmma whose first is in registers, see `_wgmma_patch`.
- `mma`: the second operand of mma.m16n8k16 in registers, see `_mma`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from einops import rearrange
from torch.nn.functional import pad

_CHANNEL_BLOCK = 32  # channels of four 8-column groups of accumulators: 8 neighbours for each of 4 threads
_DEPTH_STEP = 16  # depth of one wgmma or mma of two-byte elements


def pack_weight(weight: torch.Tensor, layout: str, groups: int = 1) -> torch.Tensor:
    """Return a contiguous copy of a weight in another layout; a weight in torch's own layout may be returned itself.

    Args:
        weight: (k, c/groups, r, s), or (n, k), which is read as (n, k, 1, 1). Any dtype.
        layout: Name of the layout, as listed in this module.
        groups: Number of groups of the convolution.

    Raises:
        ValueError: There is no such layout.
    """
    weight = weight[:, :, None, None] if weight.dim() == 2 else weight
    if packer := _PACKERS.get(layout):
        return packer(weight).contiguous()
    if match := re.fullmatch(r"wgmma([1-9]\d*)", layout):
        return _wgmma(merge_groups(weight, groups, int(match[1]))).contiguous()
    if match := re.fullmatch(r"k([1-9]\d*)", layout):
        return _blocked_outputs(weight, groups, int(match[1])).contiguous()
    if match := re.fullmatch(r"c([1-9]\d*)", layout):
        return _blocked_inputs(weight, groups, int(match[1])).contiguous()
    raise ValueError(
        f"unknown weight layout '{layout}': choose kcrs, krsc, rsck, wgmma, wgmma_dgrad, wgmma_pair, wgmma_patch, "
        "mma, k or c and the size of a block (k32), or wgmma and the number of groups that are merged (wgmma8)"
    )


def turn_weight(weight: torch.Tensor, groups: int = 1) -> torch.Tensor:
    """Return the weight of the convolution that computes an input gradient: Conv2dDgrad.as_convolution().

    Args:
        weight: (k, c/groups, r, s) of the convolution that is differentiated.
        groups: Its number of groups.

    Returns:
        (c, k/groups, r, s): each window turned by 180 degrees, input and output channels exchanged in each group.
    """
    return rearrange(weight.flip(2, 3), "(g k) c r s -> (g c) k r s", g=groups)


def merge_groups(weight: torch.Tensor, groups: int, merged: int) -> torch.Tensor:
    """Return a weight in which each `merged` groups of a convolution are one, with zeros between them.

    Args:
        weight: (k, c/groups, r, s).
        groups: Number of groups, a multiple of `merged`.
        merged: Number of groups that become one.

    Returns:
        (k, merged*c/groups, r, s): block-diagonal in each merged group.
    """
    parts = rearrange(weight, "(g m k) c r s -> g m k c r s", g=groups // merged, m=merged)
    g, m, k, c, r, s = parts.shape
    whole = weight.new_zeros(g, m, k, m, c, r, s)
    for i in range(merged):
        whole[:, i, :, i] = parts[:, i]
    return rearrange(whole, "g mk k mc c r s -> (g mk k) (mc c) r s")


def _kcrs(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _krsc(weight: torch.Tensor) -> torch.Tensor:
    return rearrange(weight, "k c r s -> k r s c")


def _rsck(weight: torch.Tensor) -> torch.Tensor:
    return rearrange(weight, "k c r s -> r s c k")


def _blocked_outputs(weight: torch.Tensor, groups: int, block: int) -> torch.Tensor:
    """Return (groups, blocks, r, s, c/groups, block)."""
    by_group = rearrange(weight, "(g k) c r s -> g k c r s", g=groups)
    return rearrange(_padded(by_group, 1, block), "g (b lane) c r s -> g b r s c lane", lane=block)


def _blocked_inputs(weight: torch.Tensor, groups: int, block: int) -> torch.Tensor:
    """Return (groups, blocks, r, s, k/groups, block)."""
    by_group = rearrange(weight, "(g k) c r s -> g k c r s", g=groups)
    return rearrange(_padded(by_group, 2, block), "g k (b lane) r s -> g b r s k lane", lane=block)


def _wgmma(weight: torch.Tensor) -> torch.Tensor:
    """Return krsc with the output channels in the order of wgmma's accumulator columns.

    k is padded with zeros to a multiple of 32. Of each 8 accumulator columns, thread t of a quad (lane % 4) holds
    columns 2t and 2t + 1 (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", fragment of D):

        column  of each 8:   0 1 | 2 3 | 4 5 | 6 7
        thread               t=0 | t=1 | t=2 | t=3

    Four such groups of columns, 32 in all, give each thread 8 values. The channels are permuted so that these are 8
    neighbouring channels, which the thread stores as one vector: column 8 g + 2 t + e holds channel 8 t + 2 g + e.
    So a channel is (t, g, e), and the columns are in the order (g, t, e).
    """
    padded = _padded(weight, 0, _CHANNEL_BLOCK)
    return rearrange(padded, "(block t g e) c r s -> block g t e r s c", t=4, g=4, e=2)


def _wgmma_dgrad(weight: torch.Tensor) -> torch.Tensor:
    """Return (c, r, s, k) with the input channels, padded, in the order of wgmma's accumulator columns."""
    return _wgmma(rearrange(weight, "k c r s -> c k r s"))


def _wgmma_pair(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight of a convolution whose input channels are a wgmma's results, in registers.

    A thread's accumulators of 32 columns are 8 neighbouring channels (see `_wgmma`). Rounded and packed into registers
    of 32 bits, these are its part of another wgmma's first operand, as they are (PTX ISA, "Register Fragments for
    wgmma.mma_async", fragment of A): thread t of a quad holds columns e t to e t + e - 1 of each 4 e columns, e the
    elements of a register. So column 4 e g + e t + i is channel 8 t + e g + i. The input channels are padded with
    zeros to a multiple of 32, and the output channels are as in `_wgmma`.
    """
    elements = 4 // weight.element_size()
    rows = _wgmma(_padded(weight, 1, _CHANNEL_BLOCK))
    return rearrange(
        rows, "block g t e r s (depth u h i) -> (block g t e) r s (depth h u i)", u=4, h=8 // elements, i=elements
    )


def _wgmma_patch(weight: torch.Tensor) -> torch.Tensor:
    """Return the second operand of a wgmma whose first operand is in registers: (steps, k, 16).

    The depth c*r*s is padded with zeros to a multiple of 16, one wgmma per step of 16; k is ordered as in `_wgmma`.
    Of each step, thread t of a quad (lane % 4) holds these columns of the first operand (PTX ISA, "Register Fragments
    for wgmma.mma_async.m64nNk16", fragment of A):

        column of the step:  0 1 | 2 3 | 4 5 | 6 7 || 8 9 | 10 11 | 12 13 | 14 15
        thread               t=0 | t=1 | t=2 | t=3 || t=0 |  t=1  |  t=2  |  t=3
        register pair (h)            h=0           ||            h=1

    The depth is permuted so that its four columns are four neighbours in torch's order, such as one line of a 4 x 4
    patch: column 8 h + 2 t + e holds depth 4 t + 2 h + e.
    So the depth is (step, t, h, e), and the columns are in the order (step, h, t, e).
    """
    rows = _padded(rearrange(weight, "k c r s -> k (c r s) 1 1"), 1, _DEPTH_STEP)
    ordered = rearrange(_wgmma(rows), "block g t e 1 1 d -> (block g t e) d")
    return rearrange(ordered, "k (step t h e) -> step k (h t e)", t=4, h=2, e=2)


def _mma(weight: torch.Tensor) -> torch.Tensor:
    """Return the second operand of mma.m16n8k16 in the order of its registers.

    k is padded with zeros to a multiple of 32 and the depth c*r*s to a multiple of 16. One mma multiplies 8 columns
    (channels); lane l holds, of column n = l / 4, the depths below, with t = l % 4 (PTX ISA, "Matrix Fragments for
    mma.m16n8k16", fragment of B, two-byte elements):

        register r = 0: depth 2t, 2t + 1        register r = 1: depth 2t + 8, 2t + 9

    Four mma cover 32 channels. They are permuted so that, as in `_wgmma`, thread t of a quad holds 8 neighbouring
    channels of the result: column n = 2 t + e of mma g holds channel 8 t + 2 g + e. With g = 2 half + tile, a lane
    reads 16 bytes at a time: two registers of two mma.

    Returns:
        (block, step, half, t, e, thread, tile, register, element): blocks of 32 channels, steps of 16 along the depth,
        2 halves, 32 lanes (8 columns as (t, e), 4 threads), 16 bytes (2 mma, 2 registers, 2 elements).
    """
    matrix = rearrange(weight, "k c r s -> k (c r s)")
    padded = _padded(_padded(matrix, 0, _CHANNEL_BLOCK), 1, _DEPTH_STEP)
    return rearrange(
        padded,
        "(block t half tile e) (step register thread element) -> block step half t e thread tile register element",
        t=4, half=2, tile=2, e=2, register=2, thread=4, element=2,
    )  # fmt: skip


def _padded(tensor: torch.Tensor, axis: int, multiple: int) -> torch.Tensor:
    """Return the tensor with zeros appended along an axis, up to a multiple."""
    after = [0, 0] * (tensor.dim() - 1 - axis)
    return pad(tensor, [*after, 0, -tensor.shape[axis] % multiple])


_PACKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "kcrs": _kcrs,
    "krsc": _krsc,
    "rsck": _rsck,
    "wgmma": _wgmma,
    "wgmma_dgrad": _wgmma_dgrad,
    "wgmma_pair": _wgmma_pair,
    "wgmma_patch": _wgmma_patch,
    "mma": _mma,
}
