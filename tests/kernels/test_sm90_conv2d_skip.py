"""A convolution plus the projection of a skip connection in one Hopper kernel: its own text, run on a CPU."""

import dataclasses

import pytest
from comparison import assert_right
from emulator import Emulated
from kernels import assert_not_serialized, proposed, random_inputs
from reference import solve
from repository import table_of

from autotune.core import ProblemError, architecture, ceil_div
from autotune.families import Kernel, family
from autotune.ir import BYTE_FORMATS, S8, Epilogue, parse, sum_error

SM90, FAMILY, E4M3 = architecture("sm90"), family("sm90_conv2d_skip"), family("sm90_e4m3_conv2d_skip")
CASES = table_of(__file__)["cases"]
"""Case -> the problem and the config."""


@pytest.mark.daily(3)
@pytest.mark.compile
@pytest.mark.parametrize(("text", "config"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_both_convolutions(text, config, tmp_path):
    _compare(FAMILY, config, text, tmp_path)


@pytest.mark.daily(1)
@pytest.mark.compile
@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("in bytes")])
def test_the_kernels_text_computes_both_convolutions_in_e4m3(case, tmp_path):
    text, config = CASES[case]
    _compare(E4M3, config | {"promote": 0}, text.replace("dtype=s8", "dtype=e4m3"), tmp_path)


def _compare(tested, config, text, folder):
    problem = parse(f"conv2d_skip {text}")
    emulated = Emulated(proposed(tested.name, problem, config, SM90), folder)
    tensors, scalars = random_inputs(problem)
    if problem.dtype in BYTE_FORMATS:
        spread(problem, tensors)
    expected = solve(problem, tensors, scalars)
    launches = tested.launches(problem, config, SM90)
    few = {"pixel_slots": 2, "filter_slots": 2 if launches[0]["filter_slots"] else 0, "together": 1, "grid": 0}
    for launch in (*launches, few, *(_one_block_a_part(one, problem, config) for one in (*launches, few))):
        assert 0 < emulated.shared_bytes(problem, launch) <= SM90.block_shared
        found = emulated.run(problem, tensors, scalars, launch, 1)
        assert_right(found, expected, problem.dtype, launch, 2e-5 + sum_error(problem, config))


def _one_block_a_part(launch, problem, config):
    """Return the launch in which a block computes all tiles of its columns, one after the other."""
    return launch | {"grid": ceil_div(ceil_div(problem.k, config["tile_n"]), launch["together"])}


def spread(problem, tensors):
    """Multiply both scales, so that the results spread over the range of bytes."""
    sums = solve(dataclasses.replace(problem, epilogue=Epilogue()), tensors, ())["y"]
    for name in ("scale", "skip_scale"):
        tensors[name] *= (64 if problem.dtype == S8.dtype else 100) / float(sums.square().mean().sqrt())


@pytest.mark.compile
@pytest.mark.parametrize(("dtype", "tile_n"), [("f16", 256), ("s8", 128)])
def test_the_products_overlap(dtype, tile_n, tmp_path):
    config = {"tile_n": tile_n, "groups": 2, "row_bytes": 128, "weights": "streamed"}
    kernel = Kernel.of(FAMILY.name, config, dtype, Epilogue.parse("bias,relu"), "sm_90")
    assert_not_serialized(kernel, tmp_path)


def test_what_it_does_not_serve_has_a_reason():
    odd = parse("conv2d_skip n=1 h=4 w=4 c=12 k=32 skip_h=4 skip_w=4 skip_c=8 dtype=f16")
    assert "multiples of 8" in FAMILY.why_not_served(odd, SM90)
    with pytest.raises(ProblemError, match="must have the size of the convolution, 4 x 4"):
        parse("conv2d_skip n=1 h=4 w=4 c=8 k=32 skip_h=4 skip_w=4 skip_c=8 skip_stride=2 dtype=f16")
