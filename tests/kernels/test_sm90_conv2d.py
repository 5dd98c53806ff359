"""The Hopper convolution's own text, run on a CPU: its ways to load, to share, to split and to store."""

import pytest
from comparison import assert_right
from emulator import Emulated
from kernels import assert_not_serialized, fitting, random_inputs, spread_inputs
from promotion import assert_inexact_sums_are_promoted, bytes_off
from reference import solve
from repository import table_of

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import BYTE_FORMATS, Epilogue, parse, sum_error

SM90, FAMILY, FOLDED = architecture("sm90"), family("sm90_conv2d"), family("sm90_folded_conv2d")
E4M3 = family("sm90_e4m3_conv2d")
SMALL = {
    "tile_m": 64, "tile_n": 32, "tile_k": 64, "groups": 1, "schedule": "cooperative", "activations": "im2col",
    "weights": "streamed", "cluster_m": 1, "cluster_n": 1, "slices": 1, "merge": 1,
}  # fmt: skip
BLOCKS = 4
"""Of a grid, so that each has several tiles."""

CASES, FOLDED_CASES = table_of(__file__).values()
"""Case -> what differs in the config, and the problem."""


OWN = {"image": "warps", "hidden": 8, **{name: SMALL[name] for name in SMALL if name not in ("tile_k", "merge")}}


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_the_convolution(case, tmp_path):
    whole = case.startswith(("a split", "a gate"))
    _compare(FAMILY, SMALL | CASES[case][0], CASES[case][1], tmp_path, {0} if whole else {0, 1, 4, 8})


PROMOTED = {
    "bytes, shared loads": {"promote": 1},
    "bytes, turns, lines of 128 bytes": {"promote": 0},
    "bytes, patches, streamed": {"promote": 2, "tile_n": 64},
    "bytes, resident weights": {"promote": 4},
    "bytes, groups": {"promote": 1},
    "a split of bytes": {"promote": 2},
}
"""Case of signed bytes that e4m3 has, too -> what differs in its config."""


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize("case", PROMOTED)
def test_the_kernels_text_computes_the_convolution_in_e4m3(case, tmp_path):
    (config, text), whole = CASES[case], case.startswith("a split")
    text = text.replace("dtype=s8", "dtype=e4m3")
    _compare(E4M3, SMALL | config | PROMOTED[case], text, tmp_path, {0} if whole else {0, 1, 4, 8})


@pytest.mark.compile
def test_promoted_sums_are_more_exact(tmp_path):
    problem = parse("gemm m=64 n=32 k=4096 dtype=e4m3 epilogue=scale")
    config = SMALL | {"tile_k": 128}
    launch = {**E4M3.launches(problem, config | {"promote": 0}, SM90)[0], "staged": 0}
    off = bytes_off(E4M3.name, config, problem, launch, tmp_path)
    assert off[1] < off[0] / 3 and 20 < off[0] < 300, off


def test_kernels_in_e4m3_have_the_schedules_of_bytes():
    """Each config of sm90_conv2d in s8 is one of e4m3, and with promoted sums where the registers allow it."""
    epilogue = Epilogue.parse("scale,bias,relu")
    of_bytes = [tuple(config.values()) for config in FAMILY.configs(SM90, "s8", epilogue)]
    found = [tuple(config.values()) for config in E4M3.configs(SM90, "e4m3", epilogue)]
    assert {config[:-1] for config in found if config[-1] == 0} == set(of_bytes)
    promoted = {config[:-1] for config in found if config[-1] == 1}
    assert set() < promoted < set(of_bytes)
    wide = dict(zip((parameter.name for parameter in E4M3.parameters), next(iter(found)), strict=True))
    wide |= {"tile_m": 128, "tile_n": 128, "tile_k": 128, "groups": 1, "schedule": "cooperative", "promote": 1}
    assert "at most 128 sums, or spills; it has 256" in E4M3.why_illegal(wide, SM90, "e4m3", epilogue)


def test_sums_that_are_too_inexact_are_promoted():
    assert_inexact_sums_are_promoted(E4M3.name, SMALL | {"tile_k": 128})
    many = parse("conv2d n=8 h=7 w=7 c=1024 k=64 r=3 s=3 pad=1 dtype=e4m3")
    assert sum_error(many, SMALL | {"tile_k": 128, "promote": 0, "slices": 4}) == pytest.approx(152 * 2**-12)
    assert sum_error(many, {}) == 0, "other kernels sum in float32"


