"""Families: every CPU family's kernels on random odd problems, and what each family's declarations promise."""

import math
import random
from dataclasses import dataclass, replace
from itertools import islice

import pytest
import torch
from epilogues import random_epilogue
from kernels import built_paths, candidate_of
from random_kernels import SIZES
from reference import relative_error, solve

from autotune.codegen import rendering
from autotune.core import ARCHITECTURES, UnknownNameError, architecture
from autotune.families import DEVICE_IMAGE, PERMISSIONS, SHARED_LIBRARY, Kernel, families, family, serving
from autotune.ir import (
    AvgPool2d,
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    Elementwise,
    Epilogue,
    GlobalAvgPool2d,
    MaxPool2d,
    SeTail,
    SpaceToDepth,
    ToChannelsLast,
    parse,
)
from autotune.measure import CandidateBench
from autotune.runtime import bind

SEEDS = range(7)
DEVICE = torch.device("cpu")


def odd_conv(rng, kind=Conv2d):
    groups = rng.choice((1, 1, 2, 3))
    return kind(
        n=rng.randint(1, 5), h=rng.randint(7, 13), w=rng.randint(7, 13),
        c=groups * rng.choice((1, 3, 8, 19, 37)), k=groups * rng.choice((1, 5, 16, 33, 70)),
        r=rng.randint(1, 4), s=rng.randint(1, 4), stride=(rng.randint(1, 3), rng.randint(1, 3)),
        pad=(rng.randint(0, 3), rng.randint(0, 3)), dilation=(rng.randint(1, 2), rng.randint(1, 2)),
        groups=groups, dtype="f32", epilogue=random_epilogue(rng),
    )  # fmt: skip


def odd_input_gradient(rng):
    return odd_conv(rng, Conv2dDgrad)


def odd_weight_gradient(rng):
    return odd_conv(rng, Conv2dWgrad)


