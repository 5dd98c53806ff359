"""Precision on a GPU: casts, means and products of bytes, networks in int8, fp8 and tf32 on tuned kernels."""

import copy
import itertools
import json
import os
import random

import pytest
import torch
from architectures import ARCHITECTURES, images, random_model
from comparison import LIMIT, assert_bytes_are_right, relative_error
from kernels import built_paths, candidate_of
from processes import script
from reference import solve
from repository import ROOT

from autotune.core import of_capability
from autotune.families import Kernel, family, serving
from autotune.ir import BYTE_FORMATS, BYTE_PRECISIONS, E4M3, S8, parse, sum_error
from autotune.measure import CandidateBench
from fused_resnet import FusedResNet
from fused_resnet.quantization import compare

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]

OF_BYTES = [
    "cast n=3 h=5 w=7 c=48 result=s8 dtype=f16 epilogue=mul_scalar",
    "cast n=1 h=3 w=3 c=13 result=s8 dtype=bf16 epilogue=mul_scalar,store,add",
    "cast n=2 h=8 w=9 c=36 result=s8 dtype=f32 epilogue=mul_scalar",
    "cast n=3 h=5 w=7 c=48 result=f16 dtype=s8 epilogue=mul_scalar",
    "cast n=2 h=3 w=3 c=13 result=bf16 dtype=s8 epilogue=mul_scalar,add,relu",
    "cast n=2 h=8 w=9 c=36 result=f32 dtype=s8 epilogue=mul_scalar,store",
    "global_avg_pool2d n=3 h=7 w=7 c=264 dtype=s8 epilogue=mul_scalar",
    "global_avg_pool2d n=2 h=3 w=5 c=13 dtype=s8 epilogue=mul_scalar,store",
    "gemm m=37 n=72 k=304 dtype=s8 epilogue=scale,bias,relu",
    "gemm m=128 n=1000 k=512 dtype=s8 epilogue=scale,bias",
    "max_pool2d n=3 h=13 w=10 c=48 r=3 s=3 stride=2,2 pad=1,1 dtype=s8",
    "avg_pool2d n=3 h=9 w=7 c=48 r=3 s=3 stride=2,2 pad=1,1 dtype=s8 epilogue=mul_scalar",
    "concat n=3 h=7 w=9 pieces=64,32,0:16/32 dtype=s8",
    "elementwise n=3 h=5 w=7 c=48 dtype=s8 epilogue=scale,bias,relu,store",
    "stem_cast n=3 h=21 w=56 c=3 k=64 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1 result=s8 dtype=f16 "
    "epilogue=bias,relu,mul_scalar",
    "stem_cast n=2 h=31 w=40 c=4 k=40 r=3 s=3 stride=2 pad=1 result=s8 dtype=bf16 epilogue=bias,silu,mul_scalar",
]
CONVOLUTIONS = [
    "conv2d_skip n=9 h=56 w=56 c=64 k=256 skip_h=56 skip_w=56 skip_c=64 dtype=e4m3 epilogue=bias,relu",
    "conv2d_skip n=7 h=14 w=13 c=256 k=1024 skip_h=28 skip_w=26 skip_c=512 skip_stride=2 dtype=e4m3 epilogue=bias",
    "conv2d n=3 h=13 w=9 c=80 k=48 r=3 s=3 pad=1 dtype=e4m3 epilogue=scale,bias,relu",
    "conv2d n=2 h=17 w=24 c=144 k=96 r=3 s=3 stride=2,1 pad=1 dtype=e4m3 epilogue=scale,bias,add,mul_scalar,relu",
    "conv2d n=5 h=8 w=16 c=64 k=80 r=5 s=3 pad=2,2 dilation=1,2 dtype=e4m3 epilogue=scale,bias,silu,mul_scalar",
    "conv2d n=9 h=24 w=24 c=64 k=256 r=3 s=3 pad=1 dtype=e4m3 epilogue=scale,bias,store,relu",
    "conv2d n=70 h=7 w=7 c=512 k=512 r=3 s=3 pad=1 dtype=e4m3 epilogue=scale,bias,relu",
    "conv2d n=7 h=15 w=14 c=256 k=512 r=3 s=3 stride=2 pad=1 groups=4 dtype=e4m3 epilogue=scale,bias,add,relu",
    "conv2d n=9 h=14 w=15 c=256 k=256 r=3 s=3 pad=1 groups=16 dtype=e4m3 epilogue=scale,bias,add,relu",
    "conv2d n=90 h=8 w=8 c=80 k=136 r=3 s=3 pad=1 dtype=e4m3 epilogue=scale,bias,add,relu",
    "conv2d n=37 h=4 w=16 c=256 k=256 r=3 s=3 stride=2 pad=1 dtype=e4m3 epilogue=scale,silu,store,mul_scalar",
    "conv2d n=31 h=14 w=14 c=512 k=512 r=3 s=3 stride=2 pad=1 dtype=e4m3 epilogue=scale,bias,relu",
    "conv2d n=23 h=3 w=5 c=272 k=96 r=3 s=3 pad=1 dtype=e4m3 epilogue=scale,bias,add,relu,mul_scalar",
    "conv2d n=9 h=7 w=7 c=1024 k=512 r=3 s=3 pad=1 dtype=e4m3 epilogue=scale,bias,relu",
    "gemm m=1000 n=528 k=1024 dtype=e4m3 epilogue=scale,bias",
    "conv2d n=5 h=29 w=31 c=64 k=72 r=3 s=3 pad=1 dtype=s8 epilogue=scale,bias,relu",
    "conv2d n=3 h=17 w=24 c=336 k=96 r=3 s=3 stride=2 pad=2 dilation=2 dtype=s8 epilogue=scale,bias,add,mul_scalar",
    "conv2d n=9 h=7 w=7 c=512 k=512 r=3 s=3 pad=1 dtype=s8 epilogue=scale,bias,store,relu",
    "conv2d n=4 h=30 w=28 c=144 k=264 dtype=s8 epilogue=scale,bias,add,relu",
    "conv2d n=90 h=8 w=8 c=80 k=136 r=3 s=3 pad=1 dtype=s8 epilogue=scale,bias,add,relu",
    "conv2d n=37 h=4 w=16 c=256 k=256 r=3 s=3 stride=2 pad=1 dtype=s8 epilogue=scale,silu,store,mul_scalar",
    "conv2d n=31 h=14 w=14 c=512 k=512 r=3 s=3 stride=2 pad=1 dtype=s8 epilogue=scale,bias,relu",
    "conv2d n=23 h=3 w=5 c=272 k=96 r=3 s=3 pad=1 dtype=s8 epilogue=scale,bias,add,relu,mul_scalar",
    "pointwise_pair n=9 h=56 w=56 c=64 hidden=256 k=64 dtype=s8 epilogue=scale,bias,add,mul_scalar,store,conv,scale",
    "pointwise_pair n=17 h=28 w=27 c=128 hidden=512 k=240 dtype=s8 epilogue=scale,bias,relu,conv,scale,bias,relu",
    "pointwise_pair n=2 h=7 w=7 c=48 hidden=176 k=80 dtype=s8 epilogue=scale,bias,relu,store,conv,scale,bias,add",
    "gemm m=3 n=2048 k=4096 dtype=e4m3 epilogue=scale,bias",
]
PROBLEMS = [
    *OF_BYTES,
    *(text.replace("s8", "e4m3").replace("n=72", "n=80").replace("n=1000", "n=1008") for text in OF_BYTES),
    "cast n=3 h=5 w=7 c=48 result=e4m3 dtype=s8 epilogue=mul_scalar",
    *CONVOLUTIONS,
    "gemm m=37 n=72 k=304 dtype=tf32 epilogue=bias,relu",
    "gemm m=5 n=10 k=64 dtype=f32 epilogue=bias",
]
BYTE_NETWORKS = ("basic", "bottleneck", "vgg")
CONFIGS = {"sm90_e4m3_conv2d": 12, "sm90_e4m3_image_conv2d": 27, "sm90_image_conv2d": 9}
"""Of a family, where four do not show all its schedules."""


