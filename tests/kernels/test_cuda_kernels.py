"""CUDA kernels that solve a problem in one launch: their own text, run on a CPU; and what they refuse, with reasons."""

import pytest
from comparison import LIMIT
from emulator import Emulated, assert_computes
from kernels import config_of, fitting, proposed

from autotune.core import architecture
from autotune.families import Kernel, cuda, family
from autotune.ir import Epilogue, parse

SM70, SM75, SM80, SM90 = (architecture(name) for name in ("sm70", "sm75", "sm80", "sm90"))

# Of each family: problems, the values of the config, and those of the launch where not all are taken.
CASES = {
    # Pieces that end inside a chunk of 64 channels; chunks that are not full, fewer and more of them than buffers;
    # pixels and output channels beyond the last; several blocks, warps and blocks of 16 pixels; steps that read an
    # image's or a pixel's value, or a tensor, before the convolution and after it.
    "cuda_concat_conv2d": {
        "one piece": ("n=2 h=7 w=5 pieces=40 k=40 dtype=f16 epilogue=mul_image,conv,bias,add", (64, 32, 32, 32, 2)),
        "ranges": (
            "n=1 h=9 w=9 pieces=64,0:32/40,8:24/24,72 k=72 dtype=f16 epilogue=scale,bias,relu,conv,bias,relu",
            (32, 64, 16, 32, 3),
        ),
        "eight pieces": (
            "n=3 h=6 w=4 pieces=8,16,8,24,64,8,8,80 k=136 dtype=bf16 "
            "epilogue=add,mul_pixel,silu,conv,scale,store,add_image",
            (64, 128, 64, 32, 4),
        ),
        "nothing before": ("n=1 h=8 w=8 pieces=128,64 k=8 dtype=f16 epilogue=conv", (64, 32, 16, 32, 6)),
    },
    # Each kind of filter and stride; tiles with borders on all sides, of the whole width, and of whole images, also
    # several of them, the last ones not there; channels that fill no slice and no step; several passes and slices; taps
    # that end within a step; tensors behind the second convolution.
    "cuda_conv2d_pair": {
        "1x1 and 3x3": (
            "n=2 h=9 w=10 c=40 hidden=32 k=40 r=3 s=3 pad=1 dtype=f16 epilogue=bias,relu,conv,bias,relu",
            (1, 1, 3, 1, 4, 4, 0, 1, 2, 2, 2, 32, 32, 3),
        ),
        "1x1 and 3x3, stride 2": (
            "n=1 h=17 w=15 c=24 hidden=48 k=24 r=3 s=3 stride=2 pad=1 dtype=bf16 epilogue=bias,silu,conv,bias,add,relu",
            (1, 1, 3, 2, 4, 7, 0, 1, 4, 1, 4, 32, 64, 3),
        ),
        "1x1 and 3x3, whole width": (
            "n=1 h=9 w=14 c=72 hidden=64 k=64 r=3 s=3 pad=1 dtype=f16 epilogue=scale,bias,relu,conv,bias",
            (1, 1, 3, 1, 7, 14, 1, 1, 4, 2, 2, 32, 64, 2),
        ),
        "two 3x3, whole images": (
            "n=3 h=7 w=7 c=32 hidden=48 k=80 first_r=3 first_s=3 first_pad=1 r=3 s=3 pad=1 dtype=f16 "
            "epilogue=bias,relu,conv,bias,add,relu",
            (3, 1, 3, 1, 7, 7, 2, 2, 4, 2, 2, 32, 64, 3),
        ),
        "two 3x3, narrow": (
            "n=2 h=16 w=16 c=16 hidden=16 k=16 first_r=3 first_s=3 first_pad=1 r=3 s=3 pad=1 dtype=bf16 "
            "epilogue=bias,relu,conv,bias,add,relu",
            (3, 1, 3, 1, 8, 16, 1, 1, 4, 1, 4, 16, 144, 2),
        ),
        "two 3x3, the first with stride 2": (
            "n=2 h=15 w=16 c=16 hidden=32 k=32 first_r=3 first_s=3 first_stride=2 first_pad=1 r=3 s=3 pad=1 dtype=f16 "
            "epilogue=bias,relu,conv,bias,add,store,relu",
            (3, 2, 3, 1, 8, 8, 2, 1, 4, 1, 1, 32, 144, 3),
        ),
        "two 3x3, the second with stride 2": (
            "n=1 h=14 w=14 c=32 hidden=32 k=56 first_r=3 first_s=3 first_pad=1 r=3 s=3 stride=2 pad=1 dtype=f16 "
            "epilogue=conv",
            (3, 1, 3, 2, 7, 7, 2, 1, 2, 2, 4, 32, 32, 2),
        ),
        "3x3 and 1x1": (
            "n=2 h=10 w=9 c=48 hidden=64 k=136 first_r=3 first_s=3 first_stride=2 first_pad=1 dtype=f16 "
            "epilogue=bias,relu,conv,bias,add,relu",
            (3, 2, 1, 1, 4, 4, 0, 1, 1, 4, 1, 32, 64, 3),
        ),
        "without padding": (
            "n=2 h=12 w=11 c=16 hidden=16 k=16 first_r=3 first_s=3 r=3 s=3 dtype=f16 epilogue=bias,relu,conv,bias",
            (3, 1, 3, 1, 8, 8, 0, 1, 4, 1, 2, 16, 64, 3),
        ),
        "more padding": (
            "n=1 h=9 w=9 c=8 hidden=16 k=24 first_pad=1 r=3 s=3 pad=2 dtype=f16 epilogue=bias,conv,bias",
            (1, 1, 3, 1, 14, 14, 2, 1, 4, 1, 4, 32, 32, 3),
        ),
    },
    # Tiles at all borders and images larger than a tile; channels that fill no step and no chunk; both numbers of rows
    # that a warp multiplies together; strides of 1 and 2; blocks that share a tile; tensors behind the convolution.
    "cuda_expand_depthwise": {
        "3x3": (
            "n=2 h=9 w=10 c=24 k=40 r=3 s=3 pad=1 dtype=f16 epilogue=bias,silu,conv,bias,silu",
            (3, 1, 8, 8, 32, 128),
            (1,),
        ),
        "5x5, stride 2": (
            "n=1 h=15 w=13 c=8 k=72 r=5 s=5 stride=2 pad=2 dtype=bf16 epilogue=bias,relu,conv,bias,add,store,relu",
            (5, 2, 4, 7, 64, 256),
            (2,),
        ),
        "without padding": (
            "n=2 h=11 w=11 c=40 k=16 r=3 s=3 dtype=f16 epilogue=hardswish,conv",
            (3, 1, 14, 14, 32, 128),
            (1,),
        ),
        "7x7": ("n=1 h=7 w=9 c=16 k=136 r=7 s=7 pad=3 dtype=f16 epilogue=conv,bias,relu6", (7, 1, 7, 7, 64, 128), (3,)),
        "a tile of 64 channels": (
            "n=1 h=28 w=28 c=40 k=240 r=5 s=5 stride=2 pad=2 dtype=f16 epilogue=conv",
            (5, 2, 8, 7, 64, 256),
            (1,),
        ),
    },
    # Groups of 1 to 48 channels, rows and columns beyond the last output, channels that are not full, several images,
    # both strides with odd and even sizes, no padding, odd and even numbers of units.
    "cuda_grouped_conv2d": {
        "of 8": ("n=2 h=9 w=21 c=40 k=40 r=3 s=3 pad=1 groups=5 dtype=f16 epilogue=bias,gelu", (3, 1, 8, 32, 8, 16, 4)),
        "of 4": ("n=3 h=7 w=7 c=24 k=24 r=3 s=3 pad=1 groups=6 dtype=bf16 epilogue=scale,bias", (3, 1, 4, 24, 8, 8, 2)),
        "of 16": ("n=1 h=15 w=18 c=48 k=48 r=3 s=3 pad=1 stride=2 groups=3 dtype=f16", (3, 2, 16, 32, 4, 16, 2)),
        "of 24, 5x5": (
            "n=2 h=12 w=10 c=48 k=48 r=5 s=5 groups=2 dtype=f16 epilogue=add,store,relu",
            (5, 1, 24, 24, 8, 8, 4),
        ),
        "of 48": ("n=1 h=8 w=9 c=96 k=96 r=3 s=3 pad=1 groups=2 dtype=f16 epilogue=bias", (3, 1, 48, 96, 4, 8, 2)),
        "of 1": ("n=2 h=9 w=11 c=40 k=40 r=3 s=3 pad=1 groups=40 dtype=f16 epilogue=bias,silu", (3, 1, 1, 32, 8, 8, 2)),
        "of 1, 5x5/2": ("n=1 h=15 w=18 c=24 k=24 r=5 s=5 pad=2 stride=2 groups=24 dtype=bf16", (5, 2, 1, 24, 8, 8, 2)),
        "of 8, 7x7/2": ("n=1 h=20 w=14 c=16 k=16 r=7 s=7 pad=3 stride=2 groups=2 dtype=f16", (7, 2, 8, 16, 8, 8, 2)),
    },
    # Rows and columns beyond the last output, two images a tile and an odd number of them, channels that are not full,
    # several blocks of channels, tiles in turn that end early, both strides with odd and even sizes, no padding.
    "cuda_mma_depthwise_conv2d": {
        "7x7": ("n=1 h=19 w=21 c=40 k=40 r=7 s=7 pad=3 groups=40 dtype=f16 epilogue=bias,gelu", (7, 1, 16, 2, 32, 2)),
        "5x5, two images": (
            "n=3 h=7 w=7 c=24 k=24 r=5 s=5 pad=2 groups=24 dtype=bf16 epilogue=scale,bias,silu",
            (5, 1, 8, 1, 32, 1),
        ),
        "3x3, wide": ("n=2 h=33 w=35 c=16 k=16 r=3 s=3 pad=1 groups=16 dtype=f16", (3, 1, 32, 4, 16, 4)),
        "7x7, no padding": (
            "n=2 h=12 w=40 c=8 k=8 r=7 s=7 groups=8 dtype=f16 epilogue=add,store,relu",
            (7, 1, 8, 4, 16, 2),
        ),
        "3x3/2": (
            "n=2 h=15 w=18 c=72 k=72 r=3 s=3 pad=1 stride=2 groups=72 dtype=f16 epilogue=bias",
            (3, 2, 8, 2, 32, 1),
        ),
        "5x5/2": ("n=1 h=34 w=33 c=16 k=16 r=5 s=5 pad=2 stride=2 groups=16 dtype=bf16", (5, 2, 16, 2, 32, 8)),
        "7x7/2": (
            "n=1 h=20 w=14 c=16 k=16 r=7 s=7 pad=3 stride=2 groups=16 dtype=f16 epilogue=relu",
            (7, 2, 16, 1, 16, 1),
        ),
    },
    # Tiles at all borders and images larger than a tile; channels that fill no step, no chunk and no column; whole
    # images, several of them, and one that is missing; strides of 1 and 2; clusters that share the chunks equally and
    # not; tensors behind the last convolution; strips of rows that end beyond the tile; tiles whose border is padding.
    "cuda_inverted_residual": {
        "residual": (
            "n=2 h=9 w=10 c=24 hidden=72 k=24 r=3 s=3 pad=1 dtype=f16 "
            "epilogue=bias,relu6,conv,bias,relu6,conv,bias,add",
            (3, 1, 8, 8, 1, 48, 32, 2, 128, 1),
        ),
        "5x5, stride 2": (
            "n=1 h=15 w=13 c=8 hidden=72 k=40 r=5 s=5 stride=2 pad=2 dtype=bf16 "
            "epilogue=bias,silu,conv,bias,silu,conv,bias,store,relu",
            (5, 2, 4, 7, 1, 48, 64, 1, 128, 1),
        ),
        "whole images": (
            "n=3 h=7 w=7 c=40 hidden=144 k=40 r=3 s=3 pad=1 dtype=f16 "
            "epilogue=bias,relu6,conv,bias,relu6,conv,bias,add",
            (3, 1, 7, 7, 2, 64, 64, 2, 256, 1),
        ),
        "cluster of 2": (
            "n=1 h=14 w=14 c=16 hidden=200 k=72 r=3 s=3 pad=1 dtype=f16 epilogue=bias,relu6,conv,bias,relu6,conv,bias",
            (3, 1, 14, 14, 1, 48, 96, 2, 256, 2),
        ),
        "cluster of 4": (
            "n=2 h=7 w=7 c=16 hidden=216 k=320 r=3 s=3 pad=1 dtype=bf16 epilogue=bias,relu6,conv,bias,relu6,conv,bias",
            (3, 1, 4, 7, 1, 48, 320, 2, 256, 4),
        ),
        "cluster of 8": (
            "n=1 h=7 w=9 c=24 hidden=488 k=8 r=3 s=3 pad=1 dtype=f16 epilogue=bias,relu6,conv,bias,relu6,conv,bias",
            (3, 1, 4, 14, 1, 48, 16, 1, 128, 8),
        ),
        "without padding": (
            "n=1 h=19 w=20 c=32 hidden=40 k=16 r=3 s=3 dtype=f16 epilogue=hardswish,conv,conv",
            (3, 1, 14, 14, 1, 48, 16, 4, 128, 1),
        ),
        "7x7, much padding": (
            "n=1 h=6 w=9 c=16 hidden=32 k=136 r=7 s=7 pad=9 dtype=f16 epilogue=conv,bias,conv,scale",
            (7, 1, 8, 8, 1, 64, 160, 1, 256, 1),
        ),
    },
    # Vectors of all pieces and of a few channels, more than one item a thread, the last ones missing; ranges of wider
    # tensors; shuffles of the kernels' groups, of any, and of groups that fill no access; all kinds of operands.
    "cuda_concat": {
        "densenet": ("n=2 h=5 w=7 pieces=64,32,32 dtype=f16 epilogue=scale,bias,relu", (1, 8, 2, 64)),
        "eight pieces": ("n=1 h=3 w=5 pieces=8,16,8,24:40/48,8,8,8,8 dtype=bf16 epilogue=store,bias", (1, 8, 1, 64)),
        "odd channels": ("n=2 h=3 w=3 pieces=1:2/3,5,0:7/9 dtype=f32 epilogue=add,relu", (1, 1, 4, 64)),
        "shuffle": ("n=2 h=4 w=5 pieces=24,8:32/48 interleave=2 dtype=f16 epilogue=none", (2, 8, 1, 64)),
        "shuffle of odd groups": ("n=2 h=4 w=5 pieces=29:58/58,0:29/58 interleave=2 dtype=f16", (2, 2, 2, 64)),
        "three groups": ("n=1 h=4 w=5 pieces=9,12 interleave=3 dtype=f16 epilogue=mul_image,add_pixel", (0, 1, 2, 64)),
    },
    "cuda_clipped_avg_pool2d": {
        "clipped pool": ("n=2 h=7 w=9 c=16 r=3 s=3 stride=2 pad=1 ceil=1 dtype=f16 epilogue=relu", (3, 2, 4, 2, 1, 64)),
        "clipped pool of any window": (
            "n=1 h=8 w=9 c=6 r=4 s=2 stride=3,2 pad=2,1 ceil=1 dtype=f32",
            (0, 0, 2, 1, 1, 64),
        ),
    },
    "cuda_adaptive_avg_pool2d": {
        "adaptive pool": ("n=2 h=7 w=9 c=24 p=5 q=4 dtype=bf16 epilogue=bias,add", (8, 64)),
    },
    "cuda_elementwise": {
        "gates": ("n=3 h=3 w=5 c=24 dtype=f16 epilogue=mul_image,mul,mul_pixel,sub,add_image", (8, 2, 64)),
        "activations": ("n=2 h=3 w=3 c=5 dtype=f32 epilogue=prelu,mish,elu,softplus,abs,exp", (1, 1, 64)),
    },
    "cuda_layer_norm": {
        "a warp's part, last block": ("n=1 h=3 w=7 c=96 dtype=f16 epilogue=scale,bias", (8, 3, 4, 128)),
        "idle lanes": ("n=2 h=3 w=5 c=88 dtype=bf16 epilogue=scale,bias,gelu,add", (8, 1, 16, 128)),
        "several warps a pixel": ("n=1 h=1 w=3 c=4096 dtype=f32 epilogue=scale,bias", (4, 16, 64, 128)),
    },
    "cuda_softmax": {
        "softmax": ("n=1 h=5 w=5 c=21 dtype=f32 epilogue=mul_scalar", (1, 1, 32, 128)),
    },
    "cuda_group_norm": {
        "one group": ("n=2 h=5 w=3 c=40 groups=1 dtype=f16 epilogue=scale,bias,silu", (8, 128)),
        "more vectors than threads": ("n=1 h=2 w=3 c=392 groups=2 dtype=f32 epilogue=scale,bias", (1, 128)),
        "groups narrower than a vector": ("n=2 h=6 w=5 c=96 groups=32 dtype=f16 epilogue=bias,add,relu", (8, 128)),
        "groups narrower than a vector, in float32": ("n=1 h=9 w=7 c=36 groups=12 dtype=f32", (4, 128)),
    },
    "cuda_depth_to_space": {
        "depth_to_space": ("n=2 h=3 w=2 c=24 block=2,3 dtype=f16 epilogue=bias,relu,add", (8, 0, 128)),
        "torch's order": ("n=1 h=3 w=5 c=8 block=2 inner=1 dtype=f32 epilogue=scale", (4, 0, 128)),
        "few channels": ("n=1 h=3 w=4 c=3 block=3,2 inner=1 dtype=f16 epilogue=bias", (8, 1, 128)),
    },
    "cuda_upsample": {
        "whole vectors": (
            "n=2 h=3 w=4 c=16 p=6 q=9 rows=1,2 columns=4,9 mode=bilinear dtype=f16 epilogue=bias,add",
            (1, 8, 8, 128),
        ),
        "parts of a vector": (
            "n=2 h=4 w=3 c=12 p=9 q=10 rows=4,9 columns=3,10 mode=bilinear dtype=bf16 epilogue=add,scale,store,silu",
            (1, 8, 4, 128),
        ),
        "odd channels": (
            "n=1 h=5 w=3 c=21 p=7 q=16 rows=4,6 columns=2,15 mode=bilinear_corners dtype=f32 epilogue=scale,store",
            (1, 4, 1, 128),
        ),
        "odd channels, 8 times larger": (
            "n=2 h=5 w=6 c=21 p=40 q=48 rows=1,8 columns=1,8 mode=bilinear dtype=f16 epilogue=none",
            (1, 8, 1, 128),
        ),
        "an odd row": (
            "n=1 h=5 w=5 c=21 p=33 q=33 rows=4,32 columns=4,32 mode=bilinear_corners dtype=bf16 epilogue=none",
            (1, 1, 1, 128),
        ),
        "several pixels of a vector": (
            "n=2 h=7 w=6 c=1 p=12 q=24 rows=7,12 columns=1,4 mode=bilinear dtype=f16 epilogue=bias,relu",
            (1, 8, 1, 128),
        ),
        "smaller": (
            "n=2 h=17 w=13 c=3 p=5 q=8 rows=17,5 columns=13,8 mode=bilinear dtype=f32 epilogue=mul_scalar",
            (1, 4, 1, 128),
        ),
        "nearest": (
            "n=3 h=3 w=4 c=5 p=7 q=8 rows=3,7 columns=1,2 mode=nearest_exact dtype=f16 epilogue=relu",
            (0, 8, 1, 128),
        ),
        "nearest, twice as large": (
            "n=2 h=6 w=5 c=48 p=12 q=10 rows=1,2 columns=1,2 mode=nearest dtype=f16 epilogue=add",
            (0, 8, 8, 128),
        ),
    },
    # Several images a block, the last block with fewer; more pixels than registers keep; threads without channels; sums
    # of a warp's lanes, and of lanes more than a warp apart; rows of weights with padding between them and without.
    "cuda_se_tail": {
        "last block": ("n=7 h=2 w=2 c=512 hidden=32 dtype=f16 epilogue=add,relu", (256, 1, 1), (2,)),
        "as a batch of 128": ("n=2 h=4 w=4 c=256 hidden=16 dtype=f16 epilogue=add,relu,add_scalar", (512, 2, 1), (1,)),
        "first block": ("n=5 h=9 w=7 c=64 hidden=4 dtype=bf16 epilogue=bias,add,relu,store", (128, 2, 1), (4,)),
        "odd, late": ("n=3 h=5 w=3 c=72 hidden=5 dtype=f16 epilogue=add,silu", (128, 1, 0), (1,)),
        "float32": ("n=3 h=3 w=3 c=40 hidden=12 dtype=f32 epilogue=scale,add", (128, 4, 1), (2,)),
    },
    # One block an image, and clusters of them: with fewer pixels for the last block, with none for the last block, with
    # more pixels than registers keep, with weights in shared memory and without.
    "cuda_squeeze_excite": {
        "block": ("n=5 h=3 w=4 c=64 hidden=6 act=silu gate=sigmoid dtype=f16 epilogue=none", (128, 1, 0, 1), (1,)),
        "two images a block": (
            "n=200 h=2 w=2 c=16 hidden=8 act=relu gate=hardsigmoid dtype=f16 epilogue=add,relu",
            (128, 1, 1, 1),
            (2,),
        ),
        "cluster of 2": ("n=3 h=7 w=5 c=72 hidden=20 act=hardswish gate=hardsigmoid dtype=bf16", (128, 2, 1, 2), (1,)),
        "cluster of 4": (
            "n=2 h=5 w=5 c=24 hidden=4 act=relu gate=sigmoid dtype=f16 epilogue=add,store",
            (128, 4, 0, 4),
            (1,),
        ),
        "parts of the weights": (
            "n=2 h=2 w=3 c=1160 hidden=50 act=silu gate=sigmoid dtype=f16 epilogue=add",
            (256, 2, 0, 4),
            (1,),
        ),
        "cluster of 8": (
            "n=2 h=3 w=3 c=40 hidden=12 act=silu gate=sigmoid dtype=f32 epilogue=silu",
            (128, 1, 1, 8),
            (1,),
        ),
    },
    "cuda_se_gates": {
        "block": ("n=3 h=3 w=4 c=64 hidden=6 act=silu gate=sigmoid dtype=f16", (128, 1, 0, 1), (1,)),
        "two images a block": ("n=200 h=2 w=2 c=16 hidden=8 act=relu gate=hardsigmoid dtype=f16", (128, 1, 1, 1), (2,)),
        "cluster of 4": (
            "n=2 h=5 w=5 c=24 hidden=4 act=hardswish gate=sigmoid dtype=bf16 epilogue=add",
            (128, 2, 1, 4),
            (1,),
        ),
        "parts of the weights": ("n=2 h=3 w=3 c=328 hidden=15 act=silu gate=sigmoid dtype=f16", (128, 1, 0, 8), (1,)),
    },
}

