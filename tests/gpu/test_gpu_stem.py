"""Stems on a GPU: every way of the kernel on one image, and on the borders of its tiles."""

import os
from itertools import product

import pytest
import torch
from comparison import relative_error
from kernels import built_paths, candidate_of
from reference import solve

from autotune.core import of_capability
from autotune.families import Kernel, family
from autotune.ir import parse
from autotune.measure import CandidateBench

pytestmark = pytest.mark.gpu

STEM = family("cuda_stem")
POOL = "pool=3 pool_stride=2 pool_pad=1"
SIZES = [(64, 64), (65, 224), (37, 112), (9, 16), (230, 72)]


def problem(h, w, pool, n=2, k=64):
    return parse(f"stem n={n} h={h} w={w} c=3 k={k} r=7 s=7 stride=2 pad=3 {pool} dtype=f16 epilogue=bias,relu")


@pytest.fixture(scope="module")
def target():
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        pytest.skip("stems are for GPUs from sm80 on")
    return of_capability(10 * major + minor), f"sm_{major}{minor}"


@pytest.fixture(scope="module")
def built(target):
    """Kernels of every way: one for each legal choice of all but the tile's size."""
    arch, name = target
    kernels = []
    ways = ("instruction", "pool", "tile_k", "together", "stages", "strips")
    for pool in ("", POOL):
        asked = problem(64, 64, pool)
        found = {tuple(config[way] for way in ways): config for config in STEM.configs_for(asked, arch)}
        kernels += [Kernel.of(STEM.name, config, "f16", asked.epilogue, name) for config in found.values()]
    assert {kernel.values["instruction"] for kernel in kernels} >= {"mma"}
    assert arch.name != "sm90" or {kernel.values["instruction"] for kernel in kernels} == {
        "mma",
        "wgmma",
        "wgmma_ahead",
    }
    return built_paths(kernels, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("size", "pool"), list(product(SIZES, ("", POOL))), ids=str)
def test_every_way_solves_every_size(size, pool, built, target):
    arch, _ = target
    asked = problem(*size, pool)
    case = CandidateBench(asked, torch.device("cuda:0"), seed=2)
    expected = solve(asked, case.tensors, case.scalars)["y"]
    solved = 0
    for kernel, path in built.items():
        if STEM.why_unfit(asked, kernel.values, arch):
            continue
        for launch in STEM.launches(asked, kernel.values, arch):
            step = case.bind(candidate_of(kernel, path, launch))
            _, complaint = case.verify(step)
            assert complaint is None, f"{kernel} {launch}: {complaint}"
            assert relative_error(case.tensors["y"], expected) < 1e-3, f"{kernel} {launch}"
            solved += 1
    assert solved


def test_what_a_kernel_was_not_made_for_is_refused(built):
    for kernel, path in list(built.items())[::7]:
        pool = POOL if kernel.values["pool"] else ""
        for text in (
            str(problem(64, 64, "" if pool else POOL)),
            str(problem(64, 64, pool)).replace("c=3", "c=4"),
            str(problem(64, 64, pool)).replace("pad=3,3", "pad=2,2"),
            str(problem(64, 64, pool)).replace("stride=2,2", "stride=1,2"),
            str(problem(64, 60, pool)),
            str(problem(64, 64, pool, k=60)),
        ):
            case = CandidateBench(parse(text), torch.device("cuda:0"))
            assert case.run(candidate_of(kernel, path, {"walk": 1})).status == "refused", text


def test_a_nan_of_the_image_reaches_the_pool(built):
    asked = problem(64, 64, POOL)
    case = CandidateBench(asked, torch.device("cuda:0"))
    case.tensors["x"][0, 1, 20, 30] = float("nan")
    expected = solve(asked, case.tensors, case.scalars)["y"].isnan()
    assert expected.any() and not expected.all()
    for kernel, path in built.items():
        if kernel.values["pool"]:
            case.bind(candidate_of(kernel, path, {"walk": 1})).run(torch.cuda.current_stream().cuda_stream)
            found = case.tensors["y"].cpu().isnan()
            assert found[expected].all() and found.sum() <= 2 * expected.sum()
