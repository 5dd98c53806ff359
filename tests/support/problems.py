"""Problems for tests: a text for each operator, and random convolutions."""

import random
from typing import Any

TEXTS = [
    "conv2d n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 dtype=f32 epilogue=bias,relu",
    "conv2d_dgrad n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 dtype=f16 epilogue=none",
    "conv2d_wgrad n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 dtype=bf16 epilogue=none",
    "conv2d_se n=2 h=3 w=9 c=4 k=8 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=4 hidden=3 dtype=f32 epilogue=gate",
    "conv2d_broadcast n=2 h=5 w=9 c=8 k=16 r=3 s=1 stride=1,2 pad=1,0 dilation=1,1 groups=2 dtype=f32 "
    "epilogue=bias,mul_image,add,relu",
    "conv2d_folded_se n=2 h=3 w=9 c=4 k=8 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=1 hidden=3 dtype=f32 "
    "epilogue=gate",
    "conv2d_se_skip n=2 h=3 w=9 c=4 k=8 r=5 s=3 stride=2,1 pad=2,1 dilation=1,2 groups=1 hidden=3 skip_c=6 "
    "skip_groups=2 dtype=f32 epilogue=bias,gate,project",
    "patch_conv2d n=2 h=8 w=12 c=3 k=16 block=4 dtype=bf16 epilogue=relu",
    "gemm m=3 n=7 k=5 dtype=f32 epilogue=bias,relu",
    "avg_pool2d n=1 h=7 w=8 c=3 r=3 s=2 stride=2,3 pad=1,0 dtype=bf16 epilogue=none",
    "clipped_avg_pool2d n=1 h=7 w=8 c=3 r=3 s=2 stride=2,3 pad=1,0 ceil=1 dtype=bf16 epilogue=none",
    "adaptive_avg_pool2d n=1 h=7 w=8 c=3 p=5 q=3 dtype=bf16 epilogue=relu",
    "max_pool2d n=1 h=7 w=8 c=3 r=3 s=2 stride=2,3 pad=1,0 ceil=1 dtype=f16 epilogue=relu",
    "max_pool2d_places n=1 h=7 w=8 c=3 r=3 s=2 stride=2,3 pad=1,0 ceil=1 dtype=f16 epilogue=none",
    "max_pool2d_places_gradient n=1 h=7 w=8 c=3 r=3 s=2 stride=2,3 pad=1,0 ceil=1 dtype=f16 epilogue=none",
    "global_avg_pool2d n=1 h=7 w=8 c=3 dtype=f16 epilogue=none",
    "layer_norm n=1 h=7 w=8 c=3 dtype=f16 epilogue=scale,bias",
    "group_norm n=1 h=7 w=8 c=6 groups=2 dtype=f16 epilogue=scale,bias,relu",
    "group_statistics n=2 h=7 w=8 c=6 groups=2 dtype=f16 epilogue=none",
    "normalize n=2 h=7 w=8 c=6 dtype=f16 epilogue=scale,bias,silu",
    "conv2d_statistics n=2 h=7 w=8 c=8 k=24 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f16 epilogue=none",
    "conv2d_gradient_sums n=2 h=7 w=8 c=8 k=24 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 relu=2 gradients=2 "
    "dtype=f16 epilogue=none",
    "batch_norm_statistics n=2 h=7 w=8 c=24 dtype=f16 epilogue=none",
    "batch_norm_gradient_sums n=2 h=7 w=8 c=24 relu=2 gradients=2 dtype=f16 epilogue=none",
    "batch_norm_gradient n=2 h=7 w=8 c=24 relu=1 dtype=f16 epilogue=none",
    "relu_gradient_sums n=2 h=7 w=8 c=24 product=1 pool=3 stride=2 pad=1 dtype=f16 epilogue=none",
    "softmax n=1 h=7 w=8 c=3 dtype=f16 epilogue=none",
    "upsample n=1 h=7 w=8 c=3 p=14 q=9 rows=1,2 columns=8,9 mode=bilinear dtype=f16 epilogue=add",
    "elementwise n=1 h=7 w=8 c=3 dtype=f16 epilogue=add,relu",
    "cast n=1 h=7 w=8 c=3 result=s8 dtype=f16 epilogue=mul_scalar,add",
    "concat n=2 h=7 w=8 pieces=8,4:12/16,0:4/8 interleave=2 dtype=f16 epilogue=scale,bias,relu,mul_image,add_pixel",
    "to_channels_last n=2 h=8 w=12 c=3 to=8 dtype=f16 epilogue=none",
    "space_to_depth n=2 h=8 w=12 c=3 block=4 dtype=f16 epilogue=none",
    "depth_to_space n=2 h=3 w=4 c=3 block=2,3 inner=1 dtype=f16 epilogue=bias",
    "stem n=2 h=8 w=9 c=3 k=16 r=7 s=7 stride=2,2 pad=3,3 pool=3 pool_stride=2 pool_pad=1 dtype=f16 epilogue=bias,relu",
    "stem_cast n=2 h=8 w=9 c=3 k=16 r=7 s=7 stride=2,2 pad=3,3 pool=3 pool_stride=2 pool_pad=1 result=s8 dtype=f16 "
    "epilogue=bias,relu,mul_scalar",
    "se_tail n=2 h=3 w=4 c=16 hidden=2 dtype=f16 epilogue=add,relu,add_scalar",
    "squeeze_excite n=2 h=3 w=4 c=16 hidden=2 act=silu gate=hardsigmoid dtype=f16 epilogue=add,relu",
    "se_gates n=2 h=9 w=7 c=24 hidden=6 act=silu gate=sigmoid dtype=f16 epilogue=none",
    "concat_conv2d n=2 h=9 w=7 pieces=8,0:16/24 k=24 dtype=f16 epilogue=scale,bias,relu,conv,bias,mul_image",
    "expand_depthwise n=2 h=9 w=7 c=8 k=24 r=3 s=3 stride=2,2 pad=1,1 dtype=f16 epilogue=bias,silu,conv,bias,relu",
    "inverted_residual n=2 h=9 w=7 c=8 hidden=24 k=16 r=3 s=3 stride=2,2 pad=1,1 dtype=f16 "
    "epilogue=bias,relu6,conv,bias,silu,conv,bias,add",
    "conv2d_skip n=2 h=9 w=7 c=8 k=16 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 skip_h=17 skip_w=13 skip_c=24 "
    "skip_stride=2,2 dtype=f16 epilogue=bias,relu",
    "conv2d_pair n=2 h=9 w=7 c=8 hidden=24 k=16 first_r=1 first_s=1 first_stride=1,1 first_pad=0,0 r=3 s=3 stride=2,2 "
    "pad=1,1 dtype=f16 epilogue=bias,relu,conv,bias,add,relu",
    "pointwise_pair n=2 h=9 w=7 c=8 hidden=24 k=16 dtype=f16 epilogue=bias,add,relu,store,conv,bias,add,relu",
    "se_block n=2 h=3 w=4 c=16 hidden=2 dtype=f16 epilogue=bias,conv,gate,add,relu",
    "stem_se_block n=2 h=8 w=12 c=3 k=16 block=4 hidden=2 dtype=f16 epilogue=relu,keep,conv,bias,conv,gate,add_kept",
    "stem_se_block_pool n=2 h=8 w=12 c=3 k=16 block=4 hidden=2 dtype=f16 epilogue=keep,conv,conv,gate,add_kept,relu",
    "se_down_block n=2 h=7 w=8 c=16 k=24 hidden=2 dtype=f16 epilogue=bias,relu,conv,gate,project,relu",
]


def random_conv(rng: random.Random) -> dict[str, Any]:
    """Return random sizes of a convolution, as fields of Conv2d."""
    groups = rng.choice((1, 1, 2, 3))
    return {
        "n": rng.randint(1, 3),
        "h": rng.randint(7, 20),
        "w": rng.randint(7, 20),
        "c": groups * rng.randint(1, 4),
        "k": groups * rng.randint(1, 4),
        "r": rng.randint(1, 3),
        "s": rng.randint(1, 3),
        "stride": (rng.randint(1, 3), rng.randint(1, 3)),
        "pad": (rng.randint(0, 3), rng.randint(0, 3)),
        "dilation": (rng.randint(1, 3), rng.randint(1, 3)),
        "groups": groups,
    }
