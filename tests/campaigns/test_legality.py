"""What the CUTLASS convolution calls legal: against configs that were compiled, and by compiling a few of today's."""

import csv
import os
import random
from itertools import islice

import pytest
from daily import DAY
from kernels import assert_exported, need_compiler
from processes import script
from repository import DATA

from autotune.core import architecture
from autotune.families import PERMISSIONS, Kernel, family
from autotune.families.cutlass2.tile import ThreadblockTile, accumulators
from autotune.families.cutlass2.tile_rules import why_illegal
from autotune.ir import Epilogue, parse

FPROP = family("cutlass2_conv2d")

# Why a tile that compiles is refused all the same: it would spill, not start, be beaten, or come out wrong.
BEYOND_COMPILING = (
    "sm70: a block with warp tiles of 64x64 must have 4 warps, or spills",
    "a block must have 64 to 256 threads",
    "the tile must fit a block's shared memory",
    "stages must be at least 3 from sm80 on",
    "the epilogue's threads must cover the tile, each element once",
)


def rows():
    with (DATA / "compiled_fprop.csv").open() as file:
        return list(csv.DictReader(file))


def shape(text):
    return tuple(map(int, text.split("x")))


def tile_of(row):
    numbers = [int(row[name]) for name in ("stages", "alignment", "vector")]
    accumulator = accumulators(row["dtype"])[0]
    warp = shape(row["warp"])
    return ThreadblockTile(int(row["generation"]), row["dtype"], shape(row["threadblock"]), warp, *numbers, accumulator)


def complaint(tile):
    why = why_illegal(tile, architecture(f"sm{tile.generation}"))
    return why or (None if tile.filter_rows_fit else "the filter iterator's predicates")


@pytest.mark.parametrize(
    ("generation", "dtype", "least"),
    [("70", "f16", 25), ("75", "f16", 25), ("75", "s8", 15), *((("80", d, n)) for d, n in zip(
        ("f16", "bf16", "tf32", "s8"), (80, 15, 40, 10), strict=True))],
)  # fmt: skip
def test_every_row_that_was_compiled_agrees(generation, dtype, least):
    found = [row for row in rows() if (row["generation"], row["dtype"]) == (generation, dtype)]
    said = {index: complaint(tile_of(row)) for index, row in enumerate(found)}
    for index, row in enumerate(found):
        if row["compiles"] == "0":
            assert said[index], f"{row} does not compile"
        elif said[index]:
            assert said[index] in BEYOND_COMPILING, f"{row} compiles, and is refused: {said[index]}"
        else:
            # CUTLASS's own epilogue may take more than ours, and never less.
            assert tile_of(row).shared_bytes <= int(row["shared_bytes"]), row
    legal = sum(why is None for why in said.values())
    assert legal >= least, f"only {legal} of {len(found)} rows are legal"
    assert any(row["compiles"] == "0" for row in found), "rows that fail are what makes this a test"


def test_a_map_with_idle_lanes_is_refused():
    """32 output channels in vectors of 16 need two lanes a row, and eight rows have no use for 32 lanes."""
    narrow = ThreadblockTile(80, "s8", (64, 32, 64), (32, 32, 64), 3, 16, 16, "s32")
    assert complaint(narrow) == "the epilogue's threads must cover the tile, each element once"
    assert complaint(narrow.with_vector(8)) is None


@pytest.mark.parametrize("name", ["sm70", "sm75", "sm80"])
def test_half_sums_are_offered_only_where_they_are_allowed(name):
    problem = parse("conv2d n=2 h=8 w=8 c=64 k=64 r=3 s=3 pad=1 dtype=f16")
    arch = architecture(name)
    usual, allowed = FPROP.configs_for(problem, arch), FPROP.configs_for(problem, arch, ("f16_accumulation",))
    assert {config["accumulator"] for config in usual} == {"f32"}
    assert {config["accumulator"] for config in allowed} == {"f32", "f16"}
    assert [config for config in allowed if config["accumulator"] == "f32"] == usual


# -- which configs fit a problem -------------------------------------------------------------------

FITS = {
    "c=64 k=64 r=3 s=3": ({8}, {"optimized", "analytic"}, {"none"}),
    "c=12 k=20 r=3 s=3": ({4}, {"optimized", "analytic", "few_channels"}, {"none"}),
    "c=3 k=64 r=7 s=7": ({1}, {"optimized", "analytic", "few_channels"}, {"none"}),
    "c=4 k=64 r=7 s=7": ({4}, {"optimized", "analytic", "fixed_channels"}, {"none"}),
    "c=3 k=64": ({1}, {"optimized", "analytic"}, {"none"}),
    "c=16 k=16 h=40 w=40 r=33 s=3": ({8}, {"analytic", "few_channels"}, {"none"}),
    "c=128 k=256 r=3 s=3 groups=2": ({8}, {"optimized", "analytic"}, {"single", "multiple"}),
    "c=128 k=128 r=3 s=3 groups=32": ({4}, {"analytic"}, {"multiple"}),
}


