"""Kernels of the CPU families on random problems of odd sizes."""

import random
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from comparison import relative_error
from epilogues import random_epilogue
from kernels import built_paths, candidate_of
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, families, family
from autotune.ir import Epilogue, parse
from autotune.ir import operators as op
from autotune.measure import CandidateBench
from autotune.runtime import bind

SEEDS = range(5)
DEVICE = torch.device("cpu")


def odd_conv(rng, kind=op.Conv2d):
    groups = rng.choice((1, 1, 2, 3))
    return kind(
        n=rng.randint(1, 5), h=rng.randint(7, 13), w=rng.randint(7, 13),
        c=groups * rng.choice((1, 3, 8, 19, 37)), k=groups * rng.choice((1, 5, 16, 33, 70)),
        r=rng.randint(1, 4), s=rng.randint(1, 4), stride=(rng.randint(1, 3), rng.randint(1, 3)),
        pad=(rng.randint(0, 3), rng.randint(0, 3)), dilation=(rng.randint(1, 2), rng.randint(1, 2)),
        groups=groups, dtype="f32", epilogue=random_epilogue(rng),
    )  # fmt: skip


def odd_conv_statistics(rng):
    sizes = {**vars(odd_conv(rng)), "epilogue": Epilogue()}
    return op.Conv2dStatistics(**{**sizes, "n": sizes["n"] + 1})  # one value of a channel has no spread


def odd_conv_sums(rng):
    sizes = {**vars(odd_conv(rng)), "epilogue": Epilogue()}
    sizes["k"] += 4 * sizes["groups"]  # one channel may be 0 everywhere
    return op.Conv2dGradientSums(**sizes, relu=rng.randint(0, 2), gradients=rng.randint(1, 2))


