"""CUDA kernels that solve a problem in one launch: their own text, run on a CPU; and what they refuse, with reasons."""

import pytest
import torch
from comparison import LIMIT, relative_error
from emulator import Emulated, assert_computes
from kernels import config_of, fitting, proposed
from repository import table_of

from autotune.core import architecture
from autotune.families import Kernel, cuda, family
from autotune.ir import Epilogue, parse

SM70, SM75, SM80, SM90 = (architecture(name) for name in ("sm70", "sm75", "sm80", "sm90"))

CASES = table_of(__file__)
"""Family -> case -> a problem, the values of the config, and those of the launch where not all are taken."""

ON_SM80 = {
    *("cuda_concat_conv2d", "cuda_conv2d_pair", "cuda_expand_depthwise", "cuda_grouped_conv2d"),
    "cuda_mma_depthwise_conv2d",
}
"""Families whose kernels run as those of sm_80; those of the others run as on Hopper."""

DAILY = 2
"""Cases of a family that a day runs."""

LIMITS = {
    "cuda_conv2d_pair": {"f16": 1.5e-3, "bf16": 1.2e-2},
    "cuda_inverted_residual": {"f16": 2e-3, "bf16": 1.5e-2},
}
"""Largest relative errors of families with several convolutions."""

SHARED_BYTES = {
    "cuda_concat_conv2d": lambda problem, tile: tile(cuda.concat_conv2d).shared_bytes,
    "cuda_conv2d_pair": lambda problem, tile: tile(cuda.conv2d_pair).shared_bytes(problem.c, problem.hidden),
    "cuda_expand_depthwise": lambda problem, tile: tile(cuda.expand_depthwise).shared_bytes(problem.c, problem.dtype),
    "cuda_grouped_conv2d": lambda problem, tile: tile(cuda.grouped_conv2d).shared_bytes,
    "cuda_inverted_residual": lambda problem, tile: tile(cuda.inverted_residual).shared_bytes(
        cuda.inverted_residual._rows(problem, tile(cuda.inverted_residual)), problem.c, problem.dtype
    ),
    "cuda_mma_depthwise_conv2d": lambda problem, tile: tile(cuda.mma_depthwise_conv2d).shared_bytes,
}
"""Family -> the shared memory that a kernel's tile counts; `tile` makes it of the family's module."""


def problem_of(name, text):
    return parse(f"{family(name).operators[0].operator} {text}")


def kernel_config(name, values, problem):
    """Return the config of values in the order of the family's parameters; activations are those of the problem."""
    gated = name in ("cuda_squeeze_excite", "cuda_se_gates")
    return config_of(name, (*values, problem.act, problem.gate) if gated else values)


def launches_of(name, problem, config, arch, values):
    """Return the launch of these values, or all that the family proposes; of resizing, all that there are."""
    if values:
        return [{one.name: value for one, value in zip(family(name).launch_parameters, values[0], strict=True)}]
    if name == "cuda_upsample":
        return [{"rows": rows} for rows in family(name).launch_parameters[0].values]
    return family(name).launches(problem, config, arch)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "text", "values", "launch_values"),
    [
        pytest.param(name, text, values, launch_values, id=f"{name}: {case}", marks=marks)
        for name, cases in CASES.items()
        for marks in [[pytest.mark.daily(DAILY, f"cases of {name}")] if len(cases) > DAILY else []]
        for case, (text, values, *launch_values) in cases.items()
    ],
)
def test_the_kernels_text_solves_the_problem(name, text, values, launch_values, tmp_path):
    problem, arch = problem_of(name, text), SM80 if name in ON_SM80 else SM90
    config = kernel_config(name, values, problem)
    chosen = (fitting if name in ("cuda_grouped_conv2d", "cuda_mma_depthwise_conv2d") else proposed)(
        name, problem, config, arch
    )
    emulated = Emulated(chosen, tmp_path)
    for seed, launch in enumerate(launches_of(name, problem, config, arch, launch_values)):
        assert emulated.shared_bytes(problem, launch) >= 0, f"{launch} is refused"
        if name in SHARED_BYTES:
            counted = SHARED_BYTES[name](problem, lambda module: module.Tile.from_config(config))
            assert emulated.shared_bytes(problem, launch) == counted
        if name == "cuda_group_norm":
            assert emulated.shared_bytes(problem, launch) == cuda.group_norm.shared_bytes(problem, config, launch)
        cluster = config["parts"] if name == "cuda_inverted_residual" else config.get("cluster", 1)
        assert_computes(emulated, problem, launch, cluster, seed, LIMITS.get(name, LIMIT))


