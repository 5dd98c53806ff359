"""Precision on a GPU: casts, means and matrix products of bytes, networks in int8 and tf32 on tuned kernels."""

import copy
import json
import os
import random

import pytest
import torch
from architectures import ARCHITECTURES, images, random_model
from kernels import built_paths, candidate_of
from processes import script
from reference import LIMIT, assert_bytes_are_right, relative_error, solve
from repository import ROOT

from autotune.core import of_capability
from autotune.families import Kernel, family, serving
from autotune.ir import parse
from autotune.measure import CandidateBench
from fused_resnet import FusedResNet
from fused_resnet.quantization import compare
from tuning_db import Store

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]

PROBLEMS = [
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
    "gemm m=37 n=72 k=304 dtype=tf32 epilogue=bias,relu",
    "gemm m=5 n=10 k=64 dtype=f32 epilogue=bias",
]
BYTE_NETWORKS = ("basic", "bottleneck", "vgg")


@pytest.fixture(scope="module")
def arch():
    major, minor = torch.cuda.get_device_capability()
    return of_capability(10 * major + minor)


@pytest.fixture(scope="module")
def trials(arch):
    """(problem, kernel, path), four configs of each family, compiled together."""
    major, minor = torch.cuda.get_device_capability()
    found = []
    for problem in map(parse, PROBLEMS):
        served = serving(problem, arch) if {problem.dtype, problem.output_dtype} <= set(arch.dtypes) else []
        for chosen in served:
            configs = chosen.configs_for(problem, arch)
            for config in random.Random(str(problem)).sample(configs, min(4, len(configs))):
                kernel = Kernel.of(chosen.name, config, problem.dtype, problem.epilogue, f"sm_{major}{minor}")
                found.append((problem, kernel))
    paths = built_paths((kernel for _, kernel in found), len(os.sched_getaffinity(0)))
    return [(problem, kernel, paths[kernel]) for problem, kernel in found]


def test_kernels_solve_odd_problems(trials, arch):
    assert {problem.operator for problem, *_ in trials} == {"cast", "global_avg_pool2d", "gemm"}
    for problem, kernel, path in trials:
        case = CandidateBench(problem, torch.device("cuda:0"), seed=1)
        expected = solve(problem, case.tensors, case.scalars)
        for launch in family(kernel.family).launches(problem, kernel.values, arch):
            result = case.run(candidate_of(kernel, path, launch))
            said = f"{problem} {kernel} {launch}"
            assert result.status == "ok", f"{said}: {result.error}"
            for name, value in expected.items():
                if problem.output_dtype == "s8":
                    assert_bytes_are_right(case.tensors[name], value, f"{name} of {said}")
                else:
                    assert relative_error(case.tensors[name], value) < LIMIT[problem.output_dtype], said


@pytest.fixture(scope="module")
def empty_db(folders):
    path = folders / "gpu_precision_empty.db"
    Store.create(path).close()
    return path


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


@pytest.mark.parametrize("name", BYTE_NETWORKS)
def test_a_network_in_bytes_is_the_same_on_torchs_operators_of_a_cpu_and_a_gpu(name, empty_db):
    model, seen, x = random_model(ARCHITECTURES[name]()), [images(8, seed=1)], images(32, seed=2)
    network = FusedResNet.from_model(model, empty_db, precision="int8", calibration=seen)
    here, exact = network(x), model(x)
    there = copy.deepcopy(network).cuda()(x.cuda()).cpu()
    assert relative_error(there, here) < relative_error(here, exact) / 4
    halves = copy.deepcopy(network).cuda().half()(x.cuda().half()).float().cpu()
    assert relative_error(halves, exact) < 2 * relative_error(here, exact)


def test_tuned_kernels_run_a_network_in_bytes(folders, arch):
    if "s8" not in arch.dtypes:
        pytest.skip(f"{arch.name} has no s8")
    path = tuned(folders, "bottleneck", "--precision", "int8")
    model, seen, x = random_model(ARCHITECTURES["bottleneck"]()), [images(8, seed=1)], images(16, seed=2)
    network = FusedResNet.from_model(model, path, precision="int8", calibration=seen).cuda().half()
    y = network(x.cuda().half()).float().cpu()
    assert {row.source for row in network.explain(x.cuda().half())} == {"tuned"}
    assert {row.dtype for row in network.explain(x.cuda().half())} == {"f16", "s8"}
    simulated = FusedResNet.from_model(model, path, precision="int8", calibration=seen)(x)
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
    done = script("accuracy", "--steps", 800, "--images", 2000, "--out", tmp_path, "--name", "told", timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["reference_top1"] > 0.6
    least = {"f16": 0.99, "bf16": 0.95, "tf32": 0.99, "int8": 0.9}
    assert {name for name, row in told["precisions"].items() if row["agreement"] < least[name]} == set()
