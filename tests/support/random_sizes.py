"""Random sizes of problems for every CUDA family: (random numbers) -> a problem's text without dtype and epilogue."""

from __future__ import annotations

import random
from collections.abc import Callable

from autotune.ir import BYTE_FORMATS, parse

IMAGES = ((16, 16), (8, 8), (8, 16), (16, 8), (8, 32), (32, 8))  # that a block's kernel holds


def convolution(rng: random.Random, operator: str = "conv2d", groups: int = 1) -> str:
    side = rng.choice((1, 1, 2, 3, 3, 3, 5))
    other = rng.choice((side, side, max(1, side - 1)))
    channels = (1, 3, 4, 8, 16, 20, 24, 32, 64, 72, 128, 136, 200, 264)
    c, k = rng.choice(channels), rng.choice((*channels, 512))
    stride = rng.choice(("1", "1", "2", "2,1", "1,2"))
    dilation = rng.choice(("1", "1", "2", "1,2"))
    n, h, w = rng.randint(1, 12), rng.randint(6, 24), rng.randint(6, 24)
    pad = f"{rng.randint(0, side // 2)},{rng.randint(0, other // 2)}"
    sizes = f"n={n} h={h} w={w} c={groups * c} k={groups * k} r={side} s={other} groups={groups}"
    return f"{operator} {sizes} stride={stride} pad={pad} dilation={dilation}"


def grouped(rng: random.Random) -> str:
    """Convolutions, some with narrow groups, some with wide ones."""
    kind = rng.random()
    if kind < 0.7:
        return convolution(rng)
    if kind < 0.8:
        return convolution(rng, groups=rng.choice((2, 3)))
    width, groups = rng.choice((4, 8, 16, 32)), rng.choice((4, 8, 16))
    n, h, w = rng.randint(1, 12), rng.randint(6, 24), rng.randint(6, 24)
    sizes = f"n={n} h={h} w={w} c={width * groups} k={width * groups * rng.choice((1, 1, 2))} groups={groups}"
    return f"conv2d {sizes} r=3 s=3 pad=1 stride={rng.randint(1, 2)}"


def depthwise(rng: random.Random) -> str:
    c, side = rng.choice((7, 9, 24, 32, 40, 72)), rng.choice((3, 3, 5, 2))
    sizes = f"n={rng.randint(1, 5)} h={rng.randint(6, 20)} w={rng.randint(6, 20)} c={c} k={c} groups={c}"
    stride, dilation = rng.randint(1, 2), rng.choice((1, 1, 2))
    return f"conv2d {sizes} r={side} s={side} stride={stride} pad={side // 2} dilation={dilation}"


def square_depthwise(rng: random.Random) -> str:
    c, side, stride = 8 * rng.randint(1, 20), rng.choice((3, 5, 7)), rng.randint(1, 2)
    sizes = f"n={rng.randint(1, 5)} h={rng.randint(7, 60)} w={rng.randint(7, 60)} c={c} k={c} groups={c}"
    return f"conv2d {sizes} r={side} s={side} stride={stride} pad={rng.choice((0, side // 2))}"


def narrow_groups(rng: random.Random) -> str:
    width, side, stride = rng.choice((1, 1, 4, 8, 16, 24, 48)), rng.choice((3, 3, 5, 7)), rng.randint(1, 2)
    groups = 8 * rng.randint(1, 20) if width == 1 else 2 * rng.randint(1, 8)
    c = width * groups
    sizes = f"n={rng.randint(1, 5)} h={rng.randint(7, 60)} w={rng.randint(7, 60)} c={c} k={c} groups={groups}"
    return f"conv2d {sizes} r={side} s={side} stride={stride} pad={rng.choice((0, side // 2))}"


