"""Device kernels on odd problems: every CUDA family, split and swizzled, with every epilogue of the network."""

import os
import random

import pytest
import torch
from comparison import LIMIT, relative_error
from kernels import assert_same_bits, built_paths, candidate_of
from reference import solve
from repository import table_of

from autotune.core import of_capability
from autotune.families import DEVICE_IMAGE, Kernel, families, family
from autotune.ir import parse
from autotune.measure import CandidateBench
from autotune.runtime.engine import EngineError

pytestmark = pytest.mark.gpu

DTYPES = ("f16", "bf16", "f32")  # the others are those of convolutions: test_gpu_fprop.py

PROBLEMS = table_of(__file__)
"""Family -> problems."""


STREAMED = ("cutlass2_gemm", "cutlass2_conv2d_dgrad", "cutlass2_conv2d_wgrad")


@pytest.fixture(scope="module")
def device():
    return torch.device("cuda:0")


@pytest.fixture(scope="module")
def arch():
    major, minor = torch.cuda.get_device_capability()
    return of_capability(10 * major + minor)


def target():
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def kernels_for(name, problem, arch, count):
    """A few configs that can solve the problem, at random but always the same."""
    chosen = family(name)
    usable = chosen.configs_for(problem, arch)
    sample = random.Random(str(problem)).sample(usable, min(count, len(usable)))
    return [Kernel.of(name, config, problem.dtype, problem.epilogue, target()) for config in sample]


@pytest.fixture(scope="module")
def trials(arch, request):
    """(family, dtype) -> (problem, kernel) pairs, with the binaries of those to be tested, compiled together."""
    wanted = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    pairs = {
        (name, dtype): [
            (problem, kernel)
            for text in texts
            for problem in [parse(text.format(dtype))]
            for kernel in kernels_for(name, problem, arch, 8 if name.startswith("sm90") or name == "cuda_stem" else 2)
        ]
        for name, texts in PROBLEMS.items()
        if name in wanted
        for dtype in arch.dtypes
        if dtype in DTYPES and dtype in family(name).dtypes and arch.name in family(name).architectures
    }
    jobs = len(os.sched_getaffinity(0))
    return pairs, built_paths((kernel for found in pairs.values() for _, kernel in found), jobs)


def test_every_cuda_family_is_tested_here():
    found = {name for name, found in families().items() if found.kind == DEVICE_IMAGE}
    in_bytes = {"cuda_cast", "cuda_stem_cast", *(name for name in found if name.startswith("sm90_e4m3_"))}  # _precision
    assert set(PROBLEMS) | in_bytes == found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernels_solve_odd_problems(name, dtype, trials, arch, device):
    pairs, paths = trials
    if (name, dtype) not in pairs:
        pytest.skip(f"{name} has no {dtype} for {arch.name}")
    chosen, launched = family(name), set()
    for problem, kernel in pairs[name, dtype]:
        case = CandidateBench(problem, device, seed=1)
        expected = solve(problem, case.tensors, case.scalars)
        for launch in chosen.launches(problem, kernel.values, arch):
            result = case.run(candidate_of(kernel, paths[kernel], launch))
            assert result.status == "ok", f"{problem} {kernel} {launch}: {result.error}"
            assert result.median_us > 0
            launched.add(tuple(launch.values()))
            for key, value in expected.items():
                error = relative_error(case.tensors[key], value)
                assert error < LIMIT[dtype], f"{key} of {problem} {kernel} {launch}: {error}"
    if name.startswith("cutlass2") and dtype != "f32":
        assert {slices for _, slices, *_ in launched} > {1} and {swizzle for swizzle, *_ in launched} > {0}
    if name in STREAMED:
        assert {stream for *_, stream in launched} > {0}


@pytest.mark.parametrize(
    ("name", "how"),
    [("cutlass2_conv2d", "slices"), *((name, how) for name in STREAMED for how in ("slices", "stream"))],
)
def test_sums_of_several_blocks_give_the_same_bits_each_time(name, how, trials, arch, device):
    pairs, paths = trials
    for problem, kernel in pairs[name, "f16"]:
        launches = family(name).launches(problem, kernel.values, arch)
        split = [launch for launch in launches if launch[how] > (how == "slices")]
        if not split:
            continue
        case = CandidateBench(problem, device)
        step = case.bind(candidate_of(kernel, paths[kernel], split[-1]))
        assert_same_bits(case, step, f"{problem} {kernel}")
        return
    pytest.fail(f"no launch has {how}")


def test_a_problem_that_a_kernel_cannot_solve_is_refused(trials, device):
    pairs, paths = trials
    for name, text in [
        ("cutlass2_conv2d", "conv2d n=1 h=4 w=4 c=12 k=16 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d", "conv2d n=1 h=4 w=4 c=16 k=16 groups=2 dtype=f16 epilogue={}"),
        ("cutlass2_gemm", "conv2d n=1 h=4 w=4 c=16 k=16 r=3 s=3 pad=1 dtype=f16 epilogue={}"),
        ("cutlass2_gemm", "gemm m=4 n=16 k=17 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d_dgrad", "conv2d_dgrad n=1 h=8 w=8 c=16 k=16 stride=2,2 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d_dgrad", "conv2d_dgrad n=1 h=4 w=4 c=16 k=16 groups=2 dtype=f16 epilogue={}"),
        ("cutlass2_conv2d_wgrad", "conv2d_wgrad n=1 h=4 w=4 c=16 k=15 dtype=f16 epilogue={}"),
        ("cuda_depthwise_conv2d", "conv2d n=1 h=4 w=4 c=16 k=16 r=3 s=3 pad=1 groups=8 dtype=f16 epilogue={}"),
        ("cuda_se_tail", "se_tail n=1 h=4 w=4 c=12 hidden=2 dtype=f16 epilogue={}"),
        ("cuda_space_to_depth", "space_to_depth n=1 h=9 w=9 c=3 block=3 dtype=f16 epilogue={}"),
        ("sm90_strip_se_block", "stem_se_block n=1 h=64 w=64 c=2 k=64 block=4 hidden=4 dtype=f16 epilogue={}"),
        ("sm90_strip_se_block", "stem_se_block n=1 h=32 w=32 c=3 k=64 block=2 hidden=4 dtype=f16 epilogue={}"),
        ("sm90_se_down_block", "se_down_block n=1 h=32 w=16 c=64 k=128 hidden=8 dtype=f16 epilogue={}"),
        ("sm90_se_down_block", "se_down_block n=1 h=16 w=16 c=64 k=32 hidden=8 dtype=f16 epilogue={}"),
    ]:
        kernel = pairs[name, "f16"][0][1]
        launch = {parameter.name: parameter.values[0] for parameter in family(name).launch_parameters}
        case = CandidateBench(parse(text.format(kernel.epilogue)), device)
        result = case.run(candidate_of(kernel, paths[kernel], launch))
        assert result.status == "refused"
        assert result.error and "refuses the problem: " in result.error
        assert "not supported" not in result.error, f"{kernel} gives no reason for {text}"


def test_a_broken_image_is_an_error_of_one_sentence(trials, device, tmp_path):
    pairs, paths = trials
    problem, kernel = pairs["cuda_avg_pool2d", "f16"][0]
    broken = tmp_path / "broken.cubin"
    broken.write_bytes(paths[kernel].read_bytes()[:100])
    with pytest.raises(EngineError) as error:
        CandidateBench(problem, device).run(candidate_of(kernel, broken, {}))
    assert "\n" not in str(error.value)
