"""Resizing on a GPU: the kernel's own text, run on a CPU."""

import pytest
from emulator import Emulated, relative_errors

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import parse

pytestmark = pytest.mark.compile

SM90 = architecture("sm90")
FAMILY = family("cuda_upsample")
LIMIT = {"f16": 1e-3, "bf16": 8e-3, "f32": 4e-6}
# Problems, and vector and load of the kernel.
CASES = {
    "whole vectors": (
        "n=2 h=3 w=4 c=16 p=6 q=9 rows=1,2 columns=4,9 mode=bilinear dtype=f16 epilogue=bias,add",
        (8, 8),
    ),
    "parts of a vector": (
        "n=2 h=4 w=3 c=12 p=9 q=10 rows=4,9 columns=3,10 mode=bilinear dtype=bf16 epilogue=add,scale,store,silu",
        (8, 4),
    ),
    "odd channels": (
        "n=1 h=5 w=3 c=21 p=7 q=16 rows=4,6 columns=2,15 mode=bilinear_corners dtype=f32 epilogue=scale,store",
        (4, 1),
    ),
    "odd channels, 8 times larger": (
        "n=2 h=5 w=6 c=21 p=40 q=48 rows=1,8 columns=1,8 mode=bilinear dtype=f16 epilogue=none",
        (8, 1),
    ),
    "an odd row": (
        "n=1 h=5 w=5 c=21 p=33 q=33 rows=4,32 columns=4,32 mode=bilinear_corners dtype=bf16 epilogue=none",
        (1, 1),
    ),
    "several pixels of a vector": (
        "n=2 h=7 w=6 c=1 p=12 q=24 rows=7,12 columns=1,4 mode=bilinear dtype=f16 epilogue=bias,relu",
        (8, 1),
    ),
    "smaller": (
        "n=2 h=17 w=13 c=3 p=5 q=8 rows=17,5 columns=13,8 mode=bilinear dtype=f32 epilogue=mul_scalar",
        (4, 1),
    ),
    "nearest": (
        "n=3 h=3 w=4 c=5 p=7 q=8 rows=3,7 columns=1,2 mode=nearest_exact dtype=f16 epilogue=relu",
        (8, 1),
    ),
    "nearest, twice as large": (
        "n=2 h=6 w=5 c=48 p=12 q=10 rows=1,2 columns=1,2 mode=nearest dtype=f16 epilogue=add",
        (8, 8),
    ),
}


@pytest.mark.parametrize(("text", "values"), CASES.values(), ids=CASES)
def test_the_kernels_text_solves_the_problem(text, values, tmp_path):
    problem = parse(f"upsample {text}")
    config = {"linear": problem.linear, "vector": values[0], "load": values[1], "threads": 128}
    assert config in FAMILY.configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    for rows in FAMILY.launch_parameters[0].values:
        for name, error in relative_errors(emulated, problem, {"rows": rows}).items():
            assert error < LIMIT[problem.dtype], f"{name} rows {rows}"


def test_a_kernel_says_why_it_refuses_a_problem(tmp_path):
    config = {"linear": 1, "vector": 8, "load": 4, "threads": 128}
    sizes = "n=1 h=3 w=4 p=6 rows=1,2 columns=1,2 dtype=f16"
    problem = parse(f"upsample {sizes} c=12 q=8 mode=bilinear")
    emulated = Emulated(Kernel.of(FAMILY.name, config, "f16", problem.epilogue, "sm_90"), tmp_path)
    refused = {
        "c=12 q=8 mode=bilinear": None,
        "c=12 q=8 mode=nearest": "this kernel is compiled for linear = 1",
        "c=10 q=8 mode=bilinear": "c must be a multiple of the load of 4 channels",
        "c=12 q=7 mode=bilinear": "q c must be a multiple of the vector of 8 elements",
    }
    for words, reason in refused.items():
        assert emulated.refusal(parse(f"upsample {sizes} {words}"), {"rows": 4}) == reason
    assert emulated.refusal(problem, {"rows": 0}) == "a thread must make at least one row"


def test_threads_make_the_rows_that_leave_enough_of_them():
    def rows(text):
        problem = parse(f"upsample {text} dtype=f16")
        return [launch["rows"] for launch in FAMILY.launches(problem, FAMILY.configs_for(problem, SM90)[-1], SM90)]

    by_8 = "h=64 w=64 c=21 p=512 q=512 rows=1,8 columns=1,8 mode=bilinear"
    assert rows(f"n=32 {by_8}") == [4, 8, 16, 32]
    assert rows(f"n=1 {by_8}") == [2, 4, 8, 16]
    assert rows("n=32 h=56 w=56 c=256 p=112 q=112 rows=1,2 columns=1,2 mode=nearest") == [1, 2, 4, 8]
    assert rows("n=1 h=7 w=7 c=64 p=14 q=14 rows=1,2 columns=1,2 mode=nearest") == [1, 2]
