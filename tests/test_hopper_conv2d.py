"""The Hopper convolution's own text, run on a CPU: its ways to load, to share, to split and to store."""

import subprocess

import pytest
from emulator import Emulated
from helpers import need_compiler, random_inputs, relative_error, solve

from autotune import emit
from autotune.arch import architecture
from autotune.families import family
from autotune.families.base import Kernel
from autotune.problem import parse

SM90, FAMILY = architecture("sm90"), family("sm90_conv2d")
SMALL = {
    "tile_m": 64, "tile_n": 32, "tile_k": 64, "groups": 1, "schedule": "cooperative", "activations": "im2col",
    "weights": "streamed", "cluster_m": 1, "cluster_n": 1, "slices": 1, "merge": 1,
}  # fmt: skip
BLOCKS = 4
"""Of a grid, so that each has several tiles."""

CASES = {
    "shared loads": (
        {"tile_m": 128, "groups": 2, "cluster_m": 2, "cluster_n": 2},
        "conv2d n=3 h=13 w=7 c=72 k=72 r=2 s=2 stride=2,1 pad=1 dtype=f16 epilogue=bias,silu,add,store,relu",
    ),
    "turns, many sums": (
        {"tile_m": 128, "tile_n": 128, "groups": 2, "schedule": "pingpong"},
        "conv2d n=3 h=13 w=9 c=64 k=136 dtype=f16 epilogue=bias,add,relu",
    ),
    "patches, streamed": (
        {"tile_m": 128, "activations": "patch", "tile_k": 32},
        "conv2d n=3 h=15 w=15 c=40 k=72 r=3 s=3 stride=2,2 pad=1 dtype=bf16 epilogue=bias,add",
    ),
    "resident weights": (
        {"weights": "resident", "tile_n": 64},
        "conv2d n=5 h=7 w=9 c=72 k=104 r=3 s=1 pad=1,0 dilation=2,1 dtype=f16 epilogue=add,relu",
    ),
    "groups, shared loads": (
        {"tile_m": 128, "groups": 2, "cluster_m": 2, "cluster_n": 2},
        "conv2d n=3 h=9 w=7 c=192 k=192 r=3 s=3 pad=1 groups=3 dtype=f16 epilogue=bias,add,relu",
    ),
    "groups, patches": (
        {"activations": "patch", "weights": "resident", "tile_k": 16},
        "conv2d n=2 h=15 w=15 c=48 k=96 r=3 s=3 stride=2 pad=1 groups=3 dtype=bf16 epilogue=bias,add",
    ),
    "groups of four, eight of them as one": (
        {"tile_k": 32, "merge": 8},
        "conv2d n=2 h=9 w=7 c=64 k=64 r=3 s=3 pad=1 groups=16 dtype=f16 epilogue=bias,add,relu",
    ),
    "one group out of two, more channels out than in": (
        {"tile_n": 64, "tile_k": 32, "merge": 2, "activations": "patch"},
        "conv2d n=2 h=15 w=7 c=32 k=64 r=3 s=3 pad=1 groups=2 dtype=bf16 epilogue=bias,add",
    ),
    "a split": ({"tile_n": 64, "slices": 4}, "conv2d n=2 h=9 w=8 c=136 k=72 r=3 s=3 pad=1 dtype=f16 epilogue=bias,add"),
    "a split of two warpgroups": (
        {"tile_m": 128, "tile_n": 64, "groups": 2, "slices": 2, "cluster_n": 2},
        "conv2d n=3 h=9 w=8 c=136 k=104 r=3 s=3 pad=1 dtype=bf16 epilogue=bias,add",
    ),
    "a gate": (
        {"tile_n": 64, "slices": 1, "cluster_n": 2},
        "conv2d_se n=5 h=8 w=4 c=72 k=128 hidden=8 r=3 s=3 pad=1 dtype=f16 epilogue=bias,gate,add,relu",
    ),
    "a gate, split": (
        {"tile_n": 128, "slices": 2},
        "conv2d_se n=5 h=8 w=4 c=72 k=128 hidden=8 r=3 s=3 pad=1 dtype=f16 epilogue=bias,gate,add,relu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_the_convolution(case, tmp_path):
    config, problem = SMALL | CASES[case][0], parse(CASES[case][1])
    assert FAMILY.serves(problem, SM90) is None
    assert FAMILY.legal(config, SM90, problem.dtype, problem.epilogue) is None
    emulated = Emulated(Kernel.of(FAMILY.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    tensors, scalars = random_inputs(problem)
    wanted = solve(problem, tensors, scalars)
    cluster = config["cluster_m"] * config["cluster_n"] * config["slices"]
    launches = FAMILY.launches(problem, config, SM90)
    by_staging = {launch["staged"]: launch for launch in launches}  # the last has the least shared memory
    assert set(by_staging) == ({0} if case.startswith(("a split", "a gate")) else {0, 1, 4, 8})
    for staged, launch in by_staging.items():
        grid = 0 if case.startswith(("a split", "a gate")) else BLOCKS
        for seed in (0, 1):  # transfers late, and at once
            found = emulated.run(problem, tensors, scalars, {**launch, "grid": grid}, cluster, seed)
            for name, value in wanted.items():
                error = relative_error(found[name], value)
                assert error < {"f16": 1e-3, "bf16": 8e-3}[problem.dtype], f"{name}, staged {staged}, seed {seed}"


@pytest.mark.parametrize(
    "config",
    [
        {"tile_m": 64, "tile_n": 128},
        {"tile_m": 128, "tile_n": 128, "groups": 2, "schedule": "pingpong", "cluster_n": 2},
        {"tile_m": 128, "tile_n": 64, "groups": 2, "schedule": "pingpong", "activations": "patch"},
        {"tile_m": 64, "tile_n": 64, "activations": "patch", "weights": "resident"},
    ],
    ids=["im2col", "turns, shared loads", "patches", "patches, resident weights"],
)
def test_the_compiler_does_not_serialize_products(config, tmp_path):
    """It says so, and compiles: products that wait for each other are right, and up to twice as slow."""
    compiler = need_compiler("sm_90", nvcc=True)
    problem = parse("conv2d n=8 h=56 w=56 c=64 k=256 r=3 s=3 pad=1 dtype=f16 epilogue=bias,add,relu")
    kernel = Kernel.of(FAMILY.name, SMALL | config, problem.dtype, problem.epilogue, "sm_90")
    source = tmp_path / f"unit{compiler.source_suffix}"
    source.write_text(emit.unit([kernel]))
    command = compiler.command(source, tmp_path / "unit.cubin", emit.folders(kernel))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "serialized" not in done.stdout + done.stderr


def test_groups_are_merged_only_where_the_problem_has_them():
    merged = SMALL | {"tile_k": 32, "merge": 4}
    narrow = "conv2d n=2 h=8 w=8 c={0} k={0} r=3 s=3 pad=1 groups={1} dtype=f16"
    assert FAMILY.fits(parse(narrow.format(64, 8)), merged, SM90) is None
    for channels, groups in ((64, 1), (48, 6), (512, 4)):
        problem = parse(narrow.format(channels, groups))
        assert FAMILY.fits(problem, merged, SM90) == "it computes 4 groups as one"
        assert FAMILY.fits(problem, SMALL, SM90) is None or groups == 6