def odd_pool(rng, kind=AvgPool2d, **more):
    r, s = rng.randint(1, 4), rng.randint(1, 4)
    return kind(
        n=rng.randint(1, 3), h=rng.randint(4, 11), w=rng.randint(4, 11), c=rng.choice((1, 7, 16, 33, 71)), r=r, s=s,
        stride=(rng.randint(1, 3), rng.randint(1, 3)), pad=(rng.randint(0, r // 2), rng.randint(0, s // 2)),
        dtype="f32", epilogue=random_epilogue(rng), **more,
    )  # fmt: skip


def odd_max_pool(rng):
    return odd_pool(rng, MaxPool2d, ceil=rng.randint(0, 1))


def odd_pixels(rng, kind=Elementwise, **more):
    return kind(
        n=rng.randint(1, 4), h=rng.randint(1, 9), w=rng.randint(1, 9), c=rng.choice((1, 5, 16, 33, 100)),
        dtype="f32", epilogue=random_epilogue(rng), **more,
    )  # fmt: skip


def odd_mean(rng):
    return odd_pixels(rng, GlobalAvgPool2d)


def odd_turn(rng):
    return odd_pixels(rng, ToChannelsLast, to=100 + rng.choice((0, 1, 12)))


def odd_tail(rng):
    return SeTail(
        n=rng.randint(1, 4), h=rng.randint(1, 9), w=rng.randint(1, 9), c=rng.choice((1, 5, 16, 33, 100)),
        hidden=rng.choice((1, 3, 16, 21)), dtype="f32", epilogue=random_epilogue(rng),
    )  # fmt: skip


def odd_patches(rng):
    block = rng.randint(1, 5)
    return SpaceToDepth(
        n=rng.randint(1, 3), h=block * rng.randint(1, 5), w=block * rng.randint(1, 5), c=rng.randint(1, 5),
        block=block, dtype="f32",
    )  # fmt: skip


PROBLEMS = {
    "cpu_conv2d": odd_conv,
    "cpu_conv2d_dgrad": odd_input_gradient,
    "cpu_conv2d_wgrad": odd_weight_gradient,
    "cpu_avg_pool2d": odd_pool,
    "cpu_max_pool2d": odd_max_pool,
    "cpu_global_avg_pool2d": odd_mean,
    "cpu_elementwise": odd_pixels,
    "cpu_to_channels_last": odd_turn,
    "cpu_se_tail": odd_tail,
    "cpu_space_to_depth": odd_patches,
}

# What random sizes hardly meet: more input channels than one chunk, windows that lie in padding alone,
# output channels below, at and above a block.
CORNERS = [
    "conv2d n=1 h=5 w=4 c=300 k=9 r=2 s=2 pad=1 dtype=f32 epilogue=bias,relu",
    "conv2d n=2 h=3 w=3 c=4 k=8 r=1 s=1 pad=3 dtype=f32 epilogue=add_scalar,relu,add_scalar",
    "conv2d n=9 h=2 w=2 c=64 k=64 r=3 s=3 pad=1 dtype=f32 epilogue=mul_scalar,add_scalar",
    "conv2d n=3 h=1 w=17 c=6 k=65 r=1 s=5 stride=1,4 pad=0,4 dilation=1,3 dtype=f32 epilogue=relu,store,add_scalar",
    "conv2d n=2 h=6 w=6 c=12 k=12 r=3 s=3 pad=1 groups=12 dtype=f32 epilogue=silu",
    "conv2d n=2 h=7 w=6 c=10 k=20 r=3 s=3 pad=1 groups=10 stride=2,1 dilation=1,2 dtype=f32 epilogue=bias",
    "gemm m=37 n=70 k=300 dtype=f32 epilogue=bias,relu,add",
    "gemm m=1 n=5 k=3 dtype=f32 epilogue=store,silu",
    "conv2d_dgrad n=2 h=11 w=9 c=33 k=300 r=3 s=3 stride=2 pad=1 dtype=f32 epilogue=bias,relu,add",
    "conv2d_dgrad n=1 h=1 w=7 c=9 k=6 r=1 s=1 stride=3,3 dtype=f32 epilogue=add_scalar",
    "conv2d_dgrad n=2 h=9 w=8 c=12 k=24 r=3 s=3 stride=2,1 pad=1,2 groups=12 dilation=1,2 dtype=f32 epilogue=scale",
    "conv2d_wgrad n=3 h=20 w=19 c=33 k=13 r=3 s=3 stride=2,1 pad=1,0 dtype=f32 epilogue=bias,mul_scalar,add,store",
    "conv2d_wgrad n=2 h=9 w=8 c=12 k=24 r=3 s=3 stride=2,1 pad=1,2 groups=12 dilation=1,2 dtype=f32",
    "conv2d_wgrad n=2 h=2 w=2 c=8 k=8 r=5 s=5 pad=3 dtype=f32",
]


@dataclass(frozen=True)
class Trial:
    """A problem, and a kernel for it."""

    problem: object
    kernel: Kernel
    seed: int


def trials_of(name, target):
    arch, chosen = architecture("cpu"), family(name)
    problems = [PROBLEMS[name](random.Random(seed)) for seed in SEEDS]
    problems += [problem for problem in map(parse, CORNERS) if isinstance(problem, chosen.operator)]
    for seed, problem in enumerate(problems):
        configs = list(chosen.configs(arch, "f32", problem.epilogue))
        config = configs[(seed * 7 + 3) % len(configs)]
        yield Trial(problem, Kernel.of(name, config, "f32", problem.epilogue, target), seed)


@pytest.fixture(scope="module")
def trials(cpu_target):
    return {name: list(trials_of(name, cpu_target)) for name in PROBLEMS}


@pytest.fixture(scope="module")
def built(trials):
    """Every kernel of every trial, compiled together."""
    return built_paths(trial.kernel for of_family in trials.values() for trial in of_family)


def test_every_cpu_family_is_tested_here():
    in_bytes = {"cpu_cast"}  # test_bytes.py
    assert set(PROBLEMS) | in_bytes == {name for name, found in families().items() if "cpu" in found.architectures}


@pytest.mark.parametrize("name", PROBLEMS)
def test_kernels_solve_odd_problems(name, trials, built, cpu):
    chosen = family(name)
    for trial in trials[name]:
        assert chosen.why_not_served(trial.problem, cpu) is None
        case = CandidateBench(trial.problem, DEVICE, seed=trial.seed)
        given = {operand.name for operand in trial.problem.operands() if operand.role != "output"}
        before = {key: case.tensors[key].clone() for key in given}
        expected = solve(trial.problem, before, case.scalars)
        for launch in chosen.launches(trial.problem, trial.kernel.values, cpu):
            result = case.run(candidate_of(trial.kernel, built[trial.kernel], launch))
            assert result.status == "ok", f"{trial.problem} {trial.kernel} {launch}: {result.error}"
            assert result.median_us > 0 and len(result.samples_us) == 5
            assert all(torch.equal(case.tensors[key], before[key]) for key in given), "an input was overwritten"
            for key, value in expected.items():
                torch.testing.assert_close(case.tensors[key].double(), value, rtol=2e-5, atol=2e-5)
                assert relative_error(case.tensors[key], value) < 2e-6, f"{key} of {trial.problem} {trial.kernel}"


def test_kernels_of_several_configs_agree_on_one_problem(cpu, cpu_target):
    problem = parse("conv2d n=3 h=9 w=7 c=21 k=50 r=3 s=3 stride=2,1 pad=1 dtype=f32 epilogue=bias,add,store,relu")
    chosen = family("cpu_conv2d")
    configs = list(chosen.configs(cpu, "f32", problem.epilogue))
    sample = random.Random(1).sample(configs, 10)
    kernels = [Kernel.of("cpu_conv2d", config, "f32", problem.epilogue, cpu_target) for config in sample]
    case = CandidateBench(problem, DEVICE)
    expected = solve(problem, case.tensors, case.scalars)
    for kernel, path in built_paths(kernels).items():
        for launch in chosen.launches(problem, kernel.values, cpu):
            assert case.run(candidate_of(kernel, path, launch)).status == "ok", f"{kernel} {launch}"
            assert relative_error(case.tensors["y"], expected["y"]) < 2e-6
            assert relative_error(case.tensors["store2"], expected["store2"]) < 2e-6


def test_a_bound_kernel_runs_on_any_tensors_of_its_problem(trials, built):
    """The runtime's way: bind to tensors of our own, without the tuner's bench."""
    for trial in trials["cpu_se_tail"][:3]:
        generator = torch.Generator().manual_seed(trial.seed)
        tensors = {
            operand.name: torch.full(operand.shape, float("nan"))
            if operand.role == "output"
            else torch.randn(operand.shape, generator=generator)
            for operand in trial.problem.operands()
        }
        scalars = tuple(0.3 + i for i in range(trial.problem.epilogue.scalars))
        expected = solve(trial.problem, tensors, scalars)
        chosen = candidate_of(trial.kernel, built[trial.kernel], {"threads": 0})
        bind(chosen, trial.problem, tensors, scalars, DEVICE).run()
        for key, value in expected.items():
            assert relative_error(tensors[key], value) < 2e-6


def test_a_max_pool_keeps_nan_and_infinities_as_torch_does(cpu_kernel):
    problem = parse("max_pool2d n=1 h=9 w=9 c=21 r=3 s=3 stride=2 pad=1 dtype=f32")
    kernel = cpu_kernel("cpu_max_pool2d", {"block_c": 8})
    case = CandidateBench(problem, DEVICE)
    x = case.tensors["x"]
    x[0, ::4, ::2, ::2], x[0, 1::3, 1, 1::2], x[0, 2:7, 2:7, 20] = float("nan"), float("inf"), -float("inf")
    case.bind(candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1})).run()
    expected = torch.nn.functional.max_pool2d(x.movedim(-1, 1), 3, 2, 1).movedim(1, -1)
    assert expected.isnan().any() and expected.isinf().any() and expected.isfinite().any()
    torch.testing.assert_close(case.tensors["y"], expected, rtol=0, atol=0, equal_nan=True)


