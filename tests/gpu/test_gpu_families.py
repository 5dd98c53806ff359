"""Device kernels on odd problems: every CUDA family, split and swizzled, with every epilogue of the network."""

import os
import random

import pytest
import torch
from comparison import LIMIT, relative_error
from kernels import assert_same_bits, built_paths, candidate_of
from reference import solve

from autotune.core import of_capability
from autotune.families import DEVICE_IMAGE, Kernel, families, family
from autotune.ir import parse
from autotune.measure import CandidateBench
from autotune.runtime.engine import EngineError

pytestmark = pytest.mark.gpu

DTYPES = ("f16", "bf16", "f32")  # the others are those of convolutions: test_gpu_fprop.py

PROBLEMS = {
    "cutlass2_conv2d": [
        "conv2d n=3 h=13 w=9 c=72 k=40 r=3 s=3 stride=2,1 pad=1,1 dtype={} epilogue=add_scalar,relu,add_scalar",
        "conv2d n=2 h=7 w=11 c=264 k=136 r=3 s=2 stride=1,2 pad=2,1 dtype={} epilogue=mul_scalar,add_scalar",
        "conv2d n=5 h=5 w=5 c=48 k=64 dtype={} epilogue=relu,store,add_scalar",
        "conv2d n=2 h=9 w=8 c=64 k=72 r=3 s=3 pad=2,2 dilation=2,2 dtype={} epilogue=none",
        "conv2d n=2 h=6 w=7 c=128 k=24 r=3 s=3 pad=1,1 dtype={} epilogue=bias,silu,add,scale,store,sigmoid",
        "conv2d n=2 h=6 w=7 c=64 k=40 r=3 s=3 pad=1 dtype={} epilogue=bias,swish_b,add,bent,store,clamp,leaky_relu",
    ],
    "cutlass2_gemm": [
        "gemm m=1000 n=520 k=1000 dtype={} epilogue=bias,relu,store,add_scalar",
        "gemm m=300 n=264 k=4104 dtype={} epilogue=none",
        "gemm m=33 n=10 k=52 dtype={} epilogue=bias,silu,add,scale",
        "gemm m=77 n=36 k=63 dtype={} epilogue=mul_scalar",
        "gemm m=1 n=35 k=70 dtype={} epilogue=relu",
        "conv2d n=3 h=7 w=5 c=264 k=136 dtype={} epilogue=bias,add,relu",
    ],
    "cutlass2_conv2d_dgrad": [
        "conv2d_dgrad n=3 h=13 w=9 c=72 k=264 r=3 s=3 pad=1,1 dtype={} epilogue=bias,add_scalar,relu,store",
        "conv2d_dgrad n=2 h=14 w=11 c=40 k=64 r=3 s=2 pad=2,1 dilation=2,1 dtype={} epilogue=none",
        "conv2d_dgrad n=3 h=15 w=12 c=64 k=136 r=3 s=3 stride=2,2 pad=1,1 dtype={} epilogue=bias,add,relu",
        "conv2d_dgrad n=2 h=11 w=14 c=24 k=48 r=5 s=3 stride=2,1 pad=2,0 dtype={} epilogue=none",
        "conv2d_dgrad n=8 h=28 w=28 c=136 k=520 r=3 s=3 pad=1,1 dtype={} epilogue=none",
        "conv2d_dgrad n=8 h=27 w=30 c=72 k=520 r=3 s=3 stride=2,2 pad=1,1 dtype={} epilogue=relu,add_scalar",
        "conv2d_dgrad n=2 h=9 w=1 c=16 k=32 stride=3,3 dtype={} epilogue=bias,store,silu",
        "conv2d_dgrad n=2 h=9 w=10 c=12 k=20 r=3 s=3 stride=2,2 pad=1,1 dtype={} epilogue=scale,add",
        "conv2d_dgrad n=2 h=9 w=10 c=3 k=10 r=3 s=3 pad=1,1 dtype={} epilogue=bias",
    ],
    "cutlass2_conv2d_wgrad": [
        "conv2d_wgrad n=7 h=33 w=29 c=64 k=72 r=3 s=3 pad=1,1 dtype={} epilogue=none",
        "conv2d_wgrad n=3 h=25 w=22 c=40 k=136 r=3 s=2 stride=2,1 pad=1,0 dilation=1,2 dtype={} epilogue=bias,store",
        "conv2d_wgrad n=4 h=16 w=16 c=264 k=264 dtype={} epilogue=mul_scalar,add",
        "conv2d_wgrad n=2 h=9 w=10 c=12 k=20 r=3 s=3 stride=2,2 pad=1,1 dtype={} epilogue=add_scalar,bias",
        "conv2d_wgrad n=3 h=21 w=20 c=3 k=10 r=3 s=3 pad=1,1 dtype={} epilogue=none",
    ],
    "sm90_im2col_wgrad": [
        "conv2d_wgrad n=9 h=8 w=8 c=64 k=128 dtype={} epilogue=none",
        "conv2d_wgrad n=5 h=13 w=9 c=72 k=200 dtype={} epilogue=mul_scalar,add",
        "conv2d_wgrad n=40 h=7 w=7 c=264 k=256 dtype={} epilogue=none",
    ],
    "sm90_strided_dgrad": [
        "conv2d_dgrad n=7 h=14 w=10 c=64 k=72 r=3 s=3 stride=2,2 pad=1,1 dtype={} epilogue=none",
        "conv2d_dgrad n=3 h=25 w=22 c=40 k=136 r=3 s=2 stride=2,1 pad=1,0 dilation=1,2 dtype={} epilogue=bias,store",
        "conv2d_dgrad n=4 h=16 w=15 c=264 k=264 stride=2,2 dtype={} epilogue=mul_scalar,add",
        "conv2d_dgrad n=2 h=9 w=10 c=16 k=24 r=5 s=5 stride=2,2 pad=2,2 dtype={} epilogue=scale,add",
    ],
    "sm90_conv2d_wgrad": [
        "conv2d_wgrad n=7 h=13 w=9 c=64 k=72 r=3 s=3 pad=1,1 dtype={} epilogue=none",
        "conv2d_wgrad n=5 h=16 w=12 c=48 k=64 r=3 s=3 stride=2,2 pad=1,1 dtype={} epilogue=none",
        "conv2d_wgrad n=9 h=8 w=8 c=64 k=128 dtype={} epilogue=none",
        "conv2d_wgrad n=33 h=4 w=4 c=128 k=64 r=3 s=3 pad=1,1 dtype={} epilogue=none",
    ],
    "cuda_conv2d": [
        "conv2d n=3 h=13 w=9 c=72 k=40 r=3 s=3 pad=1,1 dtype={} epilogue=add_scalar,relu,add_scalar",
        "conv2d n=2 h=17 w=24 c=136 k=96 r=3 s=3 stride=2 pad=1 dtype={} epilogue=bias,silu,add,scale,store,tanh",
        "conv2d n=5 h=8 w=16 c=64 k=72 r=5 s=3 pad=2,2 dilation=1,2 dtype={} epilogue=bias,add,relu",
        "conv2d n=40 h=4 w=4 c=320 k=136 r=3 s=3 pad=1 dtype={} epilogue=bias,swish_b,add,bent,store,clamp,leaky_relu",
        "conv2d n=3 h=30 w=57 c=200 k=264 r=1 s=1 dtype={} epilogue=none",
        "conv2d_se n=5 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 hidden=4 dtype={} epilogue=bias,gate,add,store,add_scalar",
        "conv2d_se n=9 h=8 w=8 c=72 k=128 r=3 s=3 pad=1 hidden=8 dtype={} epilogue=mul_scalar,gate,add,relu",
        "conv2d_se n=11 h=4 w=2 c=64 k=120 hidden=12 dtype={} epilogue=bias,gate,add_scalar",
    ],
    "cuda_folded_conv2d": [
        "conv2d_folded_se n=5 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 hidden=4 dtype={} epilogue=bias,gate,add,store",
        "conv2d_folded_se n=9 h=8 w=8 c=72 k=136 r=3 s=3 pad=1 hidden=8 dtype={} epilogue=mul_scalar,gate,add,relu",
        "conv2d_folded_se n=37 h=8 w=8 c=256 k=200 r=3 s=3 stride=2 pad=1 hidden=32 dtype={} epilogue=scale,silu,gate",
        "conv2d_folded_se n=11 h=4 w=8 c=64 k=120 hidden=12 dtype={} epilogue=bias,gate,add_scalar",
    ],
    "cuda_se_block": [
        "se_block n=5 h=16 w=16 c=64 hidden=4 dtype={} epilogue=add_scalar,relu,conv,mul_scalar,add_scalar,gate,add",
        "se_block n=277 h=8 w=8 c=40 hidden=8 dtype={} epilogue=bias,silu,conv,scale,gate,add,add,relu,store",
        "se_block n=7 h=4 w=8 c=24 hidden=12 dtype={} epilogue=bias,conv,gate",
    ],
    "cuda_se_down_block": [
        "se_down_block n=131 h=16 w=16 c=64 k=128 hidden=8 dtype={} "
        "epilogue=add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,project,relu,add_scalar",
        "se_down_block n=7 h=8 w=7 c=40 k=136 hidden=12 dtype={} "
        "epilogue=bias,silu,conv,scale,gate,bias,project,add,store,relu",
        "se_down_block n=3 h=4 w=8 c=24 k=40 hidden=4 dtype={} epilogue=relu,conv,gate,scale,project",
    ],
    "cuda_stem_se_block": [
        "stem_se_block n=5 h=64 w=64 c=3 k=64 block=4 hidden=4 dtype={} "
        "epilogue=relu,keep,add_scalar,conv,add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,add_kept,relu,add_scalar",
        "stem_se_block n=277 h=32 w=32 c=1 k=40 block=4 hidden=8 dtype={} "
        "epilogue=bias,keep,silu,conv,scale,conv,bias,gate,scale,add_kept,add,store,relu",
        "stem_se_block n=7 h=16 w=32 c=4 k=24 block=4 hidden=12 dtype={} epilogue=keep,conv,conv,gate,add_kept",
    ],
    "cuda_narrow_conv2d": [
        "conv2d n=2 h=37 w=30 c=3 k=40 r=7 s=7 stride=2 pad=3 dtype={} epilogue=bias,relu,store,add_scalar",
        "conv2d n=3 h=21 w=25 c=4 k=72 r=3 s=3 pad=1 dtype={} epilogue=bias,silu,add,scale",
        "conv2d n=1 h=9 w=66 c=1 k=16 r=5 s=5 stride=2 pad=2 dtype={} epilogue=none",
    ],
    "cuda_narrow_conv2d_wgrad": [
        "conv2d_wgrad n=5 h=38 w=60 c=3 k=64 r=7 s=7 stride=2 pad=3 dtype={} epilogue=none",
        "conv2d_wgrad n=3 h=21 w=25 c=4 k=72 r=3 s=3 pad=1 dtype={} epilogue=mul_scalar",
        "conv2d_wgrad n=33 h=9 w=66 c=1 k=16 r=5 s=5 stride=2 pad=2 dtype={} epilogue=scale,add",
        "conv2d_wgrad n=2 h=19 w=41 c=3 k=24 r=5 s=5 pad=2 dtype={} epilogue=none",
    ],
    "cuda_pointwise_conv2d": [
        "conv2d n=3 h=7 w=5 c=72 k=136 dtype={} epilogue=bias,add,relu",
        "gemm m=1000 n=520 k=256 dtype={} epilogue=bias,relu,store,add_scalar",
        "gemm m=3 n=8 k=24 dtype={} epilogue=mul_scalar",
    ],
    "sm90_conv2d": [
        "conv2d n=3 h=13 w=9 c=72 k=40 r=3 s=3 pad=1,1 dtype={} epilogue=add_scalar,relu,add_scalar",
        "conv2d n=2 h=17 w=24 c=136 k=96 r=3 s=3 stride=2,1 pad=1 dtype={} epilogue=bias,silu,add,scale,store,tanh",
        "conv2d n=5 h=8 w=16 c=64 k=72 r=5 s=3 pad=2,2 dilation=1,2 dtype={} epilogue=bias,add,relu",
        "conv2d n=3 h=15 w=16 c=200 k=264 dtype={} epilogue=relu,store,add_scalar",
        "conv2d n=9 h=24 w=24 c=64 k=256 r=3 s=3 pad=1 dtype={} epilogue=bias,relu",
        "conv2d n=40 h=4 w=4 c=320 k=136 r=3 s=3 pad=1 dtype={} epilogue=bias,swish_b,add,bent,store,clamp,leaky_relu",
        "conv2d n=2 h=12 w=12 c=16 k=32 r=3 s=3 stride=2,2 dtype={} epilogue=none",
        "conv2d n=7 h=15 w=14 c=256 k=512 r=3 s=3 stride=2,1 pad=1 groups=4 dtype={} epilogue=bias,add,relu",
        "conv2d n=9 h=14 w=15 c=128 k=256 r=3 s=3 pad=1 groups=32 dtype={} epilogue=bias,add,relu",
        "gemm m=1000 n=520 k=1000 dtype={} epilogue=bias,relu,store,add_scalar",
        "gemm m=3 n=2048 k=2048 dtype={} epilogue=mul_scalar,add_scalar",
        "conv2d_se n=5 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 hidden=4 dtype={} epilogue=bias,gate,add,store,add_scalar",
        "conv2d_se n=9 h=8 w=8 c=72 k=128 r=3 s=3 pad=1 hidden=8 dtype={} epilogue=mul_scalar,gate,add,relu",
        "conv2d_se n=37 h=8 w=8 c=128 k=256 r=3 s=3 stride=2 pad=1 hidden=16 dtype={} epilogue=scale,silu,gate",
        "conv2d_se n=70 h=2 w=2 c=256 k=512 r=3 s=3 pad=1 hidden=32 dtype={} epilogue=gate,add,relu",
        "conv2d_se n=11 h=4 w=2 c=64 k=120 hidden=12 dtype={} epilogue=bias,gate,add_scalar",
    ],
    "sm90_folded_conv2d": [
        "conv2d_folded_se n=50 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 hidden=4 dtype={} epilogue=bias,gate,add,store",
        "conv2d_folded_se n=90 h=8 w=8 c=72 k=136 r=3 s=3 pad=1 hidden=8 dtype={} epilogue=mul_scalar,gate,add,relu",
        "conv2d_folded_se n=37 h=8 w=8 c=128 k=256 r=3 s=3 stride=2 pad=1 hidden=16 dtype={} epilogue=scale,silu,gate",
        "conv2d_folded_se n=70 h=2 w=2 c=256 k=512 r=3 s=3 pad=1 hidden=32 dtype={} epilogue=gate,add,relu",
        "conv2d_folded_se n=11 h=4 w=2 c=64 k=120 hidden=12 dtype={} epilogue=bias,gate,add_scalar",
        "conv2d_folded_se n=130 h=1 w=1 c=1000 k=520 hidden=64 dtype={} epilogue=bias,gate,add,tanh",
        "conv2d_se_skip n=90 h=8 w=8 c=64 k=136 r=3 s=3 pad=1 hidden=8 skip_c=72 dtype={} epilogue=gate,project,relu",
        "conv2d_se_skip n=37 h=4 w=4 c=128 k=256 r=3 s=3 pad=1 hidden=16 skip_c=128 dtype={} epilogue=gate,project,add",
        "conv2d_se_skip n=130 h=1 w=1 c=512 k=512 hidden=32 skip_c=512 skip_groups=4 dtype={} epilogue=gate,project",
    ],
    "sm90_image_conv2d": [
        "conv2d n=90 h=8 w=8 c=72 k=136 r=3 s=3 pad=1 dtype={} epilogue=bias,add,relu",
        "conv2d n=37 h=4 w=16 c=128 k=256 r=3 s=3 stride=2 pad=1 dtype={} epilogue=scale,silu,store,add_scalar",
        "conv2d_folded_se n=37 h=8 w=8 c=128 k=256 r=3 s=3 stride=2 pad=1 hidden=16 dtype={} epilogue=scale,silu,gate",
        "conv2d_folded_se n=70 h=2 w=2 c=256 k=512 r=3 s=3 pad=1 hidden=32 dtype={} epilogue=gate,add,relu",
        "conv2d_se_skip n=37 h=4 w=4 c=128 k=256 r=3 s=3 pad=1 hidden=16 skip_c=128 dtype={} epilogue=gate,project,add",
    ],
    "sm90_strip_se_block": [
        "stem_se_block n=5 h=64 w=64 c=3 k=64 block=4 hidden=4 dtype={} "
        "epilogue=relu,keep,add_scalar,conv,add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,add_kept,relu,add_scalar",
        "stem_se_block n=300 h=64 w=64 c=1 k=64 block=4 hidden=4 dtype={} epilogue=relu,keep,conv,conv,gate,add_kept",
        "stem_se_block n=277 h=32 w=32 c=3 k=64 block=4 hidden=8 dtype={} "
        "epilogue=bias,keep,silu,conv,scale,conv,bias,gate,scale,add_kept,relu",
        "stem_se_block n=7 h=32 w=128 c=2 k=64 block=4 hidden=12 dtype={} epilogue=keep,conv,conv,gate,add_kept",
        "stem_se_block n=1 h=64 w=32 c=4 k=64 block=4 hidden=4 dtype={} epilogue=keep,conv,conv,gate,add_kept,relu",
        "stem_se_block_pool n=300 h=64 w=64 c=3 k=64 block=4 hidden=4 dtype={} epilogue=keep,conv,conv,gate,add_kept",
        "stem_se_block_pool n=277 h=32 w=32 c=3 k=64 block=4 hidden=8 dtype={} "
        "epilogue=bias,keep,silu,conv,scale,conv,bias,gate,scale,add_kept,relu",
    ],
    "sm90_se_down_block": [
        "se_down_block n=5 h=16 w=16 c=64 k=128 hidden=8 dtype={} "
        "epilogue=add_scalar,relu,add_scalar,conv,mul_scalar,add_scalar,gate,project,relu,add_scalar",
        "se_down_block n=301 h=16 w=16 c=64 k=128 hidden=8 dtype={} epilogue=relu,conv,bias,gate,project,relu",
        "se_down_block n=37 h=8 w=8 c=128 k=256 hidden=16 dtype={} epilogue=bias,silu,conv,scale,gate,project,store",
        "se_down_block n=19 h=8 w=16 c=128 k=64 hidden=4 dtype={} epilogue=bias,conv,gate,bias,project,add,relu",
        "se_down_block n=7 h=15 w=7 c=192 k=128 hidden=12 dtype={} epilogue=conv,gate,project",
    ],
    "cuda_patch_conv2d": [
        "patch_conv2d n=3 h=64 w=64 c=3 k=64 block=4 dtype={} epilogue=relu,store,add_scalar",
        "patch_conv2d n=2 h=12 w=20 c=5 k=40 block=2 dtype={} epilogue=bias,add,silu",
        "patch_conv2d n=1 h=16 w=32 c=3 k=72 block=8 dtype={} epilogue=none",
    ],
    "cuda_depthwise_conv2d": [
        "conv2d n=3 h=13 w=9 c=24 k=24 r=3 s=3 pad=1,1 groups=24 dtype={} epilogue=bias,relu,store,add_scalar",
        "conv2d n=2 h=9 w=12 c=40 k=40 r=5 s=5 stride=2,2 pad=2,2 groups=40 dtype={} epilogue=none",
        "conv2d n=2 h=11 w=8 c=9 k=9 r=3 s=2 stride=1,2 pad=2,1 dilation=2,1 groups=9 dtype={} epilogue=bias,silu",
    ],
    "cuda_grouped_conv2d": [
        "conv2d n=3 h=13 w=9 c=40 k=40 r=3 s=3 pad=1,1 groups=5 dtype={} epilogue=bias,relu,store,add_scalar",
        "conv2d n=2 h=29 w=35 c=64 k=64 r=3 s=3 stride=2,2 pad=1,1 groups=16 dtype={} epilogue=none",
        "conv2d n=2 h=14 w=14 c=96 k=96 r=3 s=3 pad=1,1 groups=2 dtype={} epilogue=bias,gelu,add",
        "conv2d n=2 h=28 w=23 c=72 k=72 r=5 s=5 stride=2,2 pad=2,2 groups=72 dtype={} epilogue=bias,hardswish",
    ],
    "cuda_mma_depthwise_conv2d": [
        "conv2d n=3 h=13 w=9 c=24 k=24 r=3 s=3 pad=1,1 groups=24 dtype={} epilogue=bias,relu,store,add_scalar",
        "conv2d n=2 h=29 w=35 c=72 k=72 r=5 s=5 stride=2,2 pad=2,2 groups=72 dtype={} epilogue=none",
        "conv2d n=5 h=14 w=14 c=96 k=96 r=7 s=7 pad=3,3 groups=96 dtype={} epilogue=bias,gelu,add",
    ],
    "cuda_avg_pool2d": [
        "avg_pool2d n=3 h=9 w=7 c=24 r=3 s=3 stride=2,2 pad=1,1 dtype={}",
        "avg_pool2d n=2 h=11 w=5 c=13 r=2 s=3 stride=1,2 pad=1,0 dtype={} epilogue=bias,relu,store,mul_scalar",
        "avg_pool2d n=2 h=5 w=6 c=24 r=2 s=2 stride=1 dtype={} epilogue=scale,gelu,bent,store,gelu_tanh,add,hardswish",
    ],
    "cuda_clipped_avg_pool2d": [
        "clipped_avg_pool2d n=3 h=9 w=7 c=24 r=3 s=3 stride=2,2 pad=1,1 ceil=1 dtype={}",
        "clipped_avg_pool2d n=2 h=35 w=35 c=192 r=3 s=3 stride=1,1 pad=1,1 dtype={} epilogue=bias,relu",
    ],
    "cuda_adaptive_avg_pool2d": [
        "adaptive_avg_pool2d n=3 h=9 w=7 c=24 p=7 q=7 dtype={} epilogue=silu",
        "adaptive_avg_pool2d n=2 h=14 w=13 c=13 p=3 q=6 dtype={}",
    ],
    "cuda_concat": [
        "concat n=3 h=7 w=9 pieces=64,32,0:8/24 dtype={} epilogue=scale,bias,relu",
        "concat n=2 h=5 w=6 pieces=24,24 interleave=2 dtype={}",
        "concat n=2 h=4 w=3 pieces=3,5,13 dtype={} epilogue=add,store,silu",
    ],
    "cuda_concat_conv2d": [
        "concat_conv2d n=3 h=7 w=9 pieces=64,32,0:8/24 k=128 dtype={} epilogue=scale,bias,relu,conv,bias,relu",
        "concat_conv2d n=2 h=14 w=13 pieces=704,32,32,32,32,32,32,32 k=128 dtype={} epilogue=scale,bias,relu,conv,bias",
        "concat_conv2d n=5 h=28 w=28 pieces=72 k=40 dtype={} epilogue=mul_image,conv,bias,add,store,relu",
        "concat_conv2d n=2 h=5 w=3 pieces=256,64 k=264 dtype={} epilogue=conv",
    ],
    "cuda_max_pool2d": [
        "max_pool2d n=3 h=13 w=10 c=24 r=3 s=3 stride=2,2 pad=1,1 dtype={} epilogue=bias,relu",
        "max_pool2d n=2 h=8 w=7 c=40 r=3 s=3 stride=2,2 ceil=1 dtype={}",
        "max_pool2d n=2 h=9 w=8 c=12 r=2 s=2 stride=2,2 dtype={} epilogue=store,mul_scalar",
        "max_pool2d n=2 h=11 w=9 c=13 r=4 s=3 stride=1,2 pad=2,0 dtype={} epilogue=silu",
        "max_pool2d n=2 h=9 w=9 c=64 r=3 s=3 stride=1,1 pad=1,1 dtype={} epilogue=add",
    ],
    "cuda_max_pool2d_places": [
        "max_pool2d_places n=3 h=13 w=10 c=24 r=3 s=3 stride=2,2 pad=1,1 dtype={}",
        "max_pool2d_places n=2 h=28 w=29 c=64 r=3 s=3 stride=2,2 ceil=1 dtype={}",
        "max_pool2d_places n=2 h=9 w=8 c=12 r=2 s=2 stride=2,2 dtype={}",
        "max_pool2d_places n=2 h=11 w=9 c=13 r=4 s=3 stride=1,2 pad=2,0 dtype={}",
        "max_pool2d_places n=2 h=9 w=9 c=64 r=3 s=3 stride=1,1 pad=1,1 dtype={}",
    ],
    "cuda_max_pool2d_places_gradient": [
        "max_pool2d_places_gradient n=3 h=13 w=10 c=24 r=3 s=3 stride=2,2 pad=1,1 dtype={}",
        "max_pool2d_places_gradient n=2 h=28 w=29 c=64 r=3 s=3 stride=2,2 ceil=1 dtype={}",
        "max_pool2d_places_gradient n=2 h=9 w=8 c=12 r=2 s=2 stride=2,2 dtype={}",
        "max_pool2d_places_gradient n=2 h=11 w=9 c=13 r=4 s=3 stride=1,2 pad=2,0 dtype={}",
        "max_pool2d_places_gradient n=2 h=9 w=9 c=64 r=3 s=3 stride=1,1 pad=1,1 dtype={}",
    ],
    "cuda_global_avg_pool2d": [
        "global_avg_pool2d n=3 h=7 w=7 c=264 dtype={} epilogue=store,scale",
        "global_avg_pool2d n=2 h=1 w=3 c=13 dtype={} epilogue=none",
        "global_avg_pool2d n=2 h=14 w=13 c=36 dtype={} epilogue=bias,silu",
    ],
    "cuda_elementwise": [
        "elementwise n=3 h=5 w=7 c=24 dtype={} epilogue=add,relu",
        "elementwise n=1 h=3 w=3 c=13 dtype={} epilogue=scale,bias,store,silu",
        "elementwise n=2 h=16 w=16 c=36 dtype={} epilogue=none",
        "elementwise n=3 h=7 w=9 c=72 dtype={} epilogue=scale,bias,add_scaled,relu",
    ],
    "cuda_layer_norm": [
        "layer_norm n=3 h=14 w=13 c=96 dtype={} epilogue=scale,bias",
        "layer_norm n=2 h=7 w=7 c=768 dtype={} epilogue=scale,bias,gelu,add",
        "layer_norm n=1 h=3 w=5 c=4096 dtype={} epilogue=none",
        "layer_norm n=2 h=3 w=2 c=1021 dtype={} epilogue=scale,store",
    ],
    "cuda_softmax": [
        "softmax n=2 h=33 w=17 c=21 dtype={} epilogue=none",
        "softmax n=9 h=1 w=1 c=1000 dtype={} epilogue=mul_scalar",
    ],
    "cuda_group_norm": [
        "group_norm n=3 h=28 w=27 c=256 groups=32 dtype={} epilogue=scale,bias,relu",
        "group_norm n=2 h=64 w=64 c=64 groups=1 dtype={} epilogue=scale,bias,silu,add",
        "group_norm n=2 h=15 w=9 c=37 groups=37 dtype={} epilogue=none",
        "group_norm n=1 h=2 w=3 c=4104 groups=2 dtype={} epilogue=scale,store",
    ],
    "cuda_batch_norm_statistics": [
        "batch_norm_statistics n=9 h=56 w=57 c=64 dtype={}",
        "batch_norm_statistics n=3 h=7 w=7 c=2048 dtype={}",
        "batch_norm_statistics n=2 h=13 w=9 c=37 dtype={}",
    ],
    "cuda_batch_norm_gradient_sums": [
        "batch_norm_gradient_sums n=9 h=56 w=57 c=64 relu=1 dtype={}",
        "batch_norm_gradient_sums n=3 h=28 w=28 c=256 relu=2 gradients=2 dtype={}",
        "batch_norm_gradient_sums n=3 h=7 w=7 c=2048 relu=2 dtype={}",
        "batch_norm_gradient_sums n=2 h=13 w=9 c=38 gradients=2 dtype={}",
    ],
    "cuda_batch_norm_gradient": [
        "batch_norm_gradient n=9 h=56 w=57 c=64 relu=1 dtype={}",
        "batch_norm_gradient n=3 h=7 w=7 c=2048 dtype={}",
        "batch_norm_gradient n=2 h=13 w=9 c=37 relu=1 dtype={}",
    ],
    "cuda_relu_gradient_sums": [
        "relu_gradient_sums n=9 h=56 w=57 c=64 dtype={}",
        "relu_gradient_sums n=3 h=28 w=28 c=256 product=1 pool=3 stride=2 pad=1 dtype={}",
        "relu_gradient_sums n=3 h=7 w=7 c=2048 product=1 dtype={}",
        "relu_gradient_sums n=2 h=13 w=9 c=38 pool=2 stride=2 dtype={}",
        "relu_gradient_sums n=2 h=14 w=11 c=24 product=1 pool=3 pad=1 dtype={}",
        "relu_gradient_sums n=2 h=11 w=12 c=13 pool=2 stride=3 dtype={}",
    ],
    "cuda_upsample": [
        "upsample n=2 h=64 w=64 c=21 p=512 q=512 rows=1,8 columns=1,8 mode=bilinear dtype={} epilogue=none",
        "upsample n=2 h=14 w=13 c=64 p=28 q=26 rows=1,2 columns=1,2 mode=nearest dtype={} epilogue=add,relu",
        "upsample n=1 h=9 w=30 c=36 p=25 q=11 rows=8,24 columns=29,10 mode=bilinear_corners dtype={} epilogue=bias",
        "upsample n=3 h=7 w=5 c=3 p=9 q=8 rows=7,9 columns=5,8 mode=nearest_exact dtype={} epilogue=silu,store",
        "upsample n=2 h=13 w=9 c=12 p=52 q=18 rows=1,4 columns=1,2 mode=bilinear dtype={} epilogue=bias,add,store",
    ],
    "cuda_depth_to_space": [
        "depth_to_space n=3 h=16 w=15 c=64 block=2 dtype={} epilogue=bias,relu",
        "depth_to_space n=2 h=17 w=8 c=3 block=3 inner=1 dtype={} epilogue=add",
        "depth_to_space n=2 h=5 w=6 c=40 block=1,3 inner=1 dtype={} epilogue=store,gelu",
    ],
    "cuda_to_channels_last": [
        "to_channels_last n=3 h=12 w=10 c=3 to=8 dtype={}",
        "to_channels_last n=2 h=5 w=7 c=3 to=3 dtype={} epilogue=scale,bias",
        "to_channels_last n=2 h=6 w=6 c=20 to=36 dtype={} epilogue=add,relu",
    ],
    "cuda_stem": [
        "stem n=3 h=9 w=56 c=3 k=64 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1 dtype={} epilogue=bias,relu",
        "stem n=2 h=36 w=34 c=4 k=40 r=5 s=5 stride=2 pad=2 pool=3 pool_stride=2 pool_pad=1 dtype={} epilogue=store",
        "stem n=2 h=31 w=40 c=3 k=32 r=3 s=3 stride=2 pad=1 dtype={} epilogue=bias,silu,add",
        "stem n=1 h=70 w=130 c=1 k=104 r=7 s=7 stride=2 pad=3 dtype={} epilogue=none",
    ],
    "cuda_mma_se_tail": [
        "se_tail n=3 h=5 w=3 c=96 hidden=4 dtype={} epilogue=add,relu,add_scalar",
        "se_tail n=2 h=16 w=16 c=64 hidden=12 dtype={} epilogue=add,relu",
        "se_tail n=303 h=2 w=2 c=512 hidden=32 dtype={} epilogue=add,relu,store,add_scalar",
        "se_tail n=9 h=1 w=1 c=416 hidden=36 dtype={} epilogue=none",
        "se_tail n=7 h=4 w=3 c=32 hidden=64 dtype={} epilogue=swish_b,add,tanh,mul_scalar,hardsigmoid,bent,relu6",
    ],
    "cuda_se_tail": [
        "se_tail n=3 h=5 w=3 c=72 hidden=5 dtype={} epilogue=add,relu,add_scalar",
        "se_tail n=2 h=16 w=16 c=64 hidden=4 dtype={} epilogue=add,relu",
        "se_tail n=303 h=2 w=2 c=512 hidden=32 dtype={} epilogue=add,relu",
        "se_tail n=2 h=1 w=1 c=512 hidden=33 dtype={} epilogue=none",
        "se_tail n=2 h=4 w=3 c=32 hidden=4 dtype={} epilogue=swish_b,add,tanh,mul_scalar,hardsigmoid,bent,relu6",
    ],
    "cuda_expand_depthwise": [
        "expand_depthwise n=3 h=13 w=9 c=24 k=72 r=3 s=3 pad=1 dtype={} epilogue=bias,silu,conv,bias,silu",
        "expand_depthwise n=2 h=28 w=28 c=40 k=240 r=5 s=5 stride=2 pad=2 dtype={} epilogue=bias,relu6,conv,bias,add",
        "expand_depthwise n=1 h=56 w=56 c=24 k=144 r=3 s=3 pad=1 dtype={} epilogue=bias,hardswish,conv,bias,store,relu",
        "expand_depthwise n=5 h=7 w=7 c=192 k=1152 r=5 s=5 pad=2 dtype={} epilogue=bias,silu,conv,bias,silu",
    ],
    "cuda_inverted_residual": [
        "inverted_residual n=3 h=13 w=9 c=24 hidden=72 k=40 r=3 s=3 pad=1 dtype={} "
        "epilogue=bias,silu,conv,bias,silu,conv",
        "inverted_residual n=2 h=28 w=28 c=40 hidden=240 k=80 r=5 s=5 stride=2 pad=2 dtype={} "
        "epilogue=bias,relu6,conv,bias,relu6,conv,bias",
        "inverted_residual n=1 h=56 w=56 c=24 hidden=144 k=24 r=3 s=3 pad=1 dtype={} "
        "epilogue=bias,hardswish,conv,bias,hardswish,conv,bias,add,store",
        "inverted_residual n=5 h=7 w=7 c=160 hidden=960 k=160 r=3 s=3 pad=1 dtype={} "
        "epilogue=bias,relu6,conv,bias,relu6,conv,bias,add",
    ],
    "cuda_conv2d_pair": [
        "conv2d_pair n=3 h=13 w=9 c=40 hidden=48 k=72 r=3 s=3 pad=1 dtype={} epilogue=bias,relu,conv,bias,relu",
        "conv2d_pair n=2 h=56 w=56 c=256 hidden=64 k=64 r=3 s=3 pad=1 dtype={} epilogue=bias,relu,conv,bias,relu",
        "conv2d_pair n=2 h=29 w=28 c=256 hidden=128 k=128 r=3 s=3 stride=2 pad=1 dtype={} epilogue=bias,silu,conv,bias",
        "conv2d_pair n=7 h=32 w=32 c=16 hidden=16 k=16 first_r=3 first_s=3 first_pad=1 r=3 s=3 pad=1 dtype={} "
        "epilogue=bias,relu,conv,bias,add,relu",
        "conv2d_pair n=5 h=16 w=16 c=32 hidden=64 k=64 first_r=3 first_s=3 first_stride=2 first_pad=1 r=3 s=3 pad=1 "
        "dtype={} epilogue=bias,relu,conv,bias,add,store,relu",
        "conv2d_pair n=9 h=7 w=7 c=64 hidden=80 k=136 first_r=3 first_s=3 first_pad=1 r=3 s=3 pad=1 dtype={} "
        "epilogue=scale,bias,relu,conv,bias,add,relu",
        "conv2d_pair n=2 h=28 w=28 c=64 hidden=64 k=256 first_r=3 first_s=3 first_pad=1 dtype={} "
        "epilogue=bias,relu,conv,bias,add,relu",
    ],
    "sm90_conv2d_gradient_sums": [
        "conv2d_gradient_sums n=9 h=56 w=56 c=64 k=256 relu=2 gradients=2 dtype={}",
        "conv2d_gradient_sums n=32 h=28 w=28 c=128 k=128 r=3 s=3 pad=1 relu=1 dtype={}",
        "conv2d_gradient_sums n=17 h=14 w=13 c=256 k=512 relu=2 dtype={}",
        "conv2d_gradient_sums n=3 h=7 w=7 c=512 k=2048 gradients=2 dtype={}",
        "conv2d_gradient_sums n=2 h=13 w=9 c=40 k=72 r=3 s=2 stride=2,1 pad=1 dilation=1,2 relu=1 gradients=2 dtype={}",
    ],
    "sm90_conv2d_statistics": [
        "conv2d_statistics n=9 h=56 w=56 c=64 k=256 dtype={}",
        "conv2d_statistics n=32 h=28 w=28 c=128 k=128 r=3 s=3 pad=1 dtype={}",
        "conv2d_statistics n=17 h=14 w=13 c=256 k=512 r=3 s=3 stride=2 pad=1 dtype={}",
        "conv2d_statistics n=3 h=7 w=7 c=512 k=2048 dtype={}",
        "conv2d_statistics n=2 h=13 w=9 c=40 k=72 r=3 s=2 stride=2,1 pad=1 dilation=1,2 dtype={}",
    ],
    "sm90_conv2d_skip": [
        "conv2d_skip n=9 h=56 w=56 c=64 k=256 skip_h=56 skip_w=56 skip_c=64 dtype={} epilogue=bias,relu",
        "conv2d_skip n=7 h=14 w=13 c=256 k=1024 skip_h=28 skip_w=26 skip_c=512 skip_stride=2 dtype={} epilogue=bias",
        "conv2d_skip n=5 h=8 w=5 c=40 k=72 r=3 s=3 pad=1 skip_h=15 skip_w=10 skip_c=24 skip_stride=2 dtype={} "
        "epilogue=bias,add,store,relu",
        "conv2d_skip n=1 h=11 w=9 c=16 k=40 r=3 s=2 stride=2,1 pad=1 dilation=1,2 skip_h=6 skip_w=9 skip_c=8 dtype={}",
    ],
    "sm90_pointwise_pair": [
        "pointwise_pair n=9 h=56 w=56 c=64 hidden=256 k=64 dtype={} epilogue=bias,add,relu,store,conv,bias,relu",
        "pointwise_pair n=17 h=28 w=27 c=128 hidden=512 k=256 dtype={} epilogue=bias,add,relu,store,conv,bias,relu",
        "pointwise_pair n=3137 h=1 w=1 c=96 hidden=384 k=96 dtype={} epilogue=bias,gelu,conv,bias,add",
        "pointwise_pair n=2 h=7 w=7 c=40 hidden=88 k=24 dtype={} epilogue=scale,bias,silu,conv,store,bias,mul_scalar",
        "pointwise_pair n=1 h=5 w=5 c=24 hidden=144 k=216 dtype={} epilogue=swish_b,sub,store,conv,relu6,add",
    ],
    "cuda_se_gates": [
        "se_gates n=3 h=5 w=3 c=72 hidden=5 act=silu gate=sigmoid dtype={}",
        "se_gates n=2 h=16 w=16 c=64 hidden=4 act=relu gate=hardsigmoid dtype={} epilogue=add_scalar",
        "se_gates n=303 h=2 w=2 c=512 hidden=32 act=hardswish gate=sigmoid dtype={}",
        "se_gates n=1 h=56 w=56 c=144 hidden=6 act=silu gate=sigmoid dtype={}",
    ],
    "cuda_squeeze_excite": [
        "squeeze_excite n=3 h=5 w=3 c=72 hidden=5 act=silu gate=sigmoid dtype={} epilogue=add,relu,add_scalar",
        "squeeze_excite n=2 h=16 w=16 c=64 hidden=4 act=relu gate=hardsigmoid dtype={}",
        "squeeze_excite n=303 h=2 w=2 c=512 hidden=32 act=hardswish gate=sigmoid dtype={} epilogue=add",
        "squeeze_excite n=1 h=56 w=56 c=144 hidden=6 act=silu gate=sigmoid dtype={} epilogue=silu",
    ],
    "cuda_space_to_depth": [
        "space_to_depth n=3 h=12 w=24 c=3 block=4 dtype={}",
        "space_to_depth n=2 h=10 w=16 c=1 block=2 dtype={}",
        "space_to_depth n=1 h=8 w=8 c=5 block=8 dtype={}",
    ],
}