ON_SM80 = {
    *("cuda_concat_conv2d", "cuda_conv2d_pair", "cuda_expand_depthwise", "cuda_grouped_conv2d"),
    "cuda_mma_depthwise_conv2d",
}
"""Families whose kernels run as those of sm_80; those of the others run as on Hopper."""

DAILY = {
    "cuda_conv2d_pair": (3, "pairs"),
    "cuda_inverted_residual": (4, "inverted residuals"),
    **dict.fromkeys(
        ("cuda_concat", "cuda_clipped_avg_pool2d", "cuda_adaptive_avg_pool2d", "cuda_elementwise"), (4, "memory-bound")
    ),
}
"""Family -> how many of its cases a day runs, and with which other families' cases."""

LIMITS = {
    "cuda_conv2d_pair": {"f16": 1.5e-3, "bf16": 1.2e-2},
    "cuda_inverted_residual": {"f16": 2e-3, "bf16": 1.5e-2},
}
"""Largest relative errors of families with several convolutions."""

SHARED_BYTES = {
    "cuda_concat_conv2d": lambda problem, tile: tile(cuda.concat_conv2d).shared_bytes,
    "cuda_conv2d_pair": lambda problem, tile: tile(cuda.conv2d_pair).shared_bytes(problem.c, problem.hidden),
    "cuda_expand_depthwise": lambda problem, tile: tile(cuda.expand_depthwise).shared_bytes(problem.c, problem.dtype),
    "cuda_grouped_conv2d": lambda problem, tile: tile(cuda.grouped_conv2d).shared_bytes,
    "cuda_inverted_residual": lambda problem, tile: tile(cuda.inverted_residual).shared_bytes(
        cuda.inverted_residual._rows(problem, tile(cuda.inverted_residual)), problem.c, problem.dtype
    ),
    "cuda_mma_depthwise_conv2d": lambda problem, tile: tile(cuda.mma_depthwise_conv2d).shared_bytes,
}
"""Family -> the shared memory that a kernel's tile counts; `tile` makes it of the family's module."""


