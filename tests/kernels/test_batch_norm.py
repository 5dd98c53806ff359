"""Batch normalization in training: the kernels of a CPU, and the CUDA kernels' own text, run on a CPU."""

import pytest
import torch
from comparison import relative_error
from emulator import Emulated
from kernels import built_paths, candidate_of, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse
from autotune.runtime import bind

pytestmark = pytest.mark.compile

SM90 = architecture("sm90")
LIMIT = {"f16": 1e-3, "bf16": 8e-3, "f32": 4e-6}
# By dtype, the config (vector, items, columns, threads) and sizes: whole and partial chunks, slabs with idle columns,
# fewer pixels than lanes, several slabs.
CASES = {
    "f16": ((8, 2, 4, 128), ("n=2 h=9 w=11 c=8", "n=3 h=13 w=8 c=40", "n=1 h=1 w=1 c=200", "n=2 h=16 w=8 c=64")),
    "bf16": ((4, 1, 16, 256), ("n=1 h=5 w=13 c=100", "n=2 h=8 w=8 c=64")),
    "f32": ((1, 4, 8, 128), ("n=2 h=5 w=19 c=13", "n=1 h=40 w=16 c=7")),
}
OPERATORS = (
    "batch_norm_statistics",
    *(f"batch_norm_gradient_sums relu={relu} gradients={gradients}" for relu in range(3) for gradients in (1, 2)),
    *(f"batch_norm_gradient relu={relu}" for relu in range(2)),
)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """Return a function (operator, dtype) -> the CUDA kernel with the config of CASES; it compiles each kernel once."""
    known = {}

    def compiled(operator, dtype):
        if (operator, dtype) not in known:
            chosen = family(f"cuda_{operator}")
            names = [parameter.name for parameter in chosen.parameters]
            config = dict(zip(names, CASES[dtype][0], strict=True))
            kernel = Kernel.of(chosen.name, config, dtype, Epilogue(), "sm_90")
            known[operator, dtype] = Emulated(kernel, tmp_path_factory.mktemp("kernel"))
        return known[operator, dtype]

    return compiled


@pytest.fixture
def solved(emulated, cpu_kernel):
    """Return a function that solves a problem in float32 by the kernel of a processor, "cpu" or "cuda"."""

    def solved_by(processor, problem, tensors, scalars):
        if processor == "cuda":
            return emulated(problem.operator, "f32").run(problem, tensors, scalars, {"splits": 3}, 1)
        kernel = cpu_kernel(f"cpu_{problem.operator}", {"block_c": 8})
        outputs = {
            operand.name: torch.full(operand.shape, float("nan"))
            for operand in problem.operands()
            if operand.role == "output"
        }
        candidate = candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 0})
        bind(candidate, problem, {**tensors, **outputs}, scalars, torch.device("cpu")).run()
        return outputs

    return solved_by


def assert_right(found, expected, dtype):
    """Check each output; of one in float32 that has a row for each result, check each row."""
    assert set(found) == set(expected)
    for name, value in found.items():
        limit = LIMIT["f32" if value.dtype == torch.float32 else dtype]
        rows = zip(value, expected[name], strict=True) if value.dim() == 2 else [(value, expected[name])]
        for row, (actual, wanted) in enumerate(rows):
            assert relative_error(actual, wanted) < limit or torch.equal(actual.double(), wanted), f"{name} {row}"


@pytest.mark.daily(12)
@pytest.mark.parametrize("dtype", CASES)
@pytest.mark.parametrize("text", OPERATORS)
def test_the_kernels_text_solves_the_problem(text, dtype, emulated):
    operator, _, more = text.partition(" ")
    chosen, kernel = family(f"cuda_{operator}"), emulated(operator, dtype)
    for sizes in CASES[dtype][1]:
        problem = parse(f"{operator} {sizes} {more} dtype={dtype}")
        assert chosen.why_illegal(kernel.kernel.values, SM90, dtype, problem.epilogue) is None
        tensors, scalars = random_inputs(problem)
        expected = solve(problem, tensors, scalars)
        for seed, splits in enumerate((1, 2, 5, 40)):
            assert_right(kernel.run(problem, tensors, scalars, {"splits": splits}, 1, seed), expected, dtype)


@pytest.mark.parametrize("operator", ["batch_norm_statistics", "batch_norm_gradient_sums"])
def test_launches_on_one_workspace_give_the_same_bits(operator, emulated):
    problem, kernel = parse(f"{operator} n=3 h=13 w=8 c=40 dtype=f16"), emulated(operator, "f16")
    tensors, scalars = random_inputs(problem)
    first = kernel.run(problem, tensors, scalars, {"splits": 5}, 1)
    for seed in range(1, 4):
        again = kernel.run(problem, tensors, scalars, {"splits": 5}, 1, seed, launches=3)
        assert all(torch.equal(first[name], value) for name, value in again.items())


