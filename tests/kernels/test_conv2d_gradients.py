"""Gradients of convolutions on a GPU, with respect to the input and to the weights: the kernels' text, run on a CPU."""

import math

import pytest
from comparison import relative_error
from emulator import Emulated
from kernels import assert_not_serialized, proposed, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse

SM80, SM90 = architecture("sm80"), architecture("sm90")
NARROW = ("instruction", "tile_k", "tile_q", "parts", "together", "stages", "resident")
PLAIN = {
    "sm90_conv2d_wgrad": {
        **{"filter_rows": 1, "filter_columns": 1, "joined": 0, "tile_k": 64, "tile_c": 64, "images": 16, "slices": 1}
    },
    "sm90_im2col_wgrad": {"tile_k": 64, "tile_n": 64, "groups": 1, "slices": 1, "cluster_k": 1, "cluster_n": 1},
    "sm90_strided_dgrad": {"tile_m": 64, "tile_n": 64, "groups": 1, "blocks": 1, "cluster_m": 1},
    "cuda_narrow_conv2d_wgrad": {},
}
"""Family -> the config from which those of the cases differ."""
SQUARE = {"filter_rows": 3, "filter_columns": 3}


def narrow(*values):
    return dict(zip(NARROW, values, strict=True))


CASES = {
    "sm90_conv2d_wgrad": {
        "1x1, several channels": ({"tile_k": 128, "tile_c": 128}, "n=33 h=3 w=5 c=136 k=136 r=1 s=1"),
        "1x1, stride 2": ({"tile_c": 128, "images": 32}, "n=70 h=5 w=7 c=72 k=40 r=1 s=1 stride=2"),
        "3x3, joined": (SQUARE | {"joined": 1}, "n=20 h=6 w=5 c=40 k=72 r=3 s=3 pad=1"),
        "3x3, joined, stride 2": (SQUARE | {"joined": 1}, "n=17 h=9 w=8 c=64 k=64 r=3 s=3 pad=1 stride=2"),
        "3x3, skipped padding": (SQUARE, "n=33 h=2 w=2 c=72 k=64 r=3 s=3 pad=1"),
        "3x3, skipped padding, stride 2": (SQUARE | {"images": 32}, "n=40 h=4 w=4 c=64 k=72 r=3 s=3 pad=1 stride=2"),
        "3x3, dilation": (SQUARE, "n=16 h=9 w=7 c=64 k=64 r=3 s=3 pad=2 dilation=2"),
        "5x2, groups of taps": (
            SQUARE | {"filter_columns": 2, "joined": 1},
            "n=16 h=7 w=6 c=16 k=24 r=5 s=2 pad=2,1 stride=1,2",
        ),
        "5x5, a cluster": (SQUARE | {"slices": 2}, "n=31 h=6 w=5 c=64 k=16 r=5 s=5 pad=2"),
        "3x3, a cluster of eight": (SQUARE | {"joined": 1, "slices": 8}, "n=35 h=5 w=4 c=64 k=64 r=3 s=3 pad=1"),
    },
    "sm90_im2col_wgrad": {
        "one tile": ({}, "n=5 h=9 w=7 c=64 k=64"),
        "two warpgroups, wide columns": ({"tile_k": 128, "tile_n": 256, "groups": 2}, "n=3 h=8 w=13 c=264 k=136"),
        "several blocks of a warpgroup": ({"tile_k": 256, "groups": 2}, "n=2 h=11 w=12 c=40 k=200"),
        "three warpgroups": ({"tile_k": 192, "tile_n": 128, "groups": 3}, "n=4 h=7 w=7 c=128 k=192"),
        "3x3, tiles of several taps": ({"tile_n": 192}, "n=3 h=9 w=11 c=40 k=64 r=3 s=3 pad=1"),
        "3x3, stride 2": ({"tile_n": 128}, "n=9 h=8 w=7 c=136 k=72 r=3 s=3 pad=1 stride=2"),
        "3x2, dilation, a cluster": (
            {"tile_k": 128, "tile_n": 256, "groups": 2, "slices": 2},
            "n=9 h=10 w=9 c=64 k=104 r=3 s=2 pad=2,1 stride=1,2 dilation=2",
        ),
        "1x1, stride 2": ({}, "n=7 h=9 w=10 c=64 k=64 stride=2"),
        "a cluster": ({"slices": 4}, "n=7 h=10 w=11 c=72 k=24"),
        "two tiles share x": ({"tile_n": 128, "cluster_k": 2}, "n=7 h=9 w=7 c=96 k=104"),
        "four tiles share x, two split the pixels": (
            {"tile_n": 256, "cluster_k": 4, "slices": 2},
            "n=5 h=10 w=9 c=64 k=232 r=2 s=2 pad=1",
        ),
        "two tiles share dy": (
            {"tile_k": 128, "groups": 2, "cluster_n": 2, "slices": 2},
            "n=30 h=9 w=9 c=64 k=128 r=2 s=3 stride=2",
        ),
        "a cluster of eight": ({"tile_k": 128, "slices": 8}, "n=9 h=9 w=9 c=64 k=128"),
    },
    "sm90_strided_dgrad": {
        "3x3": ({}, "n=3 h=10 w=14 c=64 k=72 r=3 s=3 stride=2 pad=1"),
        "3x3, two warpgroups, odd image": (
            {"tile_m": 256, "groups": 2},
            "n=5 h=15 w=13 c=40 k=136 r=3 s=3 stride=2 pad=1",
        ),
        "3x3, fewer pixels than a tile": ({"tile_n": 96, "blocks": 3}, "n=2 h=6 w=7 c=96 k=64 r=3 s=3 stride=2 pad=1"),
        "1x1, phases without taps": ({"tile_n": 32}, "n=3 h=9 w=8 c=40 k=64 r=1 s=1 stride=2"),
        "7x5, along one axis": ({"tile_n": 32}, "n=1 h=17 w=12 c=24 k=16 r=7 s=5 stride=2,1 pad=3,2"),
        "2x4, no padding": ({"blocks": 2}, "n=2 h=8 w=11 c=64 k=64 r=2 s=4 stride=2"),
        "3x3, dilation 2": ({}, "n=2 h=13 w=12 c=64 k=64 r=3 s=3 stride=2 pad=2 dilation=2"),
        "3x3, dilation 3": ({"tile_m": 128}, "n=2 h=12 w=17 c=64 k=40 r=3 s=3 stride=1,2 pad=3 dilation=3"),
        "3x3, a pair": ({"cluster_m": 2}, "n=3 h=10 w=14 c=72 k=136 r=3 s=3 stride=2 pad=1"),
        "2x2, a cluster of four, one without pixels of its own": (
            {"tile_n": 32, "blocks": 2, "cluster_m": 4},
            "n=7 h=14 w=12 c=40 k=64 r=2 s=2 stride=2",
        ),
        "one pixel": ({}, "n=70 h=1 w=1 c=64 k=64 r=3 s=3 stride=2 pad=1"),
    },
    # Strips that are full and not; one image a block and several; output channels and filter rows beyond the last.
    "cuda_narrow_conv2d_wgrad": {
        "7x7, stride 2": (narrow("mma", 64, 32, 1, 1, 2, 1), "n=2 h=18 w=34 c=3 k=64 r=7 s=7 stride=2 pad=3 dtype=f16"),
        "7x7, stride 2, two rows": (
            narrow("mma", 64, 16, 1, 2, 3, 1),
            "n=3 h=9 w=30 c=3 k=72 r=7 s=7 stride=2 pad=3 dtype=bf16",
        ),
        "7x7, four channels": (
            narrow("mma", 32, 16, 1, 2, 4, 2),
            "n=1 h=11 w=21 c=4 k=24 r=7 s=7 stride=2 pad=3 dtype=f16 epilogue=mul_scalar",
        ),
        "5x5, parts": (narrow("mma", 64, 64, 2, 1, 2, 1), "n=2 h=7 w=60 c=3 k=40 r=5 s=5 pad=2 dtype=f16"),
        "5x5, stride 2, one channel": (
            narrow("mma", 32, 64, 4, 2, 4, 1),
            "n=2 h=12 w=120 c=1 k=32 r=5 s=5 stride=2 pad=2 dtype=bf16",
        ),
        "3x3, two channels": (
            narrow("mma", 64, 16, 1, 1, 3, 2),
            "n=5 h=6 w=14 c=2 k=64 r=3 s=3 stride=2 pad=1 dtype=f16 epilogue=add",
        ),
        "wgmma, 7x7": (narrow("wgmma", 64, 32, 1, 1, 4, 1), "n=2 h=20 w=34 c=3 k=64 r=7 s=7 stride=2 pad=3 dtype=f16"),
        "wgmma, 7x7, parts": (
            narrow("wgmma", 64, 32, 2, 1, 3, 1),
            "n=3 h=9 w=60 c=3 k=72 r=7 s=7 stride=2 pad=3 dtype=bf16",
        ),
        "wgmma, 5x5, two channels": (
            narrow("wgmma", 64, 64, 3, 1, 2, 1),
            "n=2 h=7 w=60 c=2 k=64 r=5 s=5 pad=2 dtype=f16 epilogue=scale",
        ),
        "3x3": (narrow("mma", 32, 32, 2, 2, 2, 1), "n=4 h=5 w=20 c=3 k=16 r=3 s=3 pad=1 dtype=f16 epilogue=scale"),
    },
}
"""Family -> case -> what differs in the config, and the problem."""