def problem_of(name, text):
    return parse(f"{family(name).operators[0].operator} {text}")


def kernel_config(name, values, problem):
    """Return the config of values in the order of the family's parameters; activations are those of the problem."""
    gated = name in ("cuda_squeeze_excite", "cuda_se_gates")
    return config_of(name, (*values, problem.act, problem.gate) if gated else values)


def launches_of(name, problem, config, arch, values):
    """Return the launch of these values, or all that the family proposes; of resizing, all that there are."""
    if values:
        return [{one.name: value for one, value in zip(family(name).launch_parameters, values[0], strict=True)}]
    if name == "cuda_upsample":
        return [{"rows": rows} for rows in family(name).launch_parameters[0].values]
    return family(name).launches(problem, config, arch)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "text", "values", "launch_values"),
    [
        pytest.param(name, text, values, launch_values, id=f"{name}: {case}", marks=marks)
        for name, cases in CASES.items()
        for marks in [[pytest.mark.daily(*DAILY[name])] if name in DAILY else []]
        for case, (text, values, *launch_values) in cases.items()
    ],
)
def test_the_kernels_text_solves_the_problem(name, text, values, launch_values, tmp_path):
    problem, arch = problem_of(name, text), SM80 if name in ON_SM80 else SM90
    config = kernel_config(name, values, problem)
    chosen = (fitting if name in ("cuda_grouped_conv2d", "cuda_mma_depthwise_conv2d") else proposed)(
        name, problem, config, arch
    )
    emulated = Emulated(chosen, tmp_path)
    for seed, launch in enumerate(launches_of(name, problem, config, arch, launch_values)):
        assert emulated.shared_bytes(problem, launch) >= 0, f"{launch} is refused"
        if name in SHARED_BYTES:
            counted = SHARED_BYTES[name](problem, lambda module: module.Tile.from_config(config))
            assert emulated.shared_bytes(problem, launch) == counted
        if name == "cuda_group_norm":
            assert emulated.shared_bytes(problem, launch) == cuda.group_norm.shared_bytes(problem, config, launch)
        cluster = config["parts"] if name == "cuda_inverted_residual" else config.get("cluster", 1)
        assert_computes(emulated, problem, launch, cluster, seed, LIMITS.get(name, LIMIT))


