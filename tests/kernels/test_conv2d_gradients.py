"""Gradients of convolutions on a GPU, with respect to the input and to the weights: the kernels' text, run on a CPU."""

import math

import pytest
from comparison import LIMIT, relative_error
from emulator import Emulated
from kernels import assert_not_serialized, proposed, random_inputs
from reference import solve
from repository import table_of

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse

SM80, SM90 = architecture("sm80"), architecture("sm90")
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
WIDE = {
    **{"instruction": "wgmma", "tile_k": 64, "tile_q": 112, "parts": 2, "together": 1, "stages": 4, "resident": 1},
    **{"filter": 7, "stride": 2, "channels": 3},
}


CASES = table_of(__file__)
"""Family -> case -> what differs in the config, and the problem."""


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
    ("name", "config", "text"),
    [
        pytest.param(name, *case, id=f"{name}: {said}", marks=pytest.mark.daily(3, f"gradients of {name}"))
        for name, cases in CASES.items()
        for said, case in cases.items()
    ],
)
def test_the_kernels_text_computes_the_gradient(name, config, text, tmp_path):
    problem, config, arch = parse(text), PLAIN[name] | config, SM90
    if name == "cuda_narrow_conv2d_wgrad":
        config |= {"filter": problem.r, "stride": problem.stride[0], "channels": problem.c}
        arch = SM90 if config["instruction"] == "wgmma" else SM80
    kernel = Emulated(proposed(name, problem, config, arch), tmp_path)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)["y"]
    launches = family(name).launches(problem, config, arch)
    assert all(0 < kernel.shared_bytes(problem, launch) <= arch.block_shared for launch in launches)
    cluster = math.prod(config.get(part, 1) for part in ("slices", "cluster_m", "cluster_k", "cluster_n"))
    limit = LIMIT[problem.dtype] if name == "cuda_narrow_conv2d_wgrad" else 1e-2
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
        ("cuda_narrow_conv2d_wgrad", WIDE),
    ],
)
def test_the_products_overlap(name, config, tmp_path):
    assert_not_serialized(Kernel.of(name, PLAIN[name] | config, "f16", Epilogue(), "sm_90"), tmp_path)