def odd_pool(rng, kind=op.AvgPool2d, **more):
    r, s = rng.randint(1, 4), rng.randint(1, 4)
    return kind(
        n=rng.randint(1, 3), h=rng.randint(4, 11), w=rng.randint(4, 11), c=rng.choice((1, 7, 16, 33, 71)), r=r, s=s,
        stride=(rng.randint(1, 3), rng.randint(1, 3)), pad=(rng.randint(0, r // 2), rng.randint(0, s // 2)),
        dtype="f32", epilogue=random_epilogue(rng), **more,
    )  # fmt: skip


def odd_max_pool(rng):
    return odd_pool(rng, op.MaxPool2d, ceil=rng.randint(0, 1))


def odd_trained_pool(rng, kind):
    pool = odd_max_pool(rng)
    while pool.r * pool.s == 1:  # all places are 0, to which no error is relative
        pool = odd_max_pool(rng)
    return kind(**{**vars(pool), "epilogue": Epilogue()})


def odd_pixels(rng, kind=op.Elementwise, **more):
    return kind(
        n=rng.randint(1, 4), h=rng.randint(1, 9), w=rng.randint(1, 9), c=rng.choice((1, 5, 16, 33, 100)),
        dtype="f32", epilogue=random_epilogue(rng, broadcast=kind is op.Elementwise), **more,
    )  # fmt: skip


def odd_concat(rng):
    pieces = []
    for _ in range(rng.randint(1, 8)):
        first, count, behind = rng.choice((0, 3)), rng.choice((1, 2, 10, 33)), rng.choice((0, 5))
        pieces.append(op.Piece(first + count + behind, first, first + count))
    c = sum(piece.count for piece in pieces)
    return op.Concat(
        n=rng.randint(1, 3), h=rng.randint(1, 5), w=rng.randint(1, 5), pieces=tuple(pieces),
        interleave=rng.choice([groups for groups in (1, 2, 3, 5) if c % groups == 0]),
        dtype="f32", epilogue=random_epilogue(rng, broadcast=True),
    )  # fmt: skip


def odd_tail(rng):
    return op.SeTail(
        n=rng.randint(1, 4), h=rng.randint(1, 9), w=rng.randint(1, 9), c=rng.choice((1, 5, 16, 33, 100)),
        hidden=rng.choice((1, 3, 16, 21)), dtype="f32", epilogue=random_epilogue(rng),
    )  # fmt: skip


def odd_gate(rng):
    return op.SqueezeExcite(
        n=rng.randint(1, 4), h=rng.randint(1, 9), w=rng.randint(1, 9), c=rng.choice((1, 5, 16, 33, 100)),
        hidden=rng.choice((1, 3, 16, 21)), act=rng.choice(("relu", "silu", "hardswish")),
        gate=rng.choice(("sigmoid", "hardsigmoid")), dtype="f32", epilogue=random_epilogue(rng),
    )  # fmt: skip


def odd_patches(rng):
    block = rng.randint(1, 5)
    return op.SpaceToDepth(
        n=rng.randint(1, 3), h=block * rng.randint(1, 5), w=block * rng.randint(1, 5), c=rng.randint(1, 5),
        block=block, dtype="f32",
    )  # fmt: skip


def odd_statistics(rng, kind=op.BatchNormStatistics, **more):
    return kind(
        n=rng.randint(1, 6), h=rng.randint(2, 19), w=rng.randint(1, 19), c=rng.choice((1, 5, 16, 33, 100)),
        dtype="f32", **more,
    )  # fmt: skip


def odd_relu_gradient(rng):
    pool = rng.randint(0, 4)
    window = {"pool": pool, "stride": rng.randint(1, 3), "pad": rng.randint(0, pool // 2)} if pool else {}
    sizes = vars(odd_statistics(rng))
    return op.ReluGradientSums(
        **{**sizes, "h": sizes["h"] + 3, "w": sizes["w"] + 3}, product=rng.randint(0, 1), **window
    )


def odd_groups(rng, kind=op.GroupNorm):
    groups = rng.choice((1, 2, 5, 8, 33))
    return kind(
        n=rng.randint(1, 3), h=rng.randint(2, 20), w=rng.randint(1, 20), c=groups * rng.choice((1, 3, 8, 20)),
        groups=groups, dtype="f32", epilogue=random_epilogue(rng) if kind.has_epilogue else Epilogue(),
    )  # fmt: skip


def odd_resize(rng):
    h, w, p, q = (rng.randint(1, 12) for _ in range(4))
    return op.Upsample(
        n=rng.randint(1, 3), h=h, w=w, c=rng.choice((1, 5, 16, 33, 71)), p=p, q=q, rows=(h, p), columns=(w, q),
        mode=rng.choice(("nearest", "nearest_exact", "bilinear", "bilinear_corners")),
        dtype="f32", epilogue=random_epilogue(rng),
    )  # fmt: skip


PROBLEMS = {
    "cpu_conv2d": odd_conv,
    "cpu_conv2d_dgrad": lambda rng: odd_conv(rng, op.Conv2dDgrad),
    "cpu_conv2d_wgrad": lambda rng: odd_conv(rng, op.Conv2dWgrad),
    "cpu_conv2d_statistics": odd_conv_statistics,
    "cpu_conv2d_gradient_sums": odd_conv_sums,
    "cpu_avg_pool2d": odd_pool,
    "cpu_clipped_avg_pool2d": lambda rng: odd_pool(rng, op.ClippedAvgPool2d, ceil=rng.randint(0, 1)),
    "cpu_adaptive_avg_pool2d": lambda rng: odd_pixels(
        rng, op.AdaptiveAvgPool2d, p=rng.randint(1, 11), q=rng.randint(1, 11)
    ),
    "cpu_max_pool2d": odd_max_pool,
    "cpu_max_pool2d_places": partial(odd_trained_pool, kind=op.MaxPool2dPlaces),
    "cpu_max_pool2d_places_gradient": partial(odd_trained_pool, kind=op.MaxPool2dPlacesGradient),
    "cpu_batch_norm_gradient": lambda rng: odd_statistics(rng, op.BatchNormGradient, relu=rng.randint(0, 1)),
    "cpu_batch_norm_gradient_sums": lambda rng: odd_statistics(
        rng, op.BatchNormGradientSums, relu=rng.randint(0, 2), gradients=rng.randint(1, 2)
    ),
    "cpu_batch_norm_statistics": odd_statistics,
    "cpu_relu_gradient_sums": odd_relu_gradient,
    "cpu_global_avg_pool2d": lambda rng: odd_pixels(rng, op.GlobalAvgPool2d),
    "cpu_elementwise": odd_pixels,
    "cpu_layer_norm": lambda rng: replace(
        odd_pixels(rng, op.LayerNorm), c=rng.choice((3, 5, 16, 33, 100))
    ),  # one channel gives 0
    "cpu_group_norm": odd_groups,
    "cpu_group_statistics": partial(odd_groups, kind=op.GroupStatistics),
    "cpu_normalize": lambda rng: odd_pixels(rng, op.Normalize),
    "cpu_softmax": lambda rng: odd_pixels(rng, op.Softmax),
    "cpu_upsample": odd_resize,
    "cpu_depth_to_space": lambda rng: odd_pixels(
        rng, op.DepthToSpace, block=(rng.randint(1, 3), rng.randint(1, 3)), inner=rng.randint(0, 1)
    ),
    "cpu_concat": odd_concat,
    "cpu_to_channels_last": lambda rng: odd_pixels(rng, op.ToChannelsLast, to=100 + rng.choice((0, 1, 12))),
    "cpu_se_tail": odd_tail,
    "cpu_squeeze_excite": odd_gate,
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
    "conv2d_broadcast n=3 h=5 w=7 c=12 k=37 r=3 s=1 pad=1,0 dtype=f32 epilogue=bias,mul_image,add,add_pixel,relu",
    "conv2d n=2 h=7 w=6 c=10 k=20 r=3 s=3 pad=1 groups=10 stride=2,1 dilation=1,2 dtype=f32 epilogue=bias",
    "gemm m=37 n=70 k=300 dtype=f32 epilogue=bias,relu,add",
    "gemm m=1 n=5 k=3 dtype=f32 epilogue=store,silu",
    "conv2d_dgrad n=2 h=11 w=9 c=33 k=300 r=3 s=3 stride=2 pad=1 dtype=f32 epilogue=bias,relu,add",
    "conv2d_dgrad n=1 h=1 w=7 c=9 k=6 r=1 s=1 stride=3,3 dtype=f32 epilogue=add_scalar",
    "conv2d_dgrad n=2 h=9 w=8 c=12 k=24 r=3 s=3 stride=2,1 pad=1,2 groups=12 dilation=1,2 dtype=f32 epilogue=scale",
    "conv2d_wgrad n=3 h=20 w=19 c=33 k=13 r=3 s=3 stride=2,1 pad=1,0 dtype=f32 epilogue=bias,mul_scalar,add,store",
    "conv2d_wgrad n=2 h=9 w=8 c=12 k=24 r=3 s=3 stride=2,1 pad=1,2 groups=12 dilation=1,2 dtype=f32",
    "conv2d_wgrad n=2 h=2 w=2 c=8 k=8 r=5 s=5 pad=3 dtype=f32",
    "layer_norm n=1 h=1 w=3 c=4096 dtype=f32 epilogue=scale,bias,gelu",
    "group_norm n=1 h=40 w=41 c=96 groups=32 dtype=f32 epilogue=scale,bias,relu",
    "group_norm n=2 h=40 w=41 c=70 groups=1 dtype=f32 epilogue=scale,bias",
    "group_statistics n=2 h=40 w=41 c=96 groups=32 dtype=f32",
    "group_statistics n=2 h=40 w=41 c=70 groups=1 dtype=f32",
    "normalize n=2 h=3 w=5 c=70 dtype=f32 epilogue=scale,bias,silu",
    "batch_norm_statistics n=1 h=1 w=1 c=37 dtype=f32",
    "batch_norm_gradient n=1 h=1 w=1 c=37 relu=1 dtype=f32",
    "batch_norm_gradient_sums n=2 h=20 w=13 c=37 relu=0 gradients=1 dtype=f32",
    "batch_norm_gradient_sums n=2 h=20 w=13 c=37 relu=0 gradients=2 dtype=f32",
    "batch_norm_gradient_sums n=2 h=20 w=13 c=37 relu=1 gradients=1 dtype=f32",
    "batch_norm_gradient_sums n=2 h=20 w=13 c=37 relu=1 gradients=2 dtype=f32",
    "batch_norm_gradient_sums n=2 h=20 w=13 c=37 relu=2 gradients=1 dtype=f32",
    "batch_norm_gradient_sums n=2 h=20 w=13 c=37 relu=2 gradients=2 dtype=f32",
    "relu_gradient_sums n=1 h=1 w=1 c=37 dtype=f32",
    "relu_gradient_sums n=2 h=20 w=13 c=37 product=1 dtype=f32",
    "relu_gradient_sums n=2 h=20 w=13 c=70 product=1 pool=3 stride=2 pad=1 dtype=f32",
    "relu_gradient_sums n=2 h=11 w=12 c=37 pool=2 stride=3 dtype=f32",
    "upsample n=1 h=64 w=3 c=21 p=9 q=400 rows=64,9 columns=3,400 mode=bilinear dtype=f32",
    "concat n=2 h=5 w=3 pieces=64,32,10 dtype=f32 epilogue=scale,bias,relu",
    "concat n=2 h=5 w=3 pieces=29:58/58,58 interleave=3 dtype=f32 epilogue=mul_image,store,add_pixel",
    "concat n=1 h=2 w=3 pieces=1:5/9,4 interleave=8 dtype=f32",
    "elementwise n=2 h=5 w=3 c=37 dtype=f32 epilogue=scale,bias,add_scaled,relu",
    "elementwise n=2 h=5 w=3 c=37 dtype=f32 epilogue=sub,mul,mul_image,mul_pixel,add_image,add_pixel",
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
        configs = chosen.configs_for(problem, arch)
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
    in_bytes = {"cpu_cast"}  # tests/kernels/test_cpu_bytes.py
    assert set(PROBLEMS) | in_bytes == {name for name, found in families().items() if "cpu" in found.architectures}


@pytest.mark.compile
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


@pytest.mark.compile
@pytest.mark.parametrize("name", PROBLEMS)
def test_nan_of_weights_and_vectors_arrives(name, trials, built):
    """CandidateBench has special values among the activations. A kernel multiplies padding by NaN, or leaves it out."""
    launch = {parameter.name: 0 for parameter in family(name).launch_parameters}
    for trial in trials[name]:
        case = CandidateBench(trial.problem, DEVICE, seed=trial.seed)
        constants = [o.name for o in trial.problem.operands() if o.role in ("weight", "vector")]
        solutions = []
        for value in (1000.0, -300.0, float("nan")):
            for constant in constants:
                case.tensors[constant].view(-1)[case.tensors[constant].numel() // 2] = value
            solutions.append(solve(trial.problem, case.tensors, case.scalars))
        chosen = candidate_of(trial.kernel, built[trial.kernel], launch)
        bind(chosen, trial.problem, case.tensors, case.scalars, DEVICE).run()
        one, other, expected = solutions
        for key, value in expected.items():
            y = case.tensors[key].double()
            assert y[value.isnan() & (one[key] != other[key])].isnan().all(), f"{key} of {trial.problem}"
            untouched = ~value.flatten(0, -2).isnan().any(0)  # channels
            assert not y[..., untouched].isnan().any(), f"{key} of {trial.problem}"
            finite = value.isfinite() & ~y.isnan()
            torch.testing.assert_close(y[finite], value[finite], rtol=2e-5, atol=2e-5)


@pytest.mark.compile
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


@pytest.mark.compile
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


@pytest.mark.compile
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


@pytest.mark.compile
@pytest.mark.parametrize("threads", [0, 1])
def test_the_kernel_that_reads_images_reads_either_order(cpu_kernel, threads):
    problem = parse("space_to_depth n=3 h=12 w=20 c=3 block=4 dtype=f32")
    kernel = cpu_kernel("cpu_space_to_depth", {})
    path = built_paths([kernel])[kernel]
    x = torch.randn(3, 3, 12, 20, generator=torch.Generator().manual_seed(0))
    wanted = solve(problem, {"x": x}, ())["y"]
    for last, given in enumerate((x, x.to(memory_format=torch.channels_last))):
        y = torch.full(problem.output_shape, float("nan"))
        launch = {"threads": threads, "channels_last": last}
        bind(candidate_of(kernel, path, launch), problem, {"x": given, "y": y}, (), torch.device("cpu")).run()
        assert torch.equal(y.double(), wanted)