def test_weights_in_the_wrong_order_come_out_as_wrong(cpu_kernel):
    problem = parse("conv2d n=2 h=6 w=6 c=24 k=32 r=3 s=3 pad=1 dtype=f32 epilogue=relu")
    kernel = cpu_kernel("cpu_conv2d", {"block_k": 16, "block_pixels": 4, "unroll_c": 1}, "relu")
    right = candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1, "order": 0})
    case = CandidateBench(problem, DEVICE)
    assert case.run(right).status == "ok"
    result = case.run(replace(right, weight_layouts={"weight": "krsc"}))
    assert result.status == "wrong" and result.median_us is None and result.relative_error > 0.1


def test_a_kernel_with_another_epilogue_comes_out_as_wrong(cpu_kernel):
    problem = parse("avg_pool2d n=2 h=6 w=6 c=24 r=3 s=3 stride=2 pad=1 dtype=f32 epilogue=add_scalar")
    kernel = cpu_kernel("cpu_avg_pool2d", {"block_c": 8}, "mul_scalar")
    result = CandidateBench(problem, DEVICE).run(candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1}))
    assert result.status == "wrong" and "relative error" in result.error and result.median_us is None


# -- what families declare -------------------------------------------------------------------


def test_unknown_family_lists_the_known():
    with pytest.raises(UnknownNameError, match="cpu_conv2d"):
        family("cpu_conv3d")


