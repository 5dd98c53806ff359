"""The tail of a residual block on a GPU: its kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import parse

SM90, FAMILY = architecture("sm90"), family("cuda_se_tail")
# Several images a block, the last block with fewer; more pixels than registers keep; threads without channels; sums of
# a warp's lanes, and of lanes that are more than a warp apart; rows of weights with padding between them and without.
CASES = {
    "last block": ("n=7 h=2 w=2 c=512 hidden=32 dtype=f16 epilogue=add,relu", 256, 1, 1, 2),
    "as a batch of 128": ("n=2 h=4 w=4 c=256 hidden=16 dtype=f16 epilogue=add,relu,add_scalar", 512, 2, 1, 1),
    "first block": ("n=5 h=9 w=7 c=64 hidden=4 dtype=bf16 epilogue=bias,add,relu,store", 128, 2, 1, 4),
    "odd, late": ("n=3 h=5 w=3 c=72 hidden=5 dtype=f16 epilogue=add,silu", 128, 1, 0, 1),
    "float32": ("n=3 h=3 w=3 c=40 hidden=12 dtype=f32 epilogue=scale,add", 128, 4, 1, 2),
}


@pytest.mark.compile
@pytest.mark.parametrize(("text", "threads", "keep", "early", "images"), CASES.values(), ids=CASES)
def test_the_kernels_text_computes_the_tail(text, threads, keep, early, images, tmp_path):
    problem, config = parse(f"se_tail {text}"), {"threads": threads, "keep": keep, "early": early}
    assert config in FAMILY.configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    for name, error in relative_errors(emulated, problem, {"images": images}).items():
        assert error < {"f16": 1e-3, "bf16": 8e-3, "f32": 4e-6}[problem.dtype], name


def test_blocks_take_several_images_where_most_multiprocessors_still_have_one():
    early, late = ({"threads": 512, "keep": 1, "early": value} for value in (1, 0))
    for n, images in ((1, {1}), (128, {1}), (512, {1, 2, 4}), (1024, {1, 2, 4, 8})):
        problem = parse(f"se_tail n={n} h=2 w=2 c=512 hidden=32 dtype=f16 epilogue=add,relu")
        assert {launch["images"] for launch in FAMILY.launches(problem, early, SM90)} == images
        assert FAMILY.launches(problem, late, SM90) == [{"images": 1}]


@pytest.mark.compile
def test_a_kernel_says_why_it_refuses_a_problem(tmp_path):
    problem = parse("se_tail n=1 h=2 w=2 c=64 hidden=4 dtype=f16 epilogue=add")
    config = {"threads": 64, "keep": 1, "early": 1}
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    assert emulated.refusal(problem, {"images": 1}) is None
    for change, reason in {
        "c=60": "c must be a multiple of the vector",
        "c=1024": "c exceeds the channels of one block: threads * vector",
        "hidden=5": "hidden must be a multiple of 4 if weights are loaded early",
    }.items():
        name = change.split("=")[0]
        other = parse(" ".join(change if word.startswith(f"{name}=") else word for word in str(problem).split()))
        assert emulated.refusal(other, {"images": 1}) == reason