STREAMED = ("cutlass2_gemm", "cutlass2_conv2d_dgrad", "cutlass2_conv2d_wgrad")


@pytest.fixture(scope="module")
def device():
    return torch.device("cuda:0")


@pytest.fixture(scope="module")
def arch():
    major, minor = torch.cuda.get_device_capability()
    return of_capability(10 * major + minor)


def target():
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def kernels_for(name, problem, arch, count):
    """A few configs that can solve the problem, at random but always the same."""
    chosen = family(name)
    usable = chosen.configs_for(problem, arch)
    sample = random.Random(str(problem)).sample(usable, min(count, len(usable)))
    return [Kernel.of(name, config, problem.dtype, problem.epilogue, target()) for config in sample]


@pytest.fixture(scope="module")
def trials(arch, request):
    """(family, dtype) -> (problem, kernel) pairs, with the binaries of those to be tested, compiled together."""
    wanted = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    pairs = {
        (name, dtype): [
            (problem, kernel)
            for text in texts
            for problem in [parse(text.format(dtype))]
            for kernel in kernels_for(name, problem, arch, 8 if name.startswith("sm90") or name == "cuda_stem" else 2)
        ]
        for name, texts in PROBLEMS.items()
        if name in wanted
        for dtype in arch.dtypes
        if dtype in DTYPES and dtype in family(name).dtypes and arch.name in family(name).architectures
    }
    jobs = len(os.sched_getaffinity(0))
    return pairs, built_paths((kernel for found in pairs.values() for _, kernel in found), jobs)


