"""Weight layouts against what their names promise, element by element."""

import pytest
import torch

from autotune.core import ceil_div
from autotune.ir import pack_weight
from autotune.ir.weight_layout import merge_groups


def test_torchs_own_and_channels_innermost():
    weight = torch.randn(6, 4, 3, 2)
    assert torch.equal(pack_weight(weight, "kcrs"), weight)
    packed = pack_weight(weight, "krsc")
    assert packed.is_contiguous() and packed.shape == (6, 3, 2, 4)
    assert packed[5, 2, 1, 3] == weight[5, 3, 2, 1]
    assert torch.equal(packed, torch.einsum("kcrs->krsc", weight))
    assert torch.equal(pack_weight(weight, "rsck"), torch.einsum("kcrs->rsck", weight))
    assert pack_weight(weight, "rsck").is_contiguous()


@pytest.mark.parametrize(
    ("k", "c", "groups", "block"), [(6, 4, 1, 8), (16, 3, 1, 8), (21, 2, 3, 4), (5, 1, 5, 16), (9, 7, 1, 1)]
)
def test_blocks_of_channels_element_by_element(k, c, groups, block):
    weight = torch.randn(k, c, 2, 3)
    packed = pack_weight(weight, f"k{block}", groups)
    of_group = k // groups
    blocks = ceil_div(of_group, block)
    assert packed.is_contiguous() and packed.shape == (groups, blocks, 2, 3, c, block)
    for g in range(groups):
        for b in range(blocks):
            for lane in range(block):
                channel = b * block + lane
                got = packed[g, b, :, :, :, lane].permute(2, 0, 1)
                expected = weight[g * of_group + channel] if channel < of_group else torch.zeros(c, 2, 3)
                assert torch.equal(got, expected)


def test_blocks_of_input_channels_element_by_element():
    k, c, groups, block = 6, 5, 3, 4
    weight = torch.randn(k, c, 2, 3)
    packed = pack_weight(weight, f"c{block}", groups)
    assert packed.is_contiguous() and packed.shape == (groups, 2, 2, 3, k // groups, block)
    for g in range(groups):
        for channel in range(2 * block):
            got = packed[g, channel // block, :, :, :, channel % block].permute(2, 0, 1)
            of_group = weight[g * k // groups : (g + 1) * k // groups]
            assert torch.equal(got, of_group[:, channel] if channel < c else torch.zeros(k // groups, 2, 3))


def test_a_gemms_weight_is_one_of_a_single_tap():
    weight = torch.randn(10, 6)
    for layout in ("kcrs", "krsc", "k8", "c4"):
        assert torch.equal(pack_weight(weight, layout), pack_weight(weight[:, :, None, None], layout))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_packing_keeps_dtype_and_bits(dtype):
    weight = torch.randn(8, 8, 1, 1).to(dtype)
    assert pack_weight(weight, "k8").dtype == dtype
    assert sorted(pack_weight(weight, "k8").flatten().tolist()) == sorted(weight.flatten().tolist())


def test_packing_copies_a_weight_that_is_no_block_of_memory():
    weight = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)
    assert torch.equal(pack_weight(weight, "kcrs"), weight) and pack_weight(weight, "kcrs").is_contiguous()
    assert torch.equal(pack_weight(weight, "krsc"), weight.permute(0, 2, 3, 1))


@pytest.mark.parametrize("layout", ["ckrs", "k", "k0", "k-8", "k08x", ""])
def test_unknown_layouts_list_the_known(layout):
    with pytest.raises(ValueError, match="choose kcrs, krsc"):
        pack_weight(torch.randn(8, 4, 1, 1), layout)


def test_each_thread_reads_lines_of_four_where_wgmma_takes_registers():
    """Of 64 x 16 a thread has 2t, 2t + 1, 2t + 8 and 2t + 9 of its rows; PTX ISA, wgmma, fragment of A."""
    weight = torch.randn(40, 3, 4, 4)
    packed, plain = pack_weight(weight, "wgmma_patch"), pack_weight(weight.flatten(1), "wgmma").flatten(0, -2)
    assert packed.is_contiguous() and packed.shape == (3, 64, 16)
    for c in range(3):
        for t in range(4):
            held = packed[c][:, [2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9]]
            assert torch.equal(held, plain[:, 16 * c + 4 * t : 16 * c + 4 * t + 4])
    assert pack_weight(torch.randn(8, 5, 2, 2), "wgmma_patch").shape == (2, 32, 16)


def test_each_threads_columns_of_wgmma_are_neighbouring_channels():
    """Of 64 x n accumulators a thread holds columns 2t and 2t + 1 of every eight; PTX ISA, wgmma, fragment of D."""
    k, c = 40, 5
    weight = torch.randn(k, c, 3, 2)
    packed = pack_weight(weight, "wgmma").flatten(0, -4)
    assert packed.is_contiguous() and packed.shape == (64, 3, 2, c)
    for first in (0, 32):
        for thread in range(4):
            columns = [first + 8 * eight + 2 * thread + pair for eight in range(4) for pair in range(2)]
            for place, column in enumerate(columns):
                channel = first + 8 * thread + place
                expected = weight[channel].permute(1, 2, 0) if channel < k else torch.zeros(3, 2, c)
                assert torch.equal(packed[column], expected)


def test_wgmma_of_a_gradient_has_the_input_channels_as_columns():
    weight = torch.randn(5, 40, 3, 2)
    packed = pack_weight(weight, "wgmma_dgrad").flatten(0, -4)
    assert packed.is_contiguous() and packed.shape == (64, 3, 2, 5)
    for channel in range(40):
        t, g, e = channel % 32 // 8, channel % 8 // 2, channel % 2
        column = channel // 32 * 32 + 8 * g + 2 * t + e
        assert torch.equal(packed[column], weight[:, channel].permute(1, 2, 0))
    assert packed.count_nonzero() == weight.count_nonzero()


def test_each_lane_reads_its_registers_of_mma():
    """Lane l has column l / 4 of an mma and depths 2t, 2t + 1 (register 0), 2t + 8, 2t + 9 (1), t = l % 4; PTX ISA."""
    k, depth = 40, 27
    weight = torch.randn(k, 3, 3, 3)
    packed = pack_weight(weight, "mma").reshape(2, 2, 2, 32, 2, 2, 2)
    for block, step, half, lane, tile, register, element in torch.cartesian_prod(*map(torch.arange, packed.shape)):
        column, t = int(lane) // 4, int(lane) % 4
        channel = 32 * block + 8 * (column // 2) + 2 * (2 * half + tile) + column % 2
        row = 16 * step + 8 * register + 2 * t + element
        expected = weight.flatten(1)[channel, row] if channel < k and row < depth else 0
        assert packed[block, step, half, lane, tile, register, element] == expected


def test_merged_groups_are_block_diagonal():
    weight = torch.randn(12, 2, 1, 1)
    x = torch.randn(1, 8, 5, 5)
    merged = merge_groups(weight, groups=4, merged=2)
    assert merged.shape == (12, 4, 1, 1)
    torch.testing.assert_close(
        torch.nn.functional.conv2d(x, merged, groups=2), torch.nn.functional.conv2d(x, weight, groups=4)
    )