# Of each family, a problem that it serves; and what differs in those that it does not serve, with words of the reason.
PAIR, RESIDUAL = CASES["cuda_conv2d_pair"]["1x1 and 3x3"][0], CASES["cuda_inverted_residual"]["residual"][0]
NOT_SERVED = {
    "cuda_concat_conv2d": (
        "n=1 h=4 w=4 pieces=8 k=8 dtype=f16",
        ("pieces=8", "pieces=12,4", "multiples of 8"),
        ("pieces=8", "pieces=8:16/20", "multiples of 8"),
        ("pieces=8 k=8", "pieces=16 k=12", "multiples of 8"),
    ),
    "cuda_conv2d_pair": (
        PAIR,
        ("c=40", "c=12", "multiple of 8"),
        ("s=3", "s=1", "square"),
        (PAIR, "n=1 h=4 w=4 c=16 hidden=16 k=16 dtype=f16 epilogue=conv", "pointwise_pair"),
    ),
    "cuda_expand_depthwise": (
        CASES["cuda_expand_depthwise"]["3x3"][0],
        ("n=2 h=9 w=10 c=24 k=40", "n=1 h=9 w=9 c=12 k=36", "multiples of 8"),
    ),
    "cuda_grouped_conv2d": (
        "n=1 h=9 w=9 c=32 k=32 r=3 s=3 pad=1 groups=4 dtype=f16",
        ("groups=4", "groups=16", "a group must have"),
        ("groups=4", "groups=1", "several groups"),
        ("k=32", "k=64", "c and k must be equal"),
        ("r=3 s=3", "r=3 s=5", "square"),
        ("pad=1", "pad=2 dilation=2", "dense"),
        ("c=32 k=32 r=3 s=3 pad=1 groups=4", "c=12 k=12 r=3 s=3 pad=1 groups=3", "multiple of 8"),
    ),
    "cuda_inverted_residual": (
        RESIDUAL,
        ("n=2 h=9 w=10 c=24 hidden=72 k=24", "n=1 h=9 w=9 c=12 hidden=36 k=8", "multiples of 8"),
        ("n=2 h=9 w=10 c=24 hidden=72 k=24", "n=1 h=9 w=9 c=16 hidden=32 k=328", "at most 320"),
    ),
    "cuda_mma_depthwise_conv2d": (
        "n=1 h=9 w=9 c=16 k=16 r=3 s=3 pad=1 groups=16 dtype=f16",
        ("groups=16", "groups=8", "one channel a group"),
        ("r=3 s=3", "r=3 s=5", "square"),
        ("pad=1", "pad=2 dilation=2", "dense"),
        ("c=16 k=16 r=3 s=3 pad=1 groups=16", "c=12 k=12 r=3 s=3 pad=1 groups=12", "multiple of 8"),
    ),
}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_a_family_does_not_serve_has_a_reason(name):
    found, (served, *others) = family(name), NOT_SERVED[name]
    assert found.why_not_served(problem_of(name, served), SM80) is None
    assert all(found.why_not_served(problem_of(name, served), arch) for arch in (SM70, SM75))
    for before, after, said in others:
        assert said in found.why_not_served(problem_of(name, served.replace(before, after)), SM80), after