@pytest.mark.compile
def test_group_norms_do_not_cancel_where_the_mean_is_large(tmp_path):
    problem = parse("group_norm n=1 h=40 w=40 c=16 groups=4 dtype=f32")
    emulated = Emulated(proposed("cuda_group_norm", problem, config_of("cuda_group_norm", (4, 128, 2)), SM90), tmp_path)
    x = torch.randn(1, 40, 40, 16, generator=torch.Generator().manual_seed(0)) + 2000.0
    x[0, :, :, ::3] -= 4000.0
    exact = x.double().view(1600, 4, 4)
    exact = exact - exact.mean((0, 2), keepdim=True)
    exact = exact / (exact.square().mean((0, 2), keepdim=True) + 1e-5).sqrt()
    found = emulated.run(problem, {"x": x}, (1e-5,), {"together": 2}, 2)
    assert relative_error(found["y"].view(1600, 4, 4), exact) < 1e-6


# Of each family, a problem that it serves; and what differs in those that it does not serve, with words of the reason.
PAIR, RESIDUAL = CASES["cuda_conv2d_pair"]["1x1 and 3x3"][0], CASES["cuda_inverted_residual"]["residual"][0]
NOT_SERVED = {
    "cuda_concat_conv2d": (
        "n=1 h=4 w=4 pieces=8 k=8 dtype=f16",
        ("pieces=8", "pieces=12,4", "multiples of 8"),
        ("pieces=8", "pieces=8:16/20", "multiples of 8"),
        ("pieces=8 k=8", "pieces=16 k=12", "multiples of 8"),
    ),
    "cuda_conv2d_pair": (
        PAIR,
        ("c=40", "c=12", "multiple of 8"),
        ("s=3", "s=1", "square"),
        (PAIR, "n=1 h=4 w=4 c=16 hidden=16 k=16 dtype=f16 epilogue=conv", "pointwise_pair"),
    ),
    "cuda_expand_depthwise": (
        CASES["cuda_expand_depthwise"]["3x3"][0],
        ("n=2 h=9 w=10 c=24 k=40", "n=1 h=9 w=9 c=12 k=36", "multiples of 8"),
    ),
    "cuda_grouped_conv2d": (
        "n=1 h=9 w=9 c=32 k=32 r=3 s=3 pad=1 groups=4 dtype=f16",
        ("groups=4", "groups=16", "a group must have"),
        ("groups=4", "groups=1", "several groups"),
        ("k=32", "k=64", "c and k must be equal"),
        ("r=3 s=3", "r=3 s=5", "square"),
        ("pad=1", "pad=2 dilation=2", "dense"),
        ("c=32 k=32 r=3 s=3 pad=1 groups=4", "c=12 k=12 r=3 s=3 pad=1 groups=3", "multiple of 8"),
    ),
    "cuda_inverted_residual": (
        RESIDUAL,
        ("n=2 h=9 w=10 c=24 hidden=72 k=24", "n=1 h=9 w=9 c=12 hidden=36 k=8", "multiples of 8"),
        ("n=2 h=9 w=10 c=24 hidden=72 k=24", "n=1 h=9 w=9 c=16 hidden=32 k=328", "at most 320"),
    ),
    "cuda_mma_depthwise_conv2d": (
        "n=1 h=9 w=9 c=16 k=16 r=3 s=3 pad=1 groups=16 dtype=f16",
        ("groups=16", "groups=8", "one channel a group"),
        ("r=3 s=3", "r=3 s=5", "square"),
        ("pad=1", "pad=2 dilation=2", "dense"),
        ("c=16 k=16 r=3 s=3 pad=1 groups=16", "c=12 k=12 r=3 s=3 pad=1 groups=12", "multiple of 8"),
    ),
}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_a_family_does_not_serve_has_a_reason(name):
    found, (served, *others) = family(name), NOT_SERVED[name]
    assert found.why_not_served(problem_of(name, served), SM80) is None
    assert all(found.why_not_served(problem_of(name, served), arch) for arch in (SM70, SM75))
    for before, after, said in others:
        assert said in found.why_not_served(problem_of(name, served.replace(before, after)), SM80), after