IN_BF16 = {
    "sm90_conv2d_wgrad": (("stride",), "mul_scalar,add"),
    "sm90_im2col_wgrad": (("cluster",), "mul_scalar,add"),
    "sm90_strided_dgrad": (("1x1", "dilation"), "mul_scalar,add,relu"),
}
"""Hopper's family -> words of the cases in bf16, and their steps; the others are in f16 and have none."""


def problem_of(name, case):
    text = f"{family(name).operators[0].operator} {CASES[name][case][1]}"
    if name not in IN_BF16:
        return parse(text)
    words, chain = IN_BF16[name]
    more = f"dtype=bf16 epilogue={chain}" if any(word in case for word in words) else "dtype=f16"
    return parse(f"{text} {more}")


def some_launches(name, problem, config, launches):
    """Return launches of a family, and some with few buffers and with few blocks."""
    if name == "sm90_conv2d_wgrad":
        span = (config["filter_rows"] - 1) * problem.dilation[0] // problem.stride[0] + 1
        slots = {"dy_slots": span + 1, "x_slots": 2 if config["filter_rows"] == 1 else problem.stride[0] + 1}
        tight = min(launches, key=lambda launch: launch["columns"]) | slots | {"splits": 1}
        return [*launches[:1], tight, tight | {"columns": 2, "splits": 3}, *launches[-1:]]
    if name == "sm90_im2col_wgrad":
        alone = {"slots": 2, "splits": 1}
        return [*launches, alone] if config["slices"] == 8 else [*launches, alone, alone | {"splits": 3}]
    if name == "sm90_strided_dgrad":
        return [*launches, {"slots": 2}]
    return [{"blocks": blocks} for blocks in (1, 3, launches[0]["blocks"])]  # one; a group; several groups


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}: {case}", marks=pytest.mark.daily(3, f"gradients of {name}"))
        for name, cases in CASES.items()
        for case in cases
    ],
)
def test_the_kernels_text_computes_the_gradient(name, case, tmp_path):
    problem, config, arch = problem_of(name, case), PLAIN[name] | CASES[name][case][0], SM90
    if name == "cuda_narrow_conv2d_wgrad":
        config |= {"filter": problem.r, "stride": problem.stride[0], "channels": problem.c}
        arch = SM90 if config["instruction"] == "wgmma" else SM80
    kernel = Emulated(proposed(name, problem, config, arch), tmp_path)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)["y"]
    launches = family(name).launches(problem, config, arch)
    assert all(0 < kernel.shared_bytes(problem, launch) <= arch.block_shared for launch in launches)
    cluster = math.prod(config.get(part, 1) for part in ("slices", "cluster_m", "cluster_k", "cluster_n"))
    limit = 1e-2 if name in IN_BF16 else {"f16": 1e-3, "bf16": 8e-3}[problem.dtype]
    for seed, launch in enumerate(some_launches(name, problem, config, launches)):
        found = kernel.run(problem, tensors, scalars, launch, cluster, seed)["y"]
        assert relative_error(found, expected) < limit, launch


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("sm90_im2col_wgrad", "conv2d_wgrad n=2 h=8 w=8 c=60 k=64", "multiples of 8"),
        ("sm90_im2col_wgrad", "conv2d_wgrad n=2 h=8 w=8 c=64 k=64 groups=2", "groups must be 1"),
        ("sm90_strided_dgrad", "conv2d_dgrad n=2 h=8 w=8 c=64 k=64 r=3 s=3 pad=1", "is a convolution"),
        ("sm90_strided_dgrad", "conv2d_dgrad n=2 h=9 w=9 c=64 k=64 r=3 s=3 stride=3", "stride must be at most 2"),
        ("sm90_strided_dgrad", "conv2d_dgrad n=2 h=8 w=8 c=60 k=64 r=3 s=3 stride=2 pad=1", "multiples of 8"),
        (
            "sm90_strided_dgrad",
            "conv2d_dgrad n=2 h=8 w=8 c=64 k=64 r=3 s=3 stride=2 pad=1 groups=2",
            "groups must be 1",
        ),
    ],
)
def test_what_a_family_does_not_solve_is_said(name, text, words):
    assert words in family(name).why_not_served(parse(f"{text} dtype=f16"), SM90)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("sm90_conv2d_wgrad", {"tile_k": 128, "tile_c": 256}),
        ("sm90_conv2d_wgrad", SQUARE),
        ("sm90_conv2d_wgrad", SQUARE | {"joined": 1}),
        ("sm90_im2col_wgrad", {}),
        ("sm90_im2col_wgrad", {"tile_k": 128, "tile_n": 256, "groups": 2, "slices": 2, "cluster_k": 2}),
        ("sm90_strided_dgrad", {}),
        ("sm90_strided_dgrad", {"tile_m": 128, "tile_n": 128, "groups": 2, "blocks": 2, "cluster_m": 2}),
        (
            "cuda_narrow_conv2d_wgrad",
            narrow("wgmma", 64, 112, 2, 1, 4, 1) | {"filter": 7, "stride": 2, "channels": 3},
        ),
    ],
)
def test_the_products_overlap(name, config, tmp_path):
    assert_not_serialized(Kernel.of(name, PLAIN[name] | config, "f16", Epilogue(), "sm_90"), tmp_path)