def test_e4m3_has_no_sums_that_overflow_and_no_gates():
    large = "conv2d n=1 h=32 w=32 c=16384 k=64 r=3 s=3 pad=1 dtype={}"
    assert "so that no sum overflows int32" in FAMILY.why_not_served(parse(large.format("s8")), SM90)
    assert E4M3.why_not_served(parse(large.format("e4m3")), SM90) is None
    assert FAMILY.why_not_served(parse(large.format("e4m3")), SM90) == "it has no kernels in e4m3"
    assert E4M3.why_not_served(parse(large.format("e4m3")), architecture("sm89")) == "it has no kernels for sm89"
    gated = Epilogue.parse("scale,gate")
    assert E4M3.why_illegal(SMALL | {"promote": 0}, SM90, "e4m3", gated) == "gates are not computed from bytes"


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize("case", FOLDED_CASES)
def test_a_tile_finds_its_gates_by_itself(case, tmp_path):
    config, text = FOLDED_CASES[case]
    stagings = {0} if case.startswith("a split") else {0, 1, 4, 8} if ",add" in text else {0, 1}
    _compare(FOLDED, OWN | config, text, tmp_path, stagings)


def _compare(chosen, config, text, folder, stagings):
    """A kernel's results with the reference's, for each way to store; {0}: where each tile has a block of its own."""
    problem = parse(text)
    emulated = Emulated(fitting(chosen.name, problem, config, SM90), folder)
    tensors, scalars = (spread_inputs if problem.dtype in BYTE_FORMATS else random_inputs)(problem)
    wanted, of_sums = solve(problem, tensors, scalars), sum_error(problem, config)
    cluster = config["cluster_m"] * config["cluster_n"] * config["slices"]
    launches = chosen.launches(problem, config, SM90)
    by_staging = {launch["staged"]: launch for launch in launches}  # the last has the least shared memory
    assert set(by_staging) <= stagings and len(by_staging) >= min(len(stagings), 3) - 1
    for staged, launch in by_staging.items():
        grid = 0 if stagings == {0} else BLOCKS
        for seed in (0, 1):  # transfers late, and at once
            found = emulated.run(problem, tensors, scalars, {**launch, "grid": grid}, cluster, seed)
            assert_right(found, wanted, problem.dtype, f"staged {staged}, seed {seed}", 2e-5 + of_sums)


@pytest.mark.compile
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
    problem = parse("conv2d n=8 h=56 w=56 c=64 k=256 r=3 s=3 pad=1 dtype=f16 epilogue=bias,add,relu")
    assert_not_serialized(Kernel.of(FAMILY.name, SMALL | config, "f16", problem.epilogue, "sm_90"), tmp_path)


@pytest.mark.compile
@pytest.mark.parametrize(
    "config",
    [
        {"tile_n": 128, "promote": 1},
        {"tile_m": 128, "tile_n": 128, "groups": 2, "schedule": "pingpong", "cluster_n": 2, "promote": 0},
        {"tile_m": 128, "tile_n": 64, "groups": 2, "schedule": "pingpong", "activations": "patch", "promote": 4},
        {"tile_n": 64, "activations": "patch", "weights": "resident", "promote": 2},
    ],
    ids=["im2col", "turns, shared loads", "patches", "patches, resident weights"],
)
def test_the_compiler_does_not_serialize_promoted_sums(config, tmp_path):
    epilogue, config = Epilogue.parse("scale,bias,add,relu"), SMALL | {"tile_k": 128} | config
    assert E4M3.why_illegal(config, SM90, "e4m3", epilogue) is None
    assert_not_serialized(Kernel.of(E4M3.name, config, "e4m3", epilogue, "sm_90"), tmp_path)


@pytest.mark.compile
@pytest.mark.parametrize("chain", ["bias,gate,add,relu", "bias,gate,project,relu"])
@pytest.mark.parametrize(
    "config",
    [
        {"tile_n": 64, "hidden": 16, "cluster_n": 2},
        {"tile_m": 128, "tile_n": 128, "groups": 2, "schedule": "pingpong"},
        {"image": "rows", "tile_n": 64, "hidden": 32, "slices": 2},
        {"activations": "patch", "weights": "resident"},
    ],
    ids=["im2col", "turns, many sums", "rows, a split", "patches, resident weights"],
)
def test_the_compiler_does_not_serialize_those_with_a_folded_squeeze(config, chain, tmp_path):
    config, epilogue = OWN | config, Epilogue.parse(chain)
    if why := FOLDED.why_illegal(config, SM90, "f16", epilogue):
        assert why == "with a projection, activations must be im2col, weights streamed and slices 1"
    else:
        assert_not_serialized(Kernel.of(FOLDED.name, config, "f16", epilogue, "sm_90"), tmp_path)


def test_groups_are_merged_only_where_the_problem_has_them():
    merged = SMALL | {"tile_k": 32, "merge": 4}
    narrow = "conv2d n=2 h=8 w=8 c={0} k={0} r=3 s=3 pad=1 groups={1} dtype=f16"
    assert FAMILY.why_unfit(parse(narrow.format(64, 8)), merged, SM90) is None
    for channels, groups in ((64, 1), (48, 6), (512, 4)):
        problem = parse(narrow.format(channels, groups))
        assert FAMILY.why_unfit(problem, merged, SM90).startswith("it computes 4 groups as one; the problem allows")
        assert FAMILY.why_unfit(problem, SMALL, SM90) is None or groups == 6