def test_every_cuda_family_is_tested_here():
    found = {name for name, found in families().items() if found.kind == DEVICE_IMAGE}
    in_bytes = {"cuda_cast", "cuda_stem_cast", *(name for name in found if name.startswith("sm90_e4m3_"))}  # _precision
    assert set(PROBLEMS) | in_bytes == found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernels_solve_odd_problems(name, dtype, trials, arch, device):
    pairs, paths = trials
    if (name, dtype) not in pairs:
        pytest.skip(f"{name} has no {dtype} for {arch.name}")
    chosen, launched = family(name), set()
    for problem, kernel in pairs[name, dtype]:
        case = CandidateBench(problem, device, seed=1)
        expected = solve(problem, case.tensors, case.scalars)
        for launch in chosen.launches(problem, kernel.values, arch):
            result = case.run(candidate_of(kernel, paths[kernel], launch))
            assert result.status == "ok", f"{problem} {kernel} {launch}: {result.error}"
            assert result.median_us > 0
            launched.add(tuple(launch.values()))
            for key, value in expected.items():
                error = relative_error(case.tensors[key], value)
                assert error < LIMIT[dtype], f"{key} of {problem} {kernel} {launch}: {error}"
    if name.startswith("cutlass2") and dtype != "f32":
        assert {slices for _, slices, *_ in launched} > {1} and {swizzle for swizzle, *_ in launched} > {0}
    if name in STREAMED:
        assert {stream for *_, stream in launched} > {0}