RESIZED = "n=1 h=3 w=4 p=6 rows=1,2 columns=1,2 dtype=f16 c=12 q=8 mode=bilinear"
ACCESS = "all pieces must be multiples of an access: of vector / interleave channels"
# Of each kernel, its config, a problem that it solves, and launch values; and what differs where it refuses a problem.
REFUSED = {
    "cuda_concat": (
        (2, 8, 1, 64),
        ("n=1 h=2 w=3 pieces=24,24 interleave=2 dtype=f16", {}),
        (" interleave=2", "", {}, "this kernel is compiled for interleave = 2"),
        ("pieces=24,24", "pieces=8,4", {}, "c must be a multiple of the vector of 8 elements"),
        ("pieces=24,24", "pieces=22,26", {}, ACCESS),
        ("pieces=24,24", "pieces=2:26/28,24", {}, ACCESS),
    ),
    "cuda_conv2d_pair": (
        CASES["cuda_conv2d_pair"]["two 3x3, whole images"][1],
        (CASES["cuda_conv2d_pair"]["two 3x3, whole images"][0], {}),
        ("first_r=3", "first_r=1", {}, "first filter"),
        ("h=7", "h=8", {}, "whole image"),
        ("hidden=48", "hidden=40", {}, "multiple of 16"),
        ("c=32", "c=1024", {}, "shared memory"),
    ),
    "cuda_group_norm": (
        (4, 128),
        ("n=1 h=9 w=7 c=36 groups=12 dtype=f32", {"together": 4, "hold": 0}),
        ("", "", {"together": 5}, "groups must be a multiple of the groups of a block"),
    ),
    "cuda_se_tail": (
        (64, 1, 1),
        ("n=1 h=2 w=2 c=64 hidden=4 dtype=f16 epilogue=add", {"images": 1}),
        ("c=64", "c=60", {}, "c must be a multiple of the vector"),
        ("c=64", "c=1024", {}, "c exceeds the channels of one block: threads * vector"),
        ("hidden=4", "hidden=5", {}, "hidden must be a multiple of 4 if weights are loaded early"),
    ),
    "cuda_squeeze_excite": (
        (128, 1, 0, 2),
        ("n=4 h=4 w=4 c=64 hidden=4 act=silu gate=sigmoid dtype=f16", {"images": 1}),
        ("", "", {"images": 2}, "a cluster takes one image"),
    ),
    "cuda_upsample": (
        (1, 8, 4, 128),
        (RESIZED, {"rows": 4}),
        ("bilinear", "nearest", {}, "this kernel is compiled for linear = 1"),
        ("c=12", "c=10", {}, "c must be a multiple of the load of 4 channels"),
        ("q=8", "q=7", {}, "q c must be a multiple of the vector of 8 elements"),
        ("", "", {"rows": 0}, "a thread must make at least one row"),
    ),
}


