"""Max pooling with places, and its gradient from them: the kernels of a GPU, run by their own text on a CPU, and those
of the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from emulator import Emulated
from kernels import built_paths, candidate_of
from max_pools import CASES, KINDS, REFUSALS, assert_is_gradient, operands

from autotune.core import ProblemError, architecture
from autotune.families import Kernel, family
from autotune.ir import parse
from autotune.runtime import bind

pytestmark = pytest.mark.compile

SM90 = architecture("sm90")
POOL, GRADIENT = family("cuda_max_pool2d_places"), family("cuda_max_pool2d_places_gradient")
CPU_POOL, CPU_GRADIENT = family("cpu_max_pool2d_places"), family("cpu_max_pool2d_places_gradient")


def pooled(problem, x):
    """Return the largest values and the pixels that torch takes them from."""
    window = (problem.r, problem.s)
    y, pixels = F.max_pool2d(
        x.movedim(-1, 1), window, problem.stride, problem.pad, ceil_mode=bool(problem.ceil), return_indices=True
    )
    return y.movedim(1, -1), pixels.movedim(1, -1)


def pixels_of(problem, places):
    """Return the pixels of places."""
    rows = torch.arange(problem.p)[:, None, None] * problem.stride[0] - problem.pad[0] + places.long() // problem.s
    columns = torch.arange(problem.q)[:, None] * problem.stride[1] - problem.pad[1] + places.long() % problem.s
    assert ((rows >= 0) & (rows < problem.h) & (columns >= 0) & (columns < problem.w)).all()
    return rows * problem.w + columns


def assert_is_pool(found, problem, x, said):
    y, pixels = pooled(problem, x.float())
    torch.testing.assert_close(found["y"].float(), y, rtol=0, atol=0, equal_nan=True, msg=said)
    assert torch.equal(pixels_of(problem, found["places"]), pixels), said


def emulated(chosen, problem, values, folder):
    config = dict(zip((parameter.name for parameter in chosen.parameters), values, strict=True))
    assert config in chosen.configs_for(problem, SM90)
    own = folder / chosen.name
    own.mkdir()
    return Emulated(Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, "sm_90"), own)


@pytest.mark.daily(7)
@pytest.mark.parametrize(("text", "values"), CASES.values(), ids=CASES)
def test_the_cuda_kernels_texts_make_autograds_gradient(text, values, tmp_path):
    pool, problem = (parse(f"{name} {text}") for name in ("max_pool2d_places", "max_pool2d_places_gradient"))
    first, second = emulated(POOL, pool, values, tmp_path), emulated(GRADIENT, problem, values, tmp_path)
    for kind in KINDS:
        given = operands(pool, kind)
        found = first.run(pool, {"x": given["x"]}, (), {}, 1)
        assert_is_pool(found, pool, given["x"], kind)
        tensors = {"dy": given["dy"], "places": found["places"]}
        results = [second.run(problem, tensors, (), {}, 1, seed=seed)["y"] for seed in range(2)]
        assert_is_gradient(results[0], problem, given, kind, kind)
        assert torch.equal(results[0].view(torch.uint8), results[1].view(torch.uint8))


@pytest.mark.parametrize("chosen", [POOL, GRADIENT], ids=lambda one: one.name)
def test_a_cuda_kernel_says_why_it_refuses_a_problem(chosen, tmp_path):
    operator = chosen.operator.operator
    problem = parse(f"{operator} n=1 h=8 w=8 c=16 r=3 s=3 stride=2 pad=1 dtype=f16")
    kernel = emulated(chosen, problem, (3, 2, 8, 1, 64), tmp_path)
    for words, reason in REFUSALS.items():
        assert kernel.refusal(parse(f"{operator} n=1 h=8 w=8 {words} dtype=f16"), {}) == reason


def test_a_window_whose_places_fit_no_byte_is_no_problem():
    parse("max_pool2d_places n=1 h=20 w=20 c=8 r=8 s=16 stride=1 dtype=f16")
    with pytest.raises(ProblemError, match="at most 128 values"):
        parse("max_pool2d_places n=1 h=20 w=80 c=8 r=3 s=43 stride=1 dtype=f16")


@pytest.mark.parametrize("block_c", [8, 64])
def test_the_cpu_kernels_make_autograds_gradient(block_c, cpu_kernel):
    texts = [text.partition(" dtype=")[0] for text, _ in CASES.values()]
    texts.append("n=2 h=9 w=9 c=71 r=3 s=3 stride=2 pad=1")  # whole blocks, and channels behind them
    kernels = [cpu_kernel(chosen.name, {"block_c": block_c}) for chosen in (CPU_POOL, CPU_GRADIENT)]
    paths = built_paths(kernels)

    def run(kernel, problem, tensors, threads):
        outputs = {
            one.name: torch.full(one.shape, 77, dtype=torch.int8 if one.dtype == "s8" else torch.float32)
            for one in problem.operands()
            if one.role == "output"
        }
        candidate = candidate_of(kernel, paths[kernel], {"threads": threads})
        bind(candidate, problem, {**tensors, **outputs}, (), torch.device("cpu")).run()
        return outputs

    for text, kind in itertools.product(texts, KINDS):
        pool, problem = (parse(f"{kernel.family[4:]} {text} dtype=f32") for kernel in kernels)
        given = operands(pool, kind)
        results = []
        for threads in (0, 1):
            found = run(kernels[0], pool, {"x": given["x"]}, threads)
            assert_is_pool(found, pool, given["x"], f"{pool} {kind}")
            tensors = {"dy": given["dy"], "places": found["places"]}
            results.append(run(kernels[1], problem, tensors, threads)["y"])
        assert_is_gradient(results[0], problem, given, kind, f"{problem} {kind}")
        assert torch.equal(*results)


def test_places_outside_the_image_get_nothing(cpu_kernel, tmp_path):
    problem = parse("max_pool2d_places_gradient n=1 h=5 w=5 c=8 r=3 s=3 stride=2 pad=1 dtype=f32")
    places = torch.full((1, problem.p, problem.q, 8), 4, dtype=torch.int8)  # the centres of the windows
    places[0, 0, 0] = torch.tensor([0, 1, 3, -1, 9, 127, -128, 4])  # of which the first three are padding
    tensors = {"dy": torch.ones(places.shape), "places": places}
    wanted = torch.zeros(1, 5, 5, 8)
    wanted[:, ::2, ::2] = 1
    wanted[0, 0, 0, :7] = 0
    kernel = cpu_kernel(CPU_GRADIENT.name, {"block_c": 8})
    y = torch.full(wanted.shape, float("nan"))
    candidate = candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1})
    bind(candidate, problem, {**tensors, "y": y}, (), torch.device("cpu")).run()
    assert torch.equal(y, wanted)
    on_gpu = emulated(GRADIENT, problem, (3, 2, 4, 2, 64), tmp_path).run(problem, tensors, (), {}, 1)["y"]
    assert torch.equal(on_gpu, wanted)