def product(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return convolution(rng).partition(" r=")[0]
    n, k = rng.choice((10, 36, 64, 136, 520, 1000)), rng.choice((52, 63, 72, 256, 1000, 2056))
    return f"gemm m={rng.randint(1, 1500)} n={n} k={k}"


def short_product(rng: random.Random) -> str:
    c, k = 8 * rng.choice((1, 3, 4, 6, 8, 12, 15, 16, 23, 32)), 8 * rng.randint(1, 40)
    if rng.random() < 0.5:
        return f"gemm m={rng.randint(1, 5000)} n={k} k={c}"
    return f"conv2d n={rng.randint(1, 9)} h={rng.randint(1, 30)} w={rng.randint(1, 30)} c={c} k={k}"


def excited(rng: random.Random) -> str:
    """A convolution with squeeze-and-excitation, whose kernels take whole images."""
    side, stride = rng.choice((2, 4, 8, 16)), rng.choice((1, 1, 2))
    n = rng.randint(1, 90) if side < 16 else rng.randint(1, 20)
    c, k = rng.choice((64, 72, 128)), rng.choice((64, 120, 128, 256, 512))
    sizes = f"n={n} h={stride * side} w={stride * side} c={c} k={k} r=3 s=3 pad=1 stride={stride}"
    return f"conv2d_se {sizes} hidden={rng.choice((4, 8, 12, 16, 32))}"


def broadcast(rng: random.Random) -> str:
    """A convolution that multiplies by a value for each image and channel; random_kernels.py adds that step."""
    return grouped(rng).replace("conv2d", "conv2d_broadcast", 1)


def folded(rng: random.Random) -> str:
    """The same with a folded squeeze, and of images of one pixel too; some with a projection, in groups or not."""
    if rng.random() < 0.7:
        plain = excited(rng).replace("conv2d_se", "conv2d_folded_se")
    else:
        sizes = f"n={rng.randint(1, 300)} h=1 w=1 c={8 * rng.randint(5, 80)} k={64 * rng.randint(1, 10)}"
        plain = f"conv2d_folded_se {sizes} hidden={4 * rng.randint(1, 16)}"
    if rng.random() < 0.6:
        return plain
    groups = rng.choice((1, 1, 2, 4))
    skip = f"skip_c={groups * (8 * rng.randint(1, 40) if groups == 1 else 64 * rng.randint(1, 3))} skip_groups={groups}"
    return f"{plain.replace('folded_se', 'se_skip')} {skip}"


def small_images(rng: random.Random, kinds: int = 3) -> str:
    """3x3 convolutions of images of up to 64 pixels: plain, with a folded squeeze, or with a projection behind it.

    The first `kinds` of these.
    Only kernels of bytes solve those whose pixels do not divide 64.
    """
    kind, stride = rng.randint(0, kinds - 1), rng.randint(1, 2)
    sides = ((8, 8), (4, 4), (2, 2), (1, 1), (4, 8), (8, 2), (2, 4), (7, 7), (3, 5))
    h, w = rng.choice(sides if kind == 0 else sides[:3])
    c, k = 8 * rng.choice((1, 5, 8, 9, 16, 24, 32)), 8 * rng.choice((4, 8, 9, 16, 24, 32, 64))
    sizes = f"n={rng.randint(1, 200)} h={stride * h} w={stride * w} c={c} k={k} r=3 s=3 pad=1 stride={stride}"
    hidden = f"hidden={4 * rng.randint(1, 16)}"
    skip = f"{hidden} skip_c={8 * rng.randint(1, 32)}"
    return (f"conv2d {sizes}", f"conv2d_folded_se {sizes} {hidden}", f"conv2d_se_skip {sizes} {skip}")[kind]


def any_block(rng: random.Random) -> str:
    h, w = rng.choice((*IMAGES, (4, 4), (2, 4), (4, 8), (2, 2)))
    return f"se_block n={rng.randint(1, 200)} h={h} w={w} c={8 * rng.randint(1, 8)} hidden={rng.choice((4, 8, 12, 16))}"


def stem_block(rng: random.Random) -> str:
    h, w = rng.choice(IMAGES)
    sizes = f"n={rng.randint(1, 300)} h={4 * h} w={4 * w} c={rng.randint(1, 4)} k={rng.choice((32, 64))} block=4"
    return f"stem_se_block {sizes} hidden={rng.choice((4, 8, 12, 16))}"


def strip_block(rng: random.Random) -> str:
    pool = rng.choice(("", "_pool"))
    return stem_block(rng).replace(" k=32 ", " k=64 ").replace("stem_se_block", f"stem_se_block{pool}")


def down_block(rng: random.Random) -> str:
    h, w = (rng.choice((7, 8, 15, 16)) for _ in range(2))
    sizes = f"n={rng.randint(1, 150)} h={h} w={w} c={64 * rng.randint(1, 3)} k={rng.choice((64, 128, 256))}"
    return f"se_down_block {sizes} hidden={rng.choice((4, 8, 16))}"


def any_down_block(rng: random.Random) -> str:
    h, w = (rng.choice((4, 7, 8, 15, 16)) for _ in range(2))
    sizes = f"n={rng.randint(1, 200)} h={h} w={w} c={8 * rng.randint(1, 8)} k={8 * rng.choice((4, 5, 8, 12, 16, 24))}"
    return f"se_down_block {sizes} hidden={rng.choice((4, 8, 12, 16))}"


def patches(rng: random.Random) -> str:
    size = rng.choice((2, 4, 8))
    h, w = size * rng.randint(1, 12), 8 * rng.randint(1, 10)
    c, k = rng.randint(1, 6), 8 * rng.randint(1, 12)
    return f"patch_conv2d n={rng.randint(1, 5)} h={h} w={w} c={c} k={k} block={size}"


def stem(rng: random.Random) -> str:
    side, pool = rng.choice((3, 5, 7)), rng.choice(("", "pool=3 pool_stride=2 pool_pad=1"))
    sizes = f"n={rng.randint(1, 4)} h={rng.randint(9, 70)} w={2 * rng.randint(5, 60)} c={rng.randint(1, 4)}"
    return f"stem {sizes} k={8 * rng.randint(1, 13)} r={side} s={side} stride=2 pad={side // 2} {pool}"


def narrow(rng: random.Random) -> str:
    side, c, stride = rng.choice((3, 5, 7)), rng.randint(1, 4), rng.choice((1, 2, 2))
    c += stride * c % 2
    sizes = f"n={rng.randint(1, 4)} h={rng.randint(9, 70)} w={(1 + c % 2) * rng.randint(5, 60)} c={c}"
    return f"conv2d {sizes} k={8 * rng.randint(1, 13)} r={side} s={side} stride={stride} pad={side // 2}"


def pixels(rng: random.Random, operator: str = "elementwise", more: str = "", c: int | None = None) -> str:
    c = c or rng.choice((1, 13, 24, 36, 64, 100, 264))
    return f"{operator} n={rng.randint(1, 5)} h={rng.randint(1, 17)} w={rng.randint(1, 17)} c={c} {more}"


def normalized(rng: random.Random, operator: str = "layer_norm") -> str:
    c = rng.choice((2, 13, 21, 36, 96, 100, 264, 384, 768, 1000, 1021, 2048, 4096))
    return f"{operator} n={rng.randint(1, 5)} h={rng.randint(1, 9)} w={rng.randint(1, 9)} c={c}"


def groups_of_channels(rng: random.Random, operator: str = "group_norm") -> str:
    groups = rng.choice((1, 2, 8, 32, 33, 36))
    sizes = f"h={rng.randint(2, 40)} w={rng.randint(1, 40)} c={groups * rng.choice((1, 2, 3, 4, 8, 20, 64))}"
    return f"{operator} n={rng.randint(1, 5)} {sizes} groups={groups}"


def batch_norm(rng: random.Random, operator: str, more: str = "") -> str:
    sizes = f"n={rng.randint(1, 9)} h={rng.randint(1, 40)} w={rng.randint(1, 40)}"
    return f"{operator} {sizes} c={rng.choice((1, 3, 8, 10, 24, 36, 64, 100, 200, 256, 264, 1024))} {more}"


def relu_gradient(rng: random.Random) -> str:
    """Gradients of ReLUs, two of three with that of a pool."""
    image = batch_norm(rng, "relu_gradient_sums", f"product={rng.randint(0, 1)}")
    if rng.random() < 0.3:
        return image
    side = rng.randint(1, 4)
    return f"{image} pool={side} stride={rng.randint(1, 3)} pad={rng.randint(0, side // 2)}"


def resize(rng: random.Random) -> str:
    h, w, p, q = (rng.randint(1, 40) for _ in range(4))
    rows, columns = rng.choice(((h, p), (1, 2), (10, 13))), rng.choice(((w, q), (w - 1, max(q - 1, 1)), (3, 2)))
    mode = rng.choice(("nearest", "nearest_exact", "bilinear", "bilinear_corners"))
    sizes = f"n={rng.randint(1, 3)} h={h} w={w} c={rng.choice((1, 3, 21, 24, 36, 64))} p={p} q={q}"
    return f"upsample {sizes} rows={rows[0]},{rows[1]} columns={columns[0]},{columns[1]} mode={mode}"


def concatenation(rng: random.Random) -> str:
    """Whole inputs and ranges of channels, most of them multiples of a few channels, some shuffled."""
    unit, pieces = rng.choice((1, 2, 4, 8, 8)), []
    for _ in range(rng.randint(1, 8)):
        first, count, behind = unit * rng.choice((0, 0, 1, 5)), unit * rng.randint(1, 12), unit * rng.choice((0, 0, 2))
        pieces.append(f"{first}:{first + count}/{first + count + behind}" if first + behind else str(count))
    c = sum(piece.count for piece in parse(f"concat n=1 h=1 w=1 pieces={','.join(pieces)} dtype=f32").pieces)
    shuffles = [groups for groups in (1, 1, 2, 2, 3, 4) if c % groups == 0]
    sizes = f"n={rng.randint(1, 5)} h={rng.randint(1, 17)} w={rng.randint(1, 17)}"
    return f"concat {sizes} pieces={','.join(pieces)} interleave={rng.choice(shuffles)}"


def concat_convolution(rng: random.Random) -> str:
    pieces = []
    for _ in range(rng.randint(1, 8)):
        first, count, behind = 8 * rng.choice((0, 0, 1, 5)), 8 * rng.randint(1, 16), 8 * rng.choice((0, 0, 2))
        pieces.append(f"{first}:{first + count}/{first + count + behind}" if first + behind else str(count))
    sizes = f"n={rng.randint(1, 9)} h={rng.randint(1, 30)} w={rng.randint(1, 30)} k={8 * rng.randint(1, 40)}"
    return f"concat_conv2d {sizes} pieces={','.join(pieces)}"


def pool(rng: random.Random, operator: str = "avg_pool2d", more: str = "") -> str:
    r, s = rng.randint(1, 4), rng.randint(1, 4)
    sizes = f"n={rng.randint(1, 4)} h={rng.randint(4, 20)} w={rng.randint(4, 20)} c={rng.choice((13, 24, 36, 64, 72))}"
    stride, pad = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(0, r // 2), rng.randint(0, s // 2))
    return f"{operator} {sizes} r={r} s={s} stride={stride[0]},{stride[1]} pad={pad[0]},{pad[1]} {more}"


def trained_pool(rng: random.Random, operator: str) -> str:
    """Max pools in training and their gradients, two of three of windows that kernels are compiled for."""
    ceil = f"ceil={rng.randint(0, 1)}"
    if rng.random() < 0.3:
        return pool(rng, operator, ceil)
    side, stride, c = rng.randint(2, 3), rng.randint(1, 2), rng.choice((13, 24, 36, 64, 72))
    sizes = f"n={rng.randint(1, 4)} h={rng.randint(4, 40)} w={rng.randint(4, 40)} c={c} r={side} s={side}"
    return f"{operator} {sizes} stride={stride} pad={rng.randint(0, 1)},{rng.randint(0, 1)} {ceil}"


def tail(rng: random.Random) -> str:
    sizes = f"h={rng.randint(1, 16)} w={rng.randint(1, 16)} c={8 * rng.randint(1, 64)}"
    return f"se_tail n={rng.choice((1, 2, 5, 130, 303))} {sizes} hidden={rng.choice((4, 5, 16, 32, 33))}"


def image_convolution(rng: random.Random) -> str:
    if rng.random() < 0.4:
        return excited(rng)
    side, other = rng.choice((1, 2, 3, 3, 3, 5, 7)), rng.choice((1, 3, 3))
    c, k = 8 * rng.randint(1, 40), 8 * rng.randint(1, 40)
    n, h, w = rng.randint(1, 12), rng.randint(7, 40), rng.randint(7, 40)
    pad, dilation = f"{rng.randint(0, side // 2)},{rng.randint(0, other // 2)}", rng.choice(("1", "1", "2", "1,3"))
    sizes = f"n={n} h={h} w={w} c={c} k={k} r={side} s={other}"
    return f"conv2d {sizes} stride={rng.randint(1, 2)} pad={pad} dilation={dilation}"


def short_tail(rng: random.Random) -> str:
    side = rng.choice(((2, 2), (4, 4), (3, 5), (8, 8), (16, 16), (1, 1), (7, 7)))
    sizes = f"h={side[0]} w={side[1]} c={32 * rng.randint(1, 16)} hidden={4 * rng.randint(1, 16)}"
    return f"se_tail n={rng.choice((1, 2, 5, 130, 303))} {sizes}"


def squeeze(rng: random.Random) -> str:
    activations = f"act={rng.choice(('relu', 'silu', 'hardswish'))} gate={rng.choice(('sigmoid', 'hardsigmoid'))}"
    return f"{tail(rng).replace('se_tail', 'squeeze_excite')} {activations}"


def gates(rng: random.Random) -> str:
    return squeeze(rng).replace("squeeze_excite", "se_gates")


def expansion(rng: random.Random) -> str:
    side, stride, c = rng.choice((3, 5, 7)), rng.choice((1, 2)), 8 * rng.randint(1, 24)
    n, h, w, k = rng.randint(1, 5), rng.randint(6, 30), rng.randint(6, 30), 8 * rng.randint(1, 40)
    return f"expand_depthwise n={n} h={h} w={w} c={c} k={k} r={side} s={side} stride={stride} pad={side // 2}"


def inverted(rng: random.Random) -> str:
    sizes = expansion(rng).removeprefix("expand_depthwise").replace("k=", "hidden=")
    return f"inverted_residual {sizes} k={8 * rng.randint(1, 40)}"


def with_skip(rng: random.Random) -> str:
    window, stride = rng.choice((1, 3)), rng.choice((1, 2))
    n, p, q = rng.randint(1, 5), rng.randint(1, 20), rng.randint(1, 20)
    c, k, skip_c = 8 * rng.randint(1, 16), 8 * rng.randint(1, 40), 8 * rng.randint(1, 32)
    skip = f"skip_h={stride * p} skip_w={stride * q} skip_c={skip_c} skip_stride={stride}"
    return f"conv2d_skip n={n} h={p} w={q} c={c} k={k} r={window} s={window} pad={window // 2} {skip}"


def pair(rng: random.Random) -> str:
    n, h, w = rng.randint(1, 5), rng.randint(1, 30), rng.randint(1, 30)
    c, hidden, k = 8 * rng.randint(1, 24), 8 * rng.randint(1, 64), 8 * rng.randint(1, 32)
    return f"pointwise_pair n={n} h={h} w={w} c={c} hidden={hidden} k={k}"


def convolutions(rng: random.Random) -> str:
    """Two convolutions, of which one or both have a 3x3 filter."""
    first_r, r = rng.choice(((1, 3), (1, 3), (3, 3), (3, 3), (3, 1)))
    first_stride = rng.randint(1, 2)
    stride = rng.randint(1, 2) if first_stride == 1 and r == 3 else 1
    n, h, w = rng.randint(1, 9), rng.randint(7, 34), rng.randint(7, 34)
    c, hidden, k = 16 * rng.choice((1, 2, 3, 4, 8)), 16 * rng.choice((1, 2, 3, 4, 8)), 8 * rng.choice((2, 3, 4, 8, 17))
    c -= 8 * (first_r == 1 and rng.random() < 0.3)
    sizes = f"n={n} h={h} w={w} c={c} hidden={hidden} k={k} first_r={first_r} first_s={first_r} r={r} s={r}"
    pads = f"first_pad={rng.choice((0, first_r // 2))} pad={rng.choice((0, r // 2))}"
    return f"conv2d_pair {sizes} first_stride={first_stride} stride={stride} {pads}"


SIZES: dict[str, Callable[[random.Random], str]] = {
    "cuda_adaptive_avg_pool2d": lambda rng: pixels(
        rng, "adaptive_avg_pool2d", f"p={rng.randint(1, 9)} q={rng.randint(1, 9)}"
    ),
    "cuda_avg_pool2d": pool,
    "cuda_batch_norm_gradient": lambda rng: batch_norm(rng, "batch_norm_gradient", f"relu={rng.randint(0, 1)}"),
    "cuda_batch_norm_gradient_sums": lambda rng: batch_norm(
        rng, "batch_norm_gradient_sums", f"relu={rng.randint(0, 2)} gradients={rng.randint(1, 2)}"
    ),
    "cuda_batch_norm_statistics": lambda rng: batch_norm(rng, "batch_norm_statistics"),
    "cuda_cast": lambda rng: pixels(rng, "cast", f"result={rng.choice((*BYTE_FORMATS, 'f16', 'bf16', 'f32'))}"),
    "cuda_clipped_avg_pool2d": lambda rng: pool(rng, "clipped_avg_pool2d", f"ceil={rng.randint(0, 1)}"),
    "cuda_concat": concatenation,
    "cuda_concat_conv2d": concat_convolution,
    "cuda_conv2d": image_convolution,
    "cuda_conv2d_pair": convolutions,
    "cuda_depth_to_space": lambda rng: pixels(
        rng, "depth_to_space", f"block={rng.randint(1, 3)},{rng.randint(1, 3)} inner={rng.randint(0, 1)}"
    ),
    "cuda_depthwise_conv2d": depthwise,
    "cuda_elementwise": pixels,
    "cuda_expand_depthwise": expansion,
    "cuda_folded_conv2d": lambda rng: excited(rng).replace("conv2d_se", "conv2d_folded_se"),
    "cuda_global_avg_pool2d": lambda rng: pixels(rng, "global_avg_pool2d"),
    "cuda_group_norm": groups_of_channels,
    "cuda_group_statistics": lambda rng: groups_of_channels(rng, "group_statistics"),
    "cuda_grouped_conv2d": narrow_groups,
    "cuda_inverted_residual": inverted,
    "cuda_layer_norm": normalized,
    "cuda_max_pool2d": lambda rng: pool(rng, "max_pool2d", f"ceil={rng.randint(0, 1)}"),
    "cuda_max_pool2d_places": lambda rng: trained_pool(rng, "max_pool2d_places"),
    "cuda_max_pool2d_places_gradient": lambda rng: trained_pool(rng, "max_pool2d_places_gradient"),
    "cuda_mma_depthwise_conv2d": square_depthwise,
    "cuda_mma_se_tail": short_tail,
    "cuda_narrow_conv2d": narrow,
    "cuda_narrow_conv2d_wgrad": lambda rng: narrow(rng).replace("conv2d", "conv2d_wgrad"),
    "cuda_normalize": lambda rng: pixels(rng, "normalize"),
    "cuda_patch_conv2d": patches,
    "cuda_pointwise_conv2d": short_product,
    "cuda_relu_gradient_sums": relu_gradient,
    "cuda_se_block": any_block,
    "cuda_se_down_block": any_down_block,
    "cuda_se_gates": gates,
    "cuda_se_tail": tail,
    "cuda_softmax": lambda rng: normalized(rng, "softmax"),
    "cuda_space_to_depth": lambda rng: (
        f"space_to_depth n={rng.randint(1, 4)} h={8 * rng.randint(1, 5)} w={8 * rng.randint(1, 5)} "
        f"c={rng.randint(1, 5)} block={rng.choice((2, 4, 8))}"
    ),
    "cuda_squeeze_excite": squeeze,
    "cuda_stem": stem,
    "cuda_stem_cast": lambda rng: stem(rng).replace("stem", "stem_cast", 1) + f" result={rng.choice(('s8', 'e4m3'))}",
    "cuda_stem_se_block": stem_block,
    "cuda_upsample": resize,
    "cuda_to_channels_last": lambda rng: pixels(
        rng, "to_channels_last", f"to={rng.choice((8, 13, 16, 36))}", c=rng.randint(1, 8)
    ),
    "cutlass2_conv2d": grouped,
    "cutlass2_conv2d_dgrad": lambda rng: convolution(rng, "conv2d_dgrad"),
    "cutlass2_conv2d_wgrad": lambda rng: convolution(rng, "conv2d_wgrad"),
    "cutlass2_gemm": product,
    "sm90_conv2d": lambda rng: rng.choice((grouped, grouped, product, excited, broadcast))(rng),
    "sm90_conv2d_skip": with_skip,
    "sm90_conv2d_gradient_sums": lambda rng: (
        f"{convolution(rng, 'conv2d_gradient_sums')} relu={rng.randint(0, 2)} gradients={rng.randint(1, 2)}"
    ),
    "sm90_conv2d_statistics": lambda rng: convolution(rng, "conv2d_statistics"),
    "sm90_im2col_wgrad": lambda rng: convolution(rng, "conv2d_wgrad"),
    "sm90_strided_dgrad": lambda rng: convolution(rng, "conv2d_dgrad"),
    "sm90_conv2d_wgrad": lambda rng: convolution(rng, "conv2d_wgrad"),
    "sm90_e4m3_conv2d": lambda rng: rng.choice((grouped, grouped, product))(rng),
    "sm90_e4m3_conv2d_skip": with_skip,
    "sm90_e4m3_image_conv2d": lambda rng: small_images(rng, kinds=1),
    "sm90_folded_conv2d": folded,
    "sm90_pointwise_pair": pair,
    "sm90_image_conv2d": small_images,
    "sm90_se_down_block": down_block,
    "sm90_strip_se_block": strip_block,
}