@pytest.mark.compile
@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_says_why_it_refuses_a_problem(name, tmp_path):
    values, (text, launch), *others = REFUSED[name]
    problem, target = problem_of(name, text), "sm_80" if name in ON_SM80 else "sm_90"
    kernel = Kernel.of(name, kernel_config(name, values, problem), problem.dtype, problem.epilogue, target)
    emulated = Emulated(kernel, tmp_path)
    assert emulated.refusal(problem, launch) is None
    for before, after, other, reason in others:
        said = emulated.refusal(problem_of(name, text.replace(before, after)), launch | other)
        assert said == reason or (name == "cuda_conv2d_pair" and reason in said), after


def test_steps_before_the_convolution_store_nothing():
    config, chain = config_of("cuda_concat_conv2d", (64, 32, 32, 32, 2)), Epilogue.parse("store,conv")
    assert "must not store" in family("cuda_concat_conv2d").why_illegal(config, SM80, "f16", chain)


def test_a_kernel_fits_its_own_group_width_only():
    problem = problem_of("cuda_grouped_conv2d", NOT_SERVED["cuda_grouped_conv2d"][0])
    config = config_of("cuda_grouped_conv2d", (3, 1, 16, 32, 8, 8, 2))
    assert "compiled for groups of 16, not 8" in family("cuda_grouped_conv2d").why_unfit(problem, config, SM80)