@pytest.mark.parametrize("name", families())
def test_declarations_are_complete(name):
    found = families()[name]
    assert found.name == name and found.kind in (SHARED_LIBRARY, DEVICE_IMAGE)
    assert (found.kind == SHARED_LIBRARY) == (found.architectures == ("cpu",))
    assert set(found.architectures) <= set(ARCHITECTURES)
    for parameter in found.parameters + found.launch_parameters:
        assert parameter.meaning and len(set(parameter.values)) == len(parameter.values)


@pytest.mark.parametrize("name", families())
def test_every_architecture_of_a_family_has_legal_configs(name):
    found = families()[name]
    chain = Epilogue(found.operators[0].anchors)
    for arch in map(architecture, found.architectures):
        for dtype in arch.dtypes:
            if dtype not in found.dtypes:
                continue
            configs = list(islice(found.configs(arch, dtype, chain, tuple(PERMISSIONS)), 1000))
            assert configs
            assert all(found.why_illegal(config, arch, dtype, chain) is None for config in configs)
            assert len({tuple(config.values()) for config in configs}) == len(configs)


NETWORK = [
    "conv2d n=128 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype={} epilogue=mul_scalar,add_scalar",
    "conv2d n=1 h=4 w=4 c=256 k=512 r=3 s=3 stride=2 pad=1 dtype={}",
    "conv2d_dgrad n=8 h=16 w=16 c=64 k=128 r=3 s=3 stride=2 pad=1 dtype={}",
    "conv2d_dgrad n=8 h=16 w=16 c=64 k=64 r=3 s=3 pad=1 dtype={}",
    "conv2d_wgrad n=8 h=16 w=16 c=64 k=128 r=3 s=3 stride=2 pad=1 dtype={}",
    "gemm m=64 n=1000 k=512 dtype={} epilogue=bias",
    "avg_pool2d n=8 h=16 w=16 c=64 r=3 s=3 stride=2 pad=1 dtype={}",
    "max_pool2d n=8 h=16 w=16 c=64 r=3 s=3 stride=2 pad=1 dtype={}",
    "global_avg_pool2d n=8 h=7 w=7 c=512 dtype={}",
    "elementwise n=8 h=7 w=7 c=512 dtype={} epilogue=scale,bias,relu",
    "to_channels_last n=8 h=32 w=32 c=3 to=8 dtype={}",
    "space_to_depth n=8 h=64 w=64 c=3 block=4 dtype={}",
    "se_tail n=8 h=16 w=16 c=64 hidden=4 dtype={} epilogue=add,relu,add_scalar",
]


@pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=lambda arch: arch.name)
def test_every_layer_is_served_everywhere_with_costs_and_declared_launches(arch):
    dtypes = arch.dtypes
    if arch.name in ("sm86", "sm89"):  # sm80 with other limits
        assert dtypes == architecture("sm80").dtypes
        dtypes = dtypes[:1]
    for dtype in dtypes:
        # Gradients are of halves, or of a CPU's float32; bytes have what lies between a network's ends.
        halves = dtype in ("f16", "bf16") or (not arch.is_cuda and dtype != "s8")
        layers = [text for text in NETWORK if halves or not text.startswith("conv2d_")]
        floats = ("to_channels_last", "space_to_depth", "se_tail")
        layers = [text for text in layers if dtype != "s8" or not text.startswith(floats)]
        if "s8" in arch.dtypes and dtype != "tf32":
            layers.append(f"cast n=8 h=7 w=7 c=512 result={'f32' if dtype == 's8' else 's8'} dtype={{}}")
        for problem in (parse(text.format(dtype)) for text in layers):
            serving_families = serving(problem, arch)
            assert serving_families, f"nothing solves {problem} on {arch.name}"
            for found in serving_families:
                usable = found.configs_for(problem, arch)
                assert usable and all(found.launches(problem, config, arch) for config in usable)
                for config in usable[:: max(1, len(usable) // 20)]:
                    cost = found.cost(problem, config, arch)
                    assert math.isfinite(cost)
                    for launch in found.launches(problem, config, arch):
                        assert set(launch) == {parameter.name for parameter in found.launch_parameters}
                        for parameter in found.launch_parameters:
                            assert launch[parameter.name] in parameter.values


@pytest.mark.parametrize("processors", [7, 114, 148])
@pytest.mark.parametrize(
    "text",
    [
        "conv2d n=64 h=28 w=28 c=128 k=128 r=3 s=3 pad=1 dtype=f16 epilogue=bias,relu",
        "conv2d_se n=300 h=8 w=8 c=128 k=128 r=3 s=3 pad=1 hidden=8 dtype=f16 epilogue=gate,relu",
        "gemm m=512 n=512 k=4096 dtype=f16",
        "se_block n=300 h=16 w=16 c=64 hidden=4 dtype=f16",
        "stem_se_block n=300 h=64 w=64 c=3 k=64 block=4 hidden=4 dtype=f16",
    ],
)
def test_launches_are_declared_for_parts_of_other_sizes(text, processors):
    problem, arch = parse(text), replace(architecture("sm90"), processors=processors)
    for found in serving(problem, arch):
        configs = found.configs_for(problem, arch)
        for config in configs[:: max(1, len(configs) // 20)]:
            assert math.isfinite(found.cost(problem, config, arch))
            for launch in found.launches(problem, config, arch):
                assert all(launch[parameter.name] in parameter.values for parameter in found.launch_parameters)


def test_every_cuda_family_that_compiles_in_seconds_is_drawn_at_random_on_a_gpu():
    quick = {name for name, found in families().items() if found.kind == DEVICE_IMAGE and not found.opt_in}
    assert set(SIZES) == quick


def test_families_refuse_what_they_cannot_solve():
    sm80 = architecture("sm80")
    conv = parse("conv2d n=1 h=8 w=8 c=16 k=16 dtype=f16")
    tail = parse("se_tail n=1 h=2 w=2 c=12 hidden=2 dtype=f16")
    assert family("cutlass2_conv2d").why_not_served(conv, sm80) is None
    depthwise = replace(conv, groups=16)
    for change in ({"groups": 16}, {"groups": 2, "dtype": "f32"}, {"n": 2**20, "h": 64, "w": 64}):
        assert family("cutlass2_conv2d").why_not_served(replace(conv, **change), sm80)
    assert family("cutlass2_conv2d").why_not_served(replace(conv, dtype="bf16"), architecture("sm75"))
    assert family("cuda_depthwise_conv2d").why_not_served(conv, sm80)
    assert family("cuda_depthwise_conv2d").why_not_served(depthwise, sm80) is None
    assert family("cuda_se_tail").why_not_served(replace(tail, c=16, dtype="s8"), sm80)
    assert family("cuda_se_tail").why_not_served(tail, sm80)
    assert family("cuda_se_tail").why_not_served(conv, sm80)
    moved = parse("space_to_depth n=1 h=8 w=8 c=3 block=4 dtype=f32")
    for name, arch in (("cuda_space_to_depth", sm80), ("cpu_space_to_depth", architecture("cpu"))):
        assert family(name).why_not_served(moved, arch) is None
        assert (
            family(name).why_not_served(replace(moved, epilogue=Epilogue(("relu",))), arch)
            == "the epilogue must be empty"
        )
    assert family("cpu_conv2d").why_not_served(conv, sm80)
    assert family("cpu_conv2d").why_not_served(
        parse("conv2d_dgrad n=1 h=8 w=8 c=16 k=16 dtype=f32"), architecture("cpu")
    )


BLOCK = "se_block n={n} h={h} w={w} c={c} hidden={hidden} dtype={dtype} epilogue={chain},gate,add,relu"
WHOLE = {"n": 128, "h": 16, "w": 16, "c": 64, "hidden": 4, "dtype": "f16", "chain": "bias,relu,conv,bias"}


@pytest.mark.parametrize(
    ("change", "tiles"),
    [({}, {256}), ({"h": 8}, {128, 256}), ({"n": 3, "h": 8, "w": 8, "c": 32, "dtype": "bf16"}, {64, 128, 256})],
)
def test_a_block_takes_tiles_of_whole_images(change, tiles):
    chosen, sm90 = family("sm90_se_block"), architecture("sm90")
    problem = parse(BLOCK.format(**WHOLE | change))
    assert chosen.why_not_served(problem, sm90) is None
    configs = chosen.configs_for(problem, sm90)
    assert {config["tile_m"] for config in configs} == tiles
    assert {config["channels"] for config in configs} == {problem.c}
    assert all(problem.n * problem.h * problem.w > config["tile_m"] * (config["cluster"] - 1) for config in configs)


@pytest.mark.parametrize(
    "change", [{"h": 12}, {"h": 4, "w": 64}, {"h": 32}, {"c": 48}, {"c": 128}, {"hidden": 6}, {"dtype": "f32"}]
)
def test_a_block_that_does_not_fit_a_multiprocessor_is_refused(change):
    assert family("sm90_se_block").why_not_served(parse(BLOCK.format(**WHOLE | change)), architecture("sm90"))


@pytest.mark.parametrize("chain", ["add,conv", "conv,store"])
def test_nothing_but_the_last_part_of_a_block_is_at_pixels(chain):
    problem = parse(BLOCK.format(**WHOLE | {"chain": chain}))
    assert family("sm90_se_block").configs_for(problem, architecture("sm90")) == []


def test_more_tiles_than_multiprocessors_are_dealt_to_blocks_that_stay():
    chosen, sm90 = family("sm90_se_block"), architecture("sm90")
    problem = parse(BLOCK.format(**WHOLE | {"n": 300}))
    for config in chosen.configs_for(problem, sm90):
        grids = {launch["grid"] for launch in chosen.launches(problem, config, sm90)}
        assert grids == {0, sm90.processors_for(int(config["cluster"]))}


def test_stems_are_served_where_the_kernel_can_solve_them():
    stem, sm90 = family("cuda_stem"), architecture("sm90")
    text = "stem n=8 h=224 w=224 c=3 k=64 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1 dtype=f16"
    problem = parse(text)
    for arch in map(architecture, stem.architectures):
        assert stem.why_not_served(problem, arch) is None
        configs = stem.configs_for(problem, arch)
        assert {config["instruction"] for config in configs} == ({"mma", "wgmma"} if arch is sm90 else {"mma"})
        assert all(stem.why_unfit(problem, config, arch) is None for config in configs)
        assert all(math.isfinite(stem.cost(problem, config, arch)) for config in configs)
    for old, new in [
        *(("c=3", "c=5"), ("k=64", "k=60"), ("w=224", "w=225"), ("stride=2", "stride=1"), ("pad=3", "pad=2")),
        *(("r=7", "r=5"), ("pool_stride=2", "pool_stride=1"), ("dtype=f16", "dtype=f32")),
    ]:
        assert stem.why_not_served(parse(text.replace(old, new, 1)), sm90), new
    assert {config["access"] for config in stem.configs_for(replace(problem, w=226), sm90)} == {2}


def test_short_products_are_served_where_their_operands_fit_registers():
    short, sm90 = family("cuda_pointwise_conv2d"), architecture("sm90")
    text = "conv2d n=8 h=8 w=8 c=64 k=128 dtype=f16"
    assert short.why_not_served(parse(text), sm90) is None
    assert short.why_not_served(parse("gemm m=100 n=16 k=256 dtype=bf16"), sm90) is None
    for old, new in [
        *(("c=64", "c=60"), ("c=64", "c=264"), ("c=64", "c=160"), ("k=128", "k=130"), ("f16", "f32")),
        *(("k=128", "k=128 stride=2"), ("k=128", "k=128 groups=2"), ("k=128", "k=128 r=3 s=3 pad=1")),
    ]:
        assert short.why_not_served(parse(text.replace(old, new, 1)), sm90), new
    problem = parse(text)
    for config in short.configs_for(problem, sm90):
        assert int(config["steps"]) == 2
        walks = [launch["walk"] for launch in short.launches(problem, config, sm90)]
        assert min(walks) == 1 + int(config["ahead"]), "there is a next tile to read ahead"
    single = parse("gemm m=8 n=64 k=64 dtype=f16")
    assert {config["ahead"] for config in short.configs_for(single, sm90)} == {0}


def test_few_channels_in_one_line_are_served_where_lines_begin_whole_words_apart():
    narrow, sm90 = family("cuda_narrow_conv2d"), architecture("sm90")
    text = "conv2d n=8 h=224 w=224 c=3 k=64 r=7 s=7 stride=2 pad=3 dtype=f16"
    problem = parse(text)
    for arch in map(architecture, narrow.architectures):
        assert narrow.why_not_served(problem, arch) is None
        configs = narrow.configs_for(problem, arch)
        assert {config["instruction"] for config in configs} == ({"mma", "wgmma"} if arch is sm90 else {"mma"})
    for old, new in [
        *(("c=3", "c=5"), ("k=64", "k=60"), ("w=224", "w=225"), ("stride=2", "stride=1"), ("pad=3", "pad=2")),
        *(("r=7", "r=5"), ("stride=2", "stride=2,1"), ("stride=2", "stride=2 dilation=2"), ("dtype=f16", "dtype=f32")),
    ]:
        assert narrow.why_not_served(parse(text.replace(old, new, 1)), sm90), new
    for c, w, stride in [(4, 225, 1), (2, 223, 1), (1, 224, 2)]:
        asked = replace(problem, c=c, w=w, stride=(stride, stride))
        assert narrow.why_not_served(asked, sm90) is None and narrow.configs_for(asked, sm90)


def test_symbols_tell_kernels_apart(cpu_target):
    base = ("cpu_conv2d", {"block_k": 16, "block_pixels": 4, "unroll_c": 1}, "f32", Epilogue.parse("relu"), cpu_target)
    other = [
        (*base[:1], {**base[1], "unroll_c": 2}, *base[2:]),
        (*base[:3], Epilogue.parse("relu,relu"), base[4]),
        (*base[:4], "x86-64"),
    ]
    symbols = {rendering.symbol(Kernel.of(*values)) for values in [base, *other]}
    assert len(symbols) == 4 and all(symbol.isidentifier() for symbol in symbols)