@pytest.fixture(scope="module")
def arch():
    major, minor = torch.cuda.get_device_capability()
    return of_capability(10 * major + minor)


@pytest.fixture(scope="module")
def trials(arch):
    """(problem, kernel, path), some configs of each family, compiled together."""
    major, minor = torch.cuda.get_device_capability()
    found = []
    for problem in map(parse, PROBLEMS):
        served = serving(problem, arch) if {problem.dtype, problem.output_dtype} <= set(arch.dtypes) else []
        for chosen in served:
            configs = chosen.configs_for(problem, arch)
            count = min(CONFIGS.get(chosen.name, 4), len(configs))
            for config in random.Random(str(problem)).sample(configs, count):
                kernel = Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, f"sm_{major}{minor}")
                found.append((problem, kernel))
    paths = built_paths((kernel for _, kernel in found), len(os.sched_getaffinity(0)))
    return [(problem, kernel, paths[kernel]) for problem, kernel in found]


def test_kernels_solve_odd_problems(trials, arch):
    assert {"cast", "global_avg_pool2d", "gemm"} <= {problem.operator for problem, *_ in trials}
    if arch.name == "sm90":
        ours = [kernel.values for _, kernel, _ in trials if kernel.family == "sm90_e4m3_conv2d"]
        assert {values["promote"] for values in ours} == {0, 1, 2, 4}
        assert {values["activations"] for values in ours} == {"im2col", "patch"}
        assert {values["schedule"] for values in ours} == {"cooperative", "pingpong"}
        assert {values["slices"] > 1 for values in ours} == {False, True}
        for name in ("sm90_image_conv2d", "sm90_e4m3_image_conv2d"):
            images = [kernel.values for _, kernel, _ in trials if kernel.family == name]
            tiles = itertools.product((1, 2), (32, 64, 128), (1, 2, 4))
            assert {(values["stride"], values["tile_n"], values["peers"]) for values in images} == set(tiles)
        assert {values["promote"] for values in images} == {0, 1, 2, 4}
    for problem, kernel, path in trials:
        case = CandidateBench(problem, torch.device("cuda:0"), seed=1)
        expected = solve(problem, case.tensors, case.scalars)
        for launch in family(kernel.family).launches(problem, kernel.values, arch):
            result = case.run(candidate_of(kernel, path, launch))
            said = f"{problem} {kernel} {launch}"
            assert result.status == "ok", f"{said}: {result.error}"
            for name, value in expected.items():
                if problem.output_dtype in BYTE_FORMATS:
                    of_sums = sum_error(problem, kernel.values)
                    assert_bytes_are_right(case.tensors[name], value, f"{name} of {said}", 2e-5 + of_sums)
                else:
                    assert relative_error(case.tensors[name], value) < LIMIT[problem.output_dtype], said