def test_kernels_of_inverted_residuals_are_clusters_on_hopper_and_compute_pixels_once():
    found = family("cuda_inverted_residual")
    assert {config["parts"] for config in found.configs_for(problem_of(found.name, RESIDUAL), SM80)} == {1}
    early = problem_of(found.name, "n=1 h=9 w=9 c=16 hidden=32 k=8 r=3 s=3 pad=1 dtype=f16 epilogue=conv,add,conv")
    assert not found.configs_for(early, SM90), "a step between the convolutions would need the pixel's position"


def test_blocks_take_several_images_where_most_multiprocessors_still_have_one():
    found = family("cuda_se_tail")
    early, late = ({"threads": 512, "keep": 1, "early": value} for value in (1, 0))
    for n, images in ((1, {1}), (128, {1}), (512, {1, 2, 4}), (1024, {1, 2, 4, 8})):
        problem = parse(f"se_tail n={n} h=2 w=2 c=512 hidden=32 dtype=f16 epilogue=add,relu")
        assert {launch["images"] for launch in found.launches(problem, early, SM90)} == images
        assert found.launches(problem, late, SM90) == [{"images": 1}]


def test_clusters_are_for_hopper_and_small_batches():
    found = family("cuda_squeeze_excite")
    few, many = (
        parse(f"squeeze_excite n={n} h=56 w=56 c=144 hidden=6 act=silu gate=sigmoid dtype=f16") for n in (1, 4096)
    )
    assert {config["cluster"] for config in found.configs_for(few, SM90)} == {1, 2, 4, 8}
    assert {config["cluster"] for config in found.configs_for(few, SM80)} == {1}
    ranked = {
        problem.n: min(found.configs_for(problem, SM90), key=lambda config: found.cost(problem, config, SM90))
        for problem in (few, many)
    }
    assert ranked[1]["cluster"] == 8 and ranked[4096]["cluster"] < 8


def test_threads_make_the_rows_that_leave_enough_of_them():
    found = family("cuda_upsample")

    def rows(text):
        problem = parse(f"upsample {text} dtype=f16")
        return [launch["rows"] for launch in found.launches(problem, found.configs_for(problem, SM90)[-1], SM90)]

    by_8 = "h=64 w=64 c=21 p=512 q=512 rows=1,8 columns=1,8 mode=bilinear"
    assert rows(f"n=32 {by_8}") == [4, 8, 16, 32]
    assert rows(f"n=1 {by_8}") == [2, 4, 8, 16]
    assert rows("n=32 h=56 w=56 c=256 p=112 q=112 rows=1,2 columns=1,2 mode=nearest") == [1, 2, 4, 8]
    assert rows("n=1 h=7 w=7 c=64 p=14 q=14 rows=1,2 columns=1,2 mode=nearest") == [1, 2]
