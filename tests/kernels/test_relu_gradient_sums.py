"""Gradients of ReLUs with sums over each image: kernels of a GPU, by their own text on a CPU, and those of the CPU."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from emulator import Emulated
from kernels import built_paths, candidate_of, random_inputs

from autotune.core import ProblemError, architecture
from autotune.families import Kernel, family
from autotune.ir import compute, parse
from autotune.runtime import bind

pytestmark = pytest.mark.compile

SM90 = architecture("sm90")
CUDA, CPU = family("cuda_relu_gradient_sums"), family("cpu_relu_gradient_sums")
ROUNDING = {"f16": 2**-11, "bf16": 2**-8, "f32": 2**-23}
SUM_ROUNDING = 1e-6  # of sums in float32, relative to the sum of the magnitudes
# Vector, groups, lanes and items of kernels.
KERNELS = {
    "f16": (8, 8, 32, 2),
    "f16, more channels than lanes": (8, 16, 2, 1),
    "f16, one channel": (1, 32, 1, 4),
    "bf16": (4, 8, 8, 1),
    "bf16, pairs": (2, 4, 16, 4),
    "f32": (4, 8, 4, 2),
    "f32, one channel and lane": (1, 64, 1, 1),
}
# Problems, and the number of a kernel's vectors in a pixel. Most are not whole blocks.
PROBLEMS = {
    "no pool": ("n=2 h=7 w=9", 3),
    "product": ("n=3 h=6 w=5 product=1", 19),
    "one pixel": ("n=3 h=1 w=1 product=1", 8),
    "one pixel and its pool": ("n=1 h=1 w=1 product=1 pool=3 stride=2 pad=1", 4),
    "resnet": ("n=2 h=8 w=10 product=1 pool=3 stride=2 pad=1", 9),
    "odd sides": ("n=2 h=9 w=7 pool=3 stride=2 pad=1", 2),
    "no padding": ("n=1 h=8 w=7 product=1 pool=3 stride=2", 1),
    "apart": ("n=2 h=6 w=8 pool=2 stride=2", 16),
    "apart, odd sides": ("n=1 h=7 w=9 product=1 pool=2 stride=2", 3),
    "apart, with padding": ("n=2 h=4 w=5 pool=2 stride=2 pad=1", 2),
    "overlapping": ("n=2 h=6 w=7 product=1 pool=3 pad=1", 5),
    "pairs": ("n=1 h=5 w=4 pool=2", 3),
    "wide": ("n=2 h=9 w=6 product=1 pool=5 stride=2 pad=2", 2),
    "pixels in no window": ("n=2 h=8 w=10 product=1 pool=2 stride=3", 3),
    "one window": ("n=2 h=5 w=4 pool=4 stride=4", 2),
}
KINDS = ("exact", "spread", "nan")


def operands(problem, kind):
    """Return the inputs: small integers, random values, or these with NaN in some channels of dy."""
    tensors, _ = random_inputs(problem, seed=5)
    if kind == "exact":
        generator = torch.Generator().manual_seed(6)
        for name in tensors.keys() - {"inactive"}:
            tensors[name] = torch.randint(-8, 9, tensors[name].shape, generator=generator).to(tensors[name].dtype)
    else:
        tensors["inactive"] = tensors["inactive"] > 0  # a tensor of bool
    if kind == "nan":
        tensors["dy"][0, 0, 0, ::3], tensors["inactive"][0, 0, 0, ::3] = float("nan"), True
        tensors["dy"][-1, -1, -1, 1::3], tensors["inactive"][-1, -1, -1, 1::3] = float("nan"), False
    return tensors


def gradients(problem, tensors):
    """Return the gradients of a ReLU's result and of its input (n, h, w, c) by torch's autograd in float64."""
    given = {name: tensor.double().movedim(-1, 1) for name, tensor in tensors.items()}
    inactive = tensors["inactive"].long().bitwise_and(1).bool().movedim(-1, 1)
    x = torch.where(inactive, -1.0, 1.0).double().requires_grad_()
    result = x.relu()
    outputs, output_gradients = [result], [given["dy"]]
    if problem.pool:
        outputs.append(F.avg_pool2d(result, problem.pool, problem.stride, problem.pad))
        output_gradients.append(given["pooled"])
    found = torch.autograd.grad(outputs, (result, x), output_gradients)
    return [one.movedim(1, -1) for one in found]


def assert_close(found, wanted, limit, said):
    """Check that values differ by at most a limit, with NaN in the same places."""
    found = found.double()
    assert torch.equal(found.isnan(), wanted.isnan()), said
    excess = ((found - wanted).abs() - limit)[~wanted.isnan()]
    assert (excess <= 0).all(), f"{said}: {float(excess.max())} more than allowed"


def assert_is_gradient(found, problem, tensors, kind, said, rounding):
    gradient, y = gradients(problem, tensors)
    assert y.any()
    sizes = {name: one if name == "inactive" else one.abs().nan_to_num(0) for name, one in tensors.items()}
    limits = gradients(problem, sizes)
    summed = [gradient, y]
    if problem.product:
        summed += [y * tensors["factor"].double(), tensors["factor"].double()]
        limits += [limits[1] * sizes["factor"].double(), sizes["factor"].double()]
    # Small integers, and their quarters and sixteenths, have exact sums.
    exact = kind == "exact" and problem.pool not in (3, 5)
    assert_close(found["y"], y, 0 if exact else rounding * y.abs() + SUM_ROUNDING * limits[1], f"y of {said}")
    assert found["sums"].shape == (problem.n, len(summed), problem.c)
    for row, (values, limit) in enumerate(zip(summed, limits, strict=True)):
        most = 0 if exact else SUM_ROUNDING * limit.sum((1, 2))
        assert_close(found["sums"][:, row], values.sum((1, 2)), most, f"sums {row} of {said}")
    if kind == "nan":  # of which a mask hides some
        assert found["sums"][0, 0, ::3].isnan().all() and (found["y"][0, 0, 0, ::3] == 0).all()
        assert found["y"][..., ::3].isfinite().all() and found["sums"][:, 1, ::3].isfinite().all()


def same_bits(results):
    return all(torch.equal(results[0][name], other[name]) for other in results[1:] for name in other)


def bits(outputs):
    return {name: tensor.view(torch.uint8) for name, tensor in outputs.items()}


@pytest.mark.parametrize(("name", "values"), KERNELS.items(), ids=KERNELS)
def test_the_cuda_kernels_text_makes_autograds_gradient(name, values, tmp_path):
    dtype = name.partition(",")[0]
    config = dict(zip((parameter.name for parameter in CUDA.parameters), values, strict=True))
    problems = {
        said: parse(f"relu_gradient_sums {sizes} c={config['vector'] * vectors} dtype={dtype}")
        for said, (sizes, vectors) in PROBLEMS.items()
    }
    emulated = Emulated(Kernel.of(CUDA.name, config, dtype, problems["no pool"].epilogue, "sm_90"), tmp_path)
    for (said, problem), kind in itertools.product(problems.items(), KINDS):
        assert config in CUDA.configs_for(problem, SM90)
        tensors = operands(problem, kind)
        results = [emulated.run(problem, tensors, (), {}, 1, seed=seed) for seed in range(2)]
        assert_is_gradient(results[0], problem, tensors, kind, f"{said}, {kind}", ROUNDING[dtype])
        assert same_bits(list(map(bits, results))), said
    again = emulated.run(problem, tensors, (), {}, 1, launches=2)
    assert same_bits([bits(results[0]), bits(again)])


def test_a_cuda_kernel_says_why_it_refuses_a_problem(tmp_path):
    config = {"vector": 8, "groups": 8, "lanes": 4, "items": 1}
    problem = parse("relu_gradient_sums n=1 h=4 w=4 c=16 dtype=f16")
    emulated = Emulated(Kernel.of(CUDA.name, config, "f16", problem.epilogue, "sm_90"), tmp_path)
    assert emulated.refusal(problem, {}) is None
    refused = parse("relu_gradient_sums n=1 h=4 w=4 c=12 product=1 pool=2 dtype=f16")
    assert emulated.refusal(refused, {}) == "c must be a multiple of the vector of 8 elements"
    assert CUDA.why_unfit(refused, config, SM90) == "c must be a multiple of the vector: 12 is not one of 8"
    assert {config["vector"] for config in CUDA.configs_for(refused, SM90)} == {1, 2, 4}
    found = [emulated.shared_bytes(replace(problem, product=product), {}) for product in range(2)]
    assert found == [rows * 32 * 8 * 4 for rows in (2, 4)]


def test_a_config_is_illegal_for_a_reason():
    epilogue = parse("relu_gradient_sums n=1 h=4 w=4 c=16 dtype=f16").epilogue

    def said(dtype, *values):
        config = dict(zip((parameter.name for parameter in CUDA.parameters), values, strict=True))
        return CUDA.why_illegal(config, SM90, dtype, epilogue)

    assert said("f16", 8, 8, 32, 2) is None
    assert "elements of f32 have more" in said("f32", 8, 8, 32, 2)
    assert said("f16", 1, 4, 4, 1) == "a block must have 32 to 512 threads; groups times lanes is 16"
    assert said("f16", 1, 64, 16, 1) == "a block must have 32 to 512 threads; groups times lanes is 1024"
    assert said("f16", 8, 16, 32, 1) == "the threads' sums take 65536 bytes of shared memory, more than 48 KB"


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "product=2": "product is 0 or 1",
        "stride=2": "stride and pad are those of a pool; without one they are 1 and 0",
        "pad=1": "stride and pad are those of a pool; without one they are 1 and 0",
        "pool=3 pad=2": "pad is at most half of pool, and the padded image holds a window",
        "pool=7 pad=1": "pad is at most half of pool, and the padded image holds a window",
        "pool=-1": "pool=-1 must be at least 0",
        "pool=2 stride=0": "stride=0 must be at least 1",
        "pool=2 pad=-1": "pad=-1 must be at least 0",
    }.items(),
)
def test_fields_that_make_no_problem_are_refused(words, said):
    with pytest.raises(ProblemError, match=said):
        parse(f"relu_gradient_sums n=1 h=8 w=4 c=8 {words} dtype=f16")


def test_the_name_says_what_is_fused():
    plain = parse("relu_gradient_sums n=1 h=56 w=28 c=64 dtype=f16")
    fused = parse("relu_gradient_sums n=1 h=56 w=28 c=64 product=1 pool=3 stride=2 pad=1 dtype=f16")
    assert plain.short_name == "relu gradient + sums 64 @56x28"
    assert fused.short_name == "relu gradient + sums 64 @56x28 + pool 3x3/2 + product"
    assert [one.name for one in plain.operands()] == ["dy", "inactive", "y", "sums"]
    assert [one.name for one in fused.operands()] == ["dy", "inactive", "pooled", "factor", "y", "sums"]


@pytest.mark.parametrize("sizes", [sizes for sizes, _ in PROBLEMS.values()], ids=PROBLEMS)
def test_the_reference_is_autograds_gradient(sizes):
    problem = parse(f"relu_gradient_sums {sizes} c=5 dtype=f32")
    for kind in KINDS:
        tensors = operands(problem, kind)
        for dtype in (torch.float64, torch.float32):
            mask = tensors["inactive"] if dtype == torch.float32 else tensors["inactive"].to(dtype)
            given = {name: tensor.to(dtype) for name, tensor in tensors.items()} | {"inactive": mask}
            found = compute(problem, given, ())
            assert_is_gradient(found, problem, tensors, "" if kind == "exact" else kind, f"{dtype} {kind}", 1e-6)


@pytest.mark.parametrize("block_c", [8, 64])
def test_the_cpu_kernel_makes_autograds_gradient(block_c, cpu_kernel):
    kernel = cpu_kernel(CPU.name, {"block_c": block_c})
    path = built_paths([kernel])[kernel]
    channels = itertools.cycle((8, 71, 64, 5))  # whole blocks, and channels behind them
    for (said, (sizes, _)), c in zip(PROBLEMS.items(), channels, strict=False):
        problem = parse(f"relu_gradient_sums {sizes} c={c} dtype=f32")
        for kind in KINDS:
            tensors, results = operands(problem, kind), []
            for threads in (0, 1, 0):
                outputs = {
                    one.name: torch.full(one.shape, float("nan")) for one in problem.operands() if one.role == "output"
                }
                candidate = candidate_of(kernel, path, {"threads": threads})
                bind(candidate, problem, {**tensors, **outputs}, (), torch.device("cpu")).run()
                results.append(outputs)
            assert_is_gradient(results[0], problem, tensors, kind, f"{said}, {kind}", ROUNDING["f32"])
            assert same_bits(list(map(bits, results))), said
