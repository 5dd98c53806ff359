"""What the families from CUTLASS 3.x call legal, against kernels that were compiled, and what they take and deal."""

import csv
import datetime
import json
import random

import pytest
from kernels import assert_exported
from repository import DATA

from autotune.codegen import toolchain
from autotune.core import ToolchainError, architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse
from autotune.tuner import Progress, Tuner, TunerOptions
from tuning_db import Store

FAMILIES = ("cutlass3_gemm", "cutlass3_conv2d", "cutlass3_conv2d_dgrad", "cutlass3_conv2d_wgrad")
SM90 = architecture("sm90")
A_FEW_BYTES = 32  # that a kernel may spill: values that it needs once a tile


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_legal_compiles_and_does_not_spill(name):
    with (DATA / "compiled_cutlass3.csv").open() as file:
        found = [row for row in csv.DictReader(file) if row["family"] == name]
    assert found
    for row in found:
        epilogue = Epilogue.parse(row["epilogue"])
        said = family(name).why_illegal(json.loads(row["config"]), SM90, row["dtype"], epilogue)
        spilled = int(row["spilled_bytes"] or 0)
        if said is None:
            assert row["compiles"] == "1" and spilled <= A_FEW_BYTES, row
        else:
            assert row["compiles"] == "0" or spilled > 0, f"{row}: {said}"


@pytest.mark.compile
def test_a_kernel_of_the_day_compiles():
    """One: it takes as long as dozens of others."""
    try:
        compiler = toolchain.for_target("sm_90").compiler
    except ToolchainError as error:
        pytest.skip(str(error))
    if not compiler.startswith("nvcc"):
        pytest.skip("NVRTC does not compile CUTLASS 3.x")
    rng, epilogue = random.Random(f"{datetime.date.today()} cutlass3"), Epilogue.parse("bias,add,relu")
    found = family(rng.choice(FAMILIES))
    dtype = rng.choice(found.dtypes)
    config = rng.choice(list(found.configs(SM90, dtype, epilogue)))
    assert_exported([Kernel.of(found.name, config, dtype, epilogue, "sm_90")])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cutlass3_gemm", "conv2d n=1 h=8 w=8 c=16 k=16 r=3 s=3 pad=1 dtype=f16"),
        ("cutlass3_gemm", "conv2d n=1 h=8 w=8 c=16 k=16 stride=2 dtype=f16"),
        ("cutlass3_gemm", "gemm m=64 n=20 k=64 dtype=f16"),
        ("cutlass3_gemm", "gemm m=64 n=64 k=34 dtype=tf32"),
        ("cutlass3_conv2d", "conv2d n=1 h=8 w=8 c=16 k=16 groups=2 dtype=f16"),
        ("cutlass3_conv2d", "conv2d n=1 h=8 w=8 c=12 k=16 dtype=bf16"),
        ("cutlass3_conv2d", "conv2d n=1 h=300 w=300 c=16 k=16 r=3 s=3 dilation=128 dtype=f16"),
        ("cutlass3_conv2d_dgrad", "conv2d_dgrad n=1 h=8 w=8 c=16 k=16 stride=2 dtype=f16"),
        ("cutlass3_conv2d_wgrad", "conv2d_wgrad n=1 h=32 w=32 c=16 k=16 stride=9 dtype=f16"),
    ],
)
def test_what_tma_cannot_load_is_refused(name, text):
    assert family(name).why_not_served(parse(text), SM90)


def test_only_blocks_that_share_a_tile_split_it():
    """One that takes tiles in turn, or has loaded what is added, must know beforehand who stores a tile."""
    chosen = family("cutlass3_gemm")
    problem = parse("gemm m=300 n=264 k=4104 dtype=f16 epilogue=bias,add")
    for config in chosen.configs_for(problem, SM90):
        launches = chosen.launches(problem, config, SM90)
        split = any(launch["slices"] > 1 or launch["stream"] for launch in launches)
        assert split == (config["schedule"] == "cooperative" and config["source"] == "threads"), config
        assert launches[0] == {"swizzle": 0, "slices": 1, "stream": 0}


@pytest.mark.parametrize("only", [(), ("cutlass3_gemm",), ("cutlass2_gemm", "cutlass3_conv2d")])
def test_they_are_searched_where_they_are_named(only, tmp_path):
    options = TunerOptions(SM90, "sm_90", trials=1, jobs=1, only=only)
    with Store.create(tmp_path / "a.db") as store:
        problem = parse("conv2d n=8 h=14 w=14 c=64 k=64 dtype=f16 epilogue=relu")
        manager = Tuner(store, [problem], options, [], Progress()).study_manager
        manager.enumerate()
        manager.create_studies()
    searched = {study.space.family for study in manager.studies}
    assert searched & set(FAMILIES) == set(only) & set(FAMILIES)
    assert searched == set(only) or (not only and "sm90_conv2d" in searched)