RESIZED = "n=1 h=3 w=4 p=6 rows=1,2 columns=1,2 dtype=f16 c=12 q=8 mode=bilinear"
ACCESS = "all pieces must be multiples of an access: of vector / interleave channels"
# Of each kernel, its config, a problem that it solves, and launch values; and what differs where it refuses a problem.
REFUSED = {
    "cuda_concat": (
        (2, 8, 1, 64),
        ("n=1 h=2 w=3 pieces=24,24 interleave=2 dtype=f16", {}),
        (" interleave=2", "", {}, "this kernel is compiled for interleave = 2"),
        ("pieces=24,24", "pieces=8,4", {}, "c must be a multiple of the vector of 8 elements"),
        ("pieces=24,24", "pieces=22,26", {}, ACCESS),
        ("pieces=24,24", "pieces=2:26/28,24", {}, ACCESS),
    ),
    "cuda_conv2d_pair": (
        CASES["cuda_conv2d_pair"]["two 3x3, whole images"][1],
        (CASES["cuda_conv2d_pair"]["two 3x3, whole images"][0], {}),
        ("first_r=3", "first_r=1", {}, "first filter"),
        ("h=7", "h=8", {}, "whole image"),
        ("hidden=48", "hidden=40", {}, "multiple of 16"),
        ("c=32", "c=1024", {}, "shared memory"),
    ),
    "cuda_group_norm": (
        (4, 128, 1),
        ("n=1 h=9 w=7 c=36 groups=12 dtype=f32", {"together": 4}),
        ("", "", {"together": 5}, "groups must be a multiple of the groups of a block"),
    ),
    "cuda_se_tail": (
        (64, 1, 1),
        ("n=1 h=2 w=2 c=64 hidden=4 dtype=f16 epilogue=add", {"images": 1}),
        ("c=64", "c=60", {}, "c must be a multiple of the vector"),
        ("c=64", "c=1024", {}, "c exceeds the channels of one block: threads * vector"),
        ("hidden=4", "hidden=5", {}, "hidden must be a multiple of 4 if weights are loaded early"),
    ),
    "cuda_squeeze_excite": (
        (128, 1, 0, 2),
        ("n=4 h=4 w=4 c=64 hidden=4 act=silu gate=sigmoid dtype=f16", {"images": 1}),
        ("", "", {"images": 2}, "a cluster takes one image"),
    ),
    "cuda_upsample": (
        (1, 8, 4, 128),
        (RESIZED, {"rows": 4}),
        ("bilinear", "nearest", {}, "this kernel is compiled for linear = 1"),
        ("c=12", "c=10", {}, "c must be a multiple of the load of 4 channels"),
        ("q=8", "q=7", {}, "q c must be a multiple of the vector of 8 elements"),
        ("", "", {"rows": 0}, "a thread must make at least one row"),
    ),
}