@pytest.mark.parametrize(
    ("name", "how"),
    [("cutlass2_conv2d", "slices"), *((name, how) for name in STREAMED for how in ("slices", "stream"))],
)
def test_sums_of_several_blocks_give_the_same_bits_each_time(name, how, trials, arch, device):
    pairs, paths = trials
    for problem, kernel in pairs[name, "f16"]:
        launches = family(name).launches(problem, kernel.values, arch)
        split = [launch for launch in launches if launch[how] > (how == "slices")]
        if not split:
            continue
        case = CandidateBench(problem, device)
        step = case.bind(candidate_of(kernel, paths[kernel], split[-1]))
        assert_same_bits(case, step, f"{problem} {kernel}")
        return
    pytest.fail(f"no launch has {how}")


def test_a_problem_that_a_kernel_cannot_solve_is_refused(trials, device):
    pairs, paths = trials
    for name, text in [
        ("cutlass2_conv2d", "conv2d n=1 h=4 w=4 c=12 k=16 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d", "conv2d n=1 h=4 w=4 c=16 k=16 groups=2 dtype=f16 epilogue={}"),
        ("cutlass2_gemm", "conv2d n=1 h=4 w=4 c=16 k=16 r=3 s=3 pad=1 dtype=f16 epilogue={}"),
        ("cutlass2_gemm", "gemm m=4 n=16 k=17 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d_dgrad", "conv2d_dgrad n=1 h=8 w=8 c=16 k=16 stride=2,2 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d_dgrad", "conv2d_dgrad n=1 h=4 w=4 c=16 k=16 groups=2 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d_wgrad", "conv2d_wgrad n=1 h=4 w=4 c=16 k=15 dtype=f16 epilogue={}"),
        ("cuda_depthwise_conv2d", "conv2d n=1 h=4 w=4 c=16 k=16 r=3 s=3 pad=1 groups=8 dtype=f16 epilogue={}"),
        ("cuda_se_tail", "se_tail n=1 h=4 w=4 c=12 hidden=2 dtype=f16 epilogue={}"),
        ("cuda_space_to_depth", "space_to_depth n=1 h=9 w=9 c=3 block=3 dtype=f16 epilogue={}"),
        ("sm90_strip_se_block", "stem_se_block n=1 h=64 w=64 c=2 k=64 block=4 hidden=4 dtype=f16 epilogue={}"),
        ("sm90_strip_se_block", "stem_se_block n=1 h=32 w=32 c=3 k=64 block=2 hidden=4 dtype=f16 epilogue={}"),
        ("sm90_se_down_block", "se_down_block n=1 h=32 w=16 c=64 k=128 hidden=8 dtype=f16 epilogue={}"),
        ("sm90_se_down_block", "se_down_block n=1 h=16 w=16 c=64 k=32 hidden=8 dtype=f16 epilogue={}"),
    ]:
        kernel = pairs[name, "f16"][0][1]
        launch = {parameter.name: parameter.values[0] for parameter in family(name).launch_parameters}
        case = CandidateBench(parse(text.format(kernel.epilogue)), device)
        result = case.run(candidate_of(kernel, paths[kernel], launch))
        assert result.status == "refused"
        assert result.error and "refuses the problem: " in result.error
        assert "not supported" not in result.error, f"{kernel} gives no reason for {text}"


def test_a_broken_image_is_an_error_of_one_sentence(trials, device, tmp_path):
    pairs, paths = trials
    problem, kernel = pairs["cuda_avg_pool2d", "f16"][0]
    broken = tmp_path / "broken.cubin"
    broken.write_bytes(paths[kernel].read_bytes()[:100])
    with pytest.raises(EngineError) as error:
        CandidateBench(problem, device).run(candidate_of(kernel, broken, {}))
    assert "\n" not in str(error.value)