def tuned(folders, name, *arguments):
    """A database in which the script tuned one of the small architectures."""
    file = folders / f"gpu_{name}.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'tests' / 'support')!r})\n"
        f"from architectures import ARCHITECTURES\nmake = ARCHITECTURES[{name!r}]\n"
    )
    path = folders / f"gpu_{name}_{'_'.join(arguments).strip('-')}.db"
    options = ("--input", "3,32,32", "--batch", 16, "--trials", 2, "--budget", "100s", "--db", path)
    done = script("tune", "--model", f"{file}:make", *options, *arguments, timeout=400)
    assert done.returncode == 0, done.stderr
    return path


def needs(form, arch):
    if form.dtype not in arch.dtypes:
        pytest.skip(f"{arch.name} has no {form.dtype}")


def test_every_number_is_converted_as_torch_does_it(arch):
    """Casts of e4m3: all bytes, all ties and their neighbors, and what saturates."""
    needs(E4M3, arch)
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    numbers = every.float()[:127]
    ties = (numbers[1:] + numbers[:-1]) / 2
    around = [torch.nextafter(ties, torch.full_like(ties, side)) for side in (0.0, 1e9)]
    edges = torch.tensor([448.0, 463.9, 464.0, 464.1, 1e30, float("inf"), 2**-10, 1.1 * 2**-10, 2**-11, 1e-40])
    positive = torch.cat([numbers, ties, *around, edges, torch.zeros(1)])
    values = torch.cat([positive, -positive])
    assert len(values) % 8 == 0
    for given, source, result in ((every, "e4m3", "f32"), (values, "f32", "e4m3")):
        problem = parse(f"cast n=1 h=1 w=1 c={len(given)} result={result} dtype={source}")
        configs = family("cuda_cast").configs_for(problem, arch)
        kernels = [Kernel.of("cuda_cast", one, source, problem.epilogue, f"sm_{arch.capability}") for one in configs]
        chosen = {kernel.values["vector"]: kernel for kernel in kernels}
        paths = built_paths(chosen.values())
        assert len(chosen) >= 2
        for kernel in chosen.values():
            case = CandidateBench(problem, torch.device("cuda:0"))
            case.tensors["x"].view(-1).copy_(given)
            case.fill_nan()
            case.bind(candidate_of(kernel, paths[kernel], {})).run(torch.cuda.current_stream().cuda_stream)
            torch.cuda.synchronize()
            found = case.tensors["y"].flatten().cpu().float()
            expected = every.float() if source == "e4m3" else values.clamp(-448, 448).to(every.dtype).float()
            assert torch.equal(found.nan_to_num(1e9), expected.nan_to_num(1e9)), kernel