@pytest.mark.parametrize("sizes", FITS)
def test_what_fits_a_problem(sizes):
    size = "" if "h=" in sizes else " h=9 w=9"
    problem, sm80 = parse(f"conv2d n=2{size} {sizes} dtype=f16"), architecture("sm80")
    configs = FPROP.configs_for(problem, sm80)
    alignments, iterators, groups = FITS[sizes]
    assert {config["alignment"] for config in configs} == alignments
    assert {config["iterator"] for config in configs} == iterators
    assert {config["groups"] for config in configs} == groups
    for config in configs:
        assert FPROP.why_unfit(problem, config, sm80) is None and problem.k % config["vector"] == 0
        for launch in FPROP.launches(problem, config, sm80):
            assert launch["slices"] == 1 or (launch["slices"] * config["tile_k"] <= problem.c and problem.groups == 1)
            assert launch["slices"] == 1 or config["iterator"] in ("optimized", "analytic")


def test_the_widest_vector_that_a_tile_takes_is_the_one_that_fits():
    problem, sm80 = parse("conv2d n=2 h=9 w=9 c=64 k=48 dtype=s8"), architecture("sm80")
    vectors = {}
    for config in FPROP.configs_for(problem, sm80):
        rest = tuple(value for name, value in config.items() if name != "vector")
        vectors.setdefault(rest, set()).add(config["vector"])
    assert all(len(found) == 1 for found in vectors.values())
    assert set.union(*vectors.values()) >= {8, 16}


@pytest.mark.parametrize("dtype", ["f16", "tf32", "f32", "s8"])
def test_a_problem_sees_as_many_configs_as_a_search_can_use(dtype):
    for sizes in ("c=64 k=64 r=3 s=3", "c=12 k=20 r=3 s=3"):
        problem = parse(f"conv2d n=2 h=9 w=9 {sizes} dtype={dtype}")
        assert 500 <= len(FPROP.configs_for(problem, architecture("sm90"))) <= 2000, sizes


# -- the compiler's own words -------------------------------------------------------------------

TODAY = os.environ[DAY]
# The later architectures have kernels of sm80 with other limits: each has its day.
SAMPLE = {"sm70": 2, "sm75": 2, "sm80": 2, "sm86 sm89 sm90": 1}
CHAINS = ("bias,add,relu", "add_scalar,relu,add_scalar", "relu,store,add_scalar", "mul_scalar,silu")


def sampled(arch, count):
    """Configs of today's choice, for problems of every kind."""
    rng = random.Random(f"{TODAY} {arch.name}")
    kernels = []
    while len(kernels) < count:
        dtype, sizes, chain = rng.choice(arch.dtypes), rng.choice(list(FITS)), rng.choice(CHAINS)
        problem = parse(f"conv2d n=2 {'' if 'h=' in sizes else 'h=9 w=9'} {sizes} dtype={dtype} epilogue={chain}")
        configs = (
            FPROP.configs_for(problem, arch, tuple(PERMISSIONS)) if FPROP.why_not_served(problem, arch) is None else []
        )
        # Many narrow loads compile for half a minute.
        quick = [c for c in configs if c["tile_k"] * (c["tile_m"] + c["tile_n"]) <= 8192 * c["alignment"]]
        if quick:
            config = rng.choice(quick)
            kernels.append(Kernel.of(FPROP.name, config, dtype, problem.epilogue, f"sm_{arch.capability}"))
    return kernels


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize("names", SAMPLE)
def test_a_sample_of_the_day_compiles(names):
    arch = architecture(random.Random(TODAY).choice(names.split()))
    need_compiler(f"sm_{arch.capability}")
    assert_exported(sampled(arch, SAMPLE[names]))


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "chain", "count"),
    [
        ("sm90_conv2d", "bias,add,relu", 2),
        ("sm90_e4m3_conv2d", "scale,bias,add,relu", 2),
        ("sm90_e4m3_image_conv2d", "scale,bias,add,relu", 2),
        ("sm90_folded_conv2d", "bias,gate,add,relu", 1),
        ("sm90_folded_conv2d", "scale,gate,project,silu,store", 1),
        ("sm90_image_conv2d", "bias,add,relu", 1),
        ("sm90_image_conv2d", "scale,gate,project,silu,store", 1),
        ("sm90_strip_se_block", "bias,keep,silu,conv,scale,conv,gate,add_kept,relu", 2),
        ("sm90_se_down_block", "bias,silu,conv,scale,gate,project,add,relu", 1),
    ],
)
def test_a_sample_of_the_days_hopper_kernels_compiles(name, chain, count):
    arch, found = architecture("sm90"), family(name)
    need_compiler("sm_90")
    rng = random.Random(f"{TODAY} hopper")
    epilogue = Epilogue.parse(chain)
    gated = "gate" in epilogue.names  # no gates are computed from bytes
    every = {dtype: list(found.configs(arch, dtype, epilogue)) for dtype in found.dtypes}
    assert [dtype for dtype in every if not every[dtype]] == (["s8"] if name == "sm90_image_conv2d" and gated else [])
    chosen = [(config, dtype) for dtype, configs in every.items() if configs for config in rng.sample(configs, count)]
    assert_exported(Kernel.of(found.name, config, dtype, epilogue, "sm_90") for config, dtype in chosen)


def test_the_script_names_what_it_cannot_compile():
    done = script("tests/campaigns/legality.py", "--arch", "sm75", "--dtype", "bf16")
    assert done.returncode == 2 and done.stderr == "error: cutlass2_conv2d has no kernels in bf16 for sm75\n"


def test_enumerating_is_lazy():
    configs = FPROP.configs(architecture("sm80"), "f16", Epilogue())
    assert len(list(islice(configs, 3))) == 3