@pytest.mark.parametrize("mean", [30.0, 1000.0])
@pytest.mark.parametrize("processor", ["cpu", "cuda"])
def test_the_variance_does_not_cancel(processor, mean, solved):
    problem = parse("batch_norm_statistics n=4 h=30 w=16 c=13 dtype=f32")
    tensors, scalars = random_inputs(problem)
    tensors["x"] += mean
    tensors["x"][0, 0, 0] = mean - 5  # a first pixel far from the others
    tensors["x"][..., 0] = mean  # equal values
    y = solved(processor, problem, tensors, scalars)["y"]
    assert y[1, 0] == 0
    torch.testing.assert_close(y[:3].double(), solve(problem, tensors, scalars)["y"][:3], rtol=4e-6, atol=0)


@pytest.mark.parametrize("processor", ["cpu", "cuda"])
def test_nan_and_infinity_stay_in_their_channel(processor, solved):
    problem = parse("batch_norm_statistics n=4 h=5 w=16 c=13 dtype=f32")
    tensors, scalars = random_inputs(problem)
    tensors["x"][1, 2, 3, 4], tensors["x"][1, 0, 3, 5] = float("nan"), float("inf")
    y = solved(processor, problem, tensors, scalars)["y"]
    assert y[:, 4].isnan().all() and y[1, 5].isnan()
    assert y[:, [*range(4), *range(6, 13)]].isfinite().all()


@pytest.mark.parametrize("processor", ["cpu", "cuda"])
def test_a_relu_is_not_active_where_the_rounded_sum_is_0(processor, solved):
    """A multiply-add, which rounds once, is above 0 in half of the channels."""
    problem = parse("batch_norm_gradient_sums n=2 h=9 w=8 c=50 relu=1 dtype=f32")
    tensors, scalars = random_inputs(problem)
    tensors["x"][:] = tensors["x"][0, 0, 0]
    scale, shift = tensors["statistics"][3], tensors["statistics"][4]
    shift[:] = -(tensors["x"][0, 0, 0] * scale)
    assert (solved(processor, problem, tensors, scalars)["y"][:2] == 0).all()
    gradient = parse("batch_norm_gradient n=2 h=9 w=8 c=50 relu=1 dtype=f32")
    given = random_inputs(gradient)[0] | {name: tensors[name] for name in ("x", "statistics")}
    y = solved(processor, gradient, given, ())["y"]
    torch.testing.assert_close(y, given["x"] * given["sums"][2] + given["sums"][3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", ["batch_norm_statistics", "batch_norm_gradient_sums", "batch_norm_gradient"])
def test_a_kernel_says_why_it_refuses_a_problem(operator, emulated):
    kernel = emulated(operator, "f16")
    refused = {
        ("n=1 h=2 w=3 c=24", 1): None,
        ("n=1 h=2 w=3 c=12", 1): "c must be a multiple of the vector of 8 elements",
        ("n=1024 h=1024 w=1024 c=8", 1): "n h w must be less than 2^30 pixels",
        ("n=1 h=2 w=3 c=8", 0): "splits must be 1 to 4096",
        ("n=1 h=2 w=3 c=8", 4097): "splits must be 1 to 4096",
    }
    for (sizes, splits), reason in refused.items():
        assert kernel.refusal(parse(f"{operator} {sizes} dtype=f16"), {"splits": splits}) == reason
    large = parse(f"{operator} n=1024 h=1024 w=1024 c=8 dtype=f16")
    assert "less than 1073741824 pixels" in family(f"cuda_{operator}").why_not_served(large, SM90)


@pytest.mark.parametrize("operator", ["batch_norm_statistics", "batch_norm_gradient_sums", "batch_norm_gradient"])
def test_launches_fill_the_gpu_at_most_twice(operator):
    chosen = family(f"cuda_{operator}")
    for sizes in ("n=128 h=112 w=112 c=64", "n=128 h=7 w=7 c=2048", "n=1 h=1 w=1 c=8", "n=1 h=9 w=9 c=6"):
        problem = parse(f"{operator} {sizes} dtype=f16")
        configs = chosen.configs_for(problem, SM90)
        assert configs and all(config["vector"] >= (2 if problem.c == 6 else 4) for config in configs)
        for config in configs:
            slabs = -(-problem.c // (config["vector"] * config["columns"]))
            launches = chosen.launches(problem, config, SM90)
            blocks = [launch["splits"] * slabs for launch in launches]
            assert launches and max(blocks) * config["threads"] <= 2 * SM90.processors * SM90.sm_threads