@pytest.mark.compile
@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_says_why_it_refuses_a_problem(name, tmp_path):
    values, (text, launch), *others = REFUSED[name]
    problem, target = problem_of(name, text), "sm_80" if name in ON_SM80 else "sm_90"
    kernel = Kernel.of(name, kernel_config(name, values, problem), problem.dtype, problem.epilogue, target)
    emulated = Emulated(kernel, tmp_path)
    assert emulated.refusal(problem, launch) is None
    for before, after, other, reason in others:
        said = emulated.refusal(problem_of(name, text.replace(before, after)), launch | other)
        assert said == reason or (name == "cuda_conv2d_pair" and reason in said), after


def test_steps_before_the_convolution_store_nothing():
    config, chain = config_of("cuda_concat_conv2d", (64, 32, 32, 32, 2)), Epilogue.parse("store,conv")
    assert "must not store" in family("cuda_concat_conv2d").why_illegal(config, SM80, "f16", chain)


def test_a_kernel_fits_its_own_group_width_only():
    problem = problem_of("cuda_grouped_conv2d", NOT_SERVED["cuda_grouped_conv2d"][0])
    config = config_of("cuda_grouped_conv2d", (3, 1, 16, 32, 8, 8, 2))
    assert "needs width=8; the kernel has 16" in family("cuda_grouped_conv2d").why_unfit(problem, config, SM80)


def test_kernels_of_inverted_residuals_are_clusters_on_hopper_and_compute_pixels_once():
    found = family("cuda_inverted_residual")
    assert {config["parts"] for config in found.configs_for(problem_of(found.name, RESIDUAL), SM80)} == {1}
    early = problem_of(found.name, "n=1 h=9 w=9 c=16 hidden=32 k=8 r=3 s=3 pad=1 dtype=f16 epilogue=conv,add,conv")
    assert not found.configs_for(early, SM90), "a step between the convolutions would need the pixel's position"


def test_blocks_take_several_images_where_most_multiprocessors_still_have_one():
    found = family("cuda_se_tail")
    early, late = ({"threads": 512, "keep": 1, "early": value} for value in (1, 0))
    for n, images in ((1, {1}), (128, {1}), (512, {1, 2, 4}), (1024, {1, 2, 4, 8})):
        problem = parse(f"se_tail n={n} h=2 w=2 c=512 hidden=32 dtype=f16 epilogue=add,relu")
        assert {launch["images"] for launch in found.launches(problem, early, SM90)} == images
        assert found.launches(problem, late, SM90) == [{"images": 1}]


def test_clusters_are_for_hopper_and_small_batches():
    found = family("cuda_squeeze_excite")
    few, many = (
        parse(f"squeeze_excite n={n} h=56 w=56 c=144 hidden=6 act=silu gate=sigmoid dtype=f16") for n in (1, 4096)
    )
    assert {config["cluster"] for config in found.configs_for(few, SM90)} == {1, 2, 4, 8}
    assert {config["cluster"] for config in found.configs_for(few, SM80)} == {1}
    ranked = {
        problem.n: min(found.configs_for(problem, SM90), key=lambda config: found.cost(problem, config, SM90))
        for problem in (few, many)
    }
    assert ranked[1]["cluster"] == 8 and ranked[4096]["cluster"] < 8


def test_threads_make_the_rows_that_leave_enough_of_them():
    found = family("cuda_upsample")

    def rows(text):
        problem = parse(f"upsample {text} dtype=f16")
        return [launch["rows"] for launch in found.launches(problem, found.configs_for(problem, SM90)[-1], SM90)]

    by_8 = "h=64 w=64 c=21 p=512 q=512 rows=1,8 columns=1,8 mode=bilinear"
    assert rows(f"n=32 {by_8}") == [4, 8, 16, 32]
    assert rows(f"n=1 {by_8}") == [2, 4, 8, 16]
    assert rows("n=32 h=56 w=56 c=256 p=112 q=112 rows=1,2 columns=1,2 mode=nearest") == [1, 2, 4, 8]
    assert rows("n=1 h=7 w=7 c=64 p=14 q=14 rows=1,2 columns=1,2 mode=nearest") == [1, 2]