@pytest.mark.parametrize("form", BYTE_PRECISIONS.values(), ids=BYTE_PRECISIONS)
@pytest.mark.parametrize("name", BYTE_NETWORKS)
def test_a_network_in_bytes_is_the_same_on_torchs_operators_of_a_cpu_and_a_gpu(name, form, empty_db, arch):
    needs(form, arch)
    model, seen, x = random_model(ARCHITECTURES[name]()), [images(8, seed=1)], images(32, seed=2)
    network = FusedResNet.from_model(model, empty_db, precision=form.precision, calibration=seen)
    here, exact = network(x), model(x)
    there = copy.deepcopy(network).cuda()(x.cuda()).cpu()
    assert relative_error(there, here) < relative_error(here, exact) / 4
    halves = copy.deepcopy(network).cuda().half()(x.cuda().half()).float().cpu()
    assert relative_error(halves, exact) < 2 * relative_error(here, exact)


@pytest.mark.parametrize("form", [S8, E4M3], ids=["int8", "fp8"])
def test_tuned_kernels_run_a_network_in_bytes(form, folders, arch):
    needs(form, arch)
    path = tuned(folders, "bottleneck", "--precision", form.precision)
    model, seen, x = random_model(ARCHITECTURES["bottleneck"]()), [images(8, seed=1)], images(16, seed=2)
    network = FusedResNet.from_model(model, path, precision=form.precision, calibration=seen).cuda().half()
    y = network(x.cuda().half()).float().cpu()
    explained = network.explain(x.cuda().half())
    assert {row.source for row in explained} == {"tuned"}
    assert {row.dtype for row in explained} == {"f16", form.dtype}
    assert form is S8 or arch.name != "sm90" or any("sm90_e4m3_conv2d" in row.kernel for row in explained)
    simulated = FusedResNet.from_model(model, path, precision=form.precision, calibration=seen)(x)
    cost = relative_error(simulated, model(x))
    assert relative_error(y, simulated) < cost, "as far from its simulation in float32 as f16 at the ends may bring it"
    assert compare(model(x), y).agreement > 0.8


def test_tuned_kernels_run_a_network_in_tf32(folders, arch):
    if "tf32" not in arch.dtypes:
        pytest.skip(f"{arch.name} has no tf32")
    path = tuned(folders, "basic", "--precision", "tf32")
    model, x = random_model(ARCHITECTURES["basic"]()), images(16, seed=2)
    network = FusedResNet.from_model(model, path, precision="tf32").cuda()
    y = network(x.cuda())
    assert {(row.source, row.dtype) for row in network.explain(x.cuda())} == {("tuned", "tf32")}
    assert 1e-6 < relative_error(y, model(x)) < 5e-3


def test_a_task_that_can_be_learnt_and_keeps_its_answers(tmp_path):
    """accuracy.py: far above chance, which is 6 %, and the same answers in every precision."""
    done = script("accuracy", "--steps", 800, "--images", 2000, "--out", tmp_path / "told.json", timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["reference_top1"] > 0.6
    least = {"f16": 0.99, "bf16": 0.95, "tf32": 0.99, "int8": 0.9, "fp8": 0.85}
    assert {name for name, row in told["precisions"].items() if row["agreement"] < least[name]} == set()
