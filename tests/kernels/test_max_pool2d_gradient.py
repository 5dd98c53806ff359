"""Gradients of max pooling: the kernels of a GPU, run by their own text on a CPU, and those of the CPU."""

import itertools
import random

import pytest
import torch
from emulator import Emulated
from kernels import built_paths, candidate_of
from max_pools import CASES, KINDS, REFUSALS, assert_is_gradient, operands
from random_sizes import SIZES

from autotune.core import ProblemError, architecture
from autotune.families import Kernel, family
from autotune.ir import parse
from autotune.runtime import bind

pytestmark = pytest.mark.compile

SM90 = architecture("sm90")
CUDA, CPU = family("cuda_max_pool2d_gradient"), family("cpu_max_pool2d_gradient")


@pytest.mark.parametrize(("text", "values"), CASES.values(), ids=CASES)
def test_the_cuda_kernels_text_makes_autograds_gradient(text, values, tmp_path):
    problem = parse(f"max_pool2d_gradient {text}")
    config = dict(zip((parameter.name for parameter in CUDA.parameters), values, strict=True))
    assert config in CUDA.configs_for(problem, SM90)
    emulated = Emulated(Kernel.of(CUDA.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    for kind in KINDS:
        tensors = operands(problem, kind)
        results = [emulated.run(problem, tensors, (), {"rows": rows}, 1)["y"] for rows in (1, 2, 64)]
        assert_is_gradient(results[0], problem, tensors, kind, kind)
        assert all(torch.equal(results[0], other) for other in results[1:])
    again = emulated.run(problem, tensors, (), {"rows": 2}, 1, seed=1)["y"]
    assert torch.equal(results[1].view(torch.uint8), again.view(torch.uint8))


def test_a_cuda_kernel_says_why_it_refuses_a_problem(tmp_path):
    config = {"filter": 3, "stride": 2, "vector": 8, "columns": 2, "threads": 64}
    problem = parse("max_pool2d_gradient n=1 h=8 w=8 c=16 r=3 s=3 stride=2 pad=1 dtype=f16")
    emulated = Emulated(Kernel.of(CUDA.name, config, "f16", problem.epilogue, "sm_90"), tmp_path)
    for words, reason in REFUSALS.items():
        assert emulated.refusal(parse(f"max_pool2d_gradient n=1 h=8 w=8 {words} dtype=f16"), {"rows": 4}) == reason
    assert emulated.refusal(problem, {"rows": 0}) == "a thread must make at least one row"


def test_channels_that_are_no_whole_vectors_fit_no_kernel():
    problem = parse("max_pool2d_gradient n=1 h=8 w=8 c=12 r=3 s=3 stride=2 pad=1 dtype=f16")
    assert {config["vector"] for config in CUDA.configs_for(problem, SM90)} == {1, 2, 4}
    config = {"filter": 3, "stride": 2, "vector": 8, "columns": 1, "threads": 64}
    assert CUDA.why_unfit(problem, config, SM90) == "c must be a multiple of the vector: 12 is not one of 8"


def test_threads_make_the_rows_that_leave_enough_of_them():
    def rows(sizes, **values):
        problem = parse(f"max_pool2d_gradient {sizes} dtype=f16")
        config = {"filter": 3, "stride": 2, "vector": 8, "columns": 1, "threads": 128, **values}
        assert config in CUDA.configs_for(problem, SM90)
        return [launch["rows"] for launch in CUDA.launches(problem, config, SM90)]

    window = "r=3 s=3 stride=2 pad=1"
    assert rows(f"n=128 h=112 w=112 c=64 {window}") == [8, 16, 32, 64]
    assert rows(f"n=8 h=112 w=112 c=64 {window}", vector=4) == [1, 2, 4, 8]
    assert rows(f"n=1 h=8 w=8 c=64 {window}") == [1, 2]
    assert rows("n=1 h=8 w=8 c=64 r=5 s=5 stride=2 pad=2", filter=0, stride=0) == [1]


def odd_problem(seed):
    """Return a random problem in float32, or None if the window is larger than the image."""
    try:
        return parse(f"{SIZES[CUDA.name](random.Random(seed))} dtype=f32")
    except ProblemError:
        return None


@pytest.mark.parametrize("block_c", [8, 64])
def test_the_cpu_kernel_makes_autograds_gradient(block_c, cpu_kernel):
    texts = [text.partition(" dtype=")[0] for text, _ in CASES.values()]
    texts.append("n=2 h=9 w=9 c=71 r=3 s=3 stride=2 pad=1")  # whole blocks, and channels behind them
    problems = [parse(f"max_pool2d_gradient {text} dtype=f32") for text in texts]
    problems += filter(None, map(odd_problem, range(12)))
    kernel = cpu_kernel(CPU.name, {"block_c": block_c})
    path = built_paths([kernel])[kernel]
    for problem, kind in itertools.product(problems, KINDS):
        tensors, results = operands(problem, kind), []
        for threads in (0, 1, 0):
            y = torch.full(problem.output_shape, float("nan"))
            candidate = candidate_of(kernel, path, {"threads": threads})
            bind(candidate, problem, {**tensors, "y": y}, (), torch.device("cpu")).run()
            results.append(y)
        assert_is_gradient(results[0], problem, tensors, kind, f"{problem} {kind}")
        assert all(torch.equal(results[0], other) for other in results[1:])
