"""Gates of squeeze-and-excitation, in every kernel that has one: where a value is not a number; run on a CPU."""

import math

import pytest
import torch
from emulator import Emulated
from kernels import random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import parse

SM90 = architecture("sm90")
CASES = {
    "cuda_se_tail": "se_tail n=5 h=4 w=4 c=64 hidden=4 dtype=f16 epilogue=add",
    "cuda_mma_se_tail": "se_tail n=5 h=4 w=4 c=64 hidden=4 dtype=f16 epilogue=add",
    "cuda_conv2d": "conv2d_se n=5 h=4 w=4 c=64 k=64 hidden=4 dtype=f16 epilogue=bias,gate,add",
    "sm90_conv2d": "conv2d_se n=5 h=4 w=4 c=64 k=64 hidden=4 dtype=f16 epilogue=bias,gate,add",
    "cuda_folded_conv2d": "conv2d_folded_se n=5 h=4 w=4 c=64 k=64 hidden=4 dtype=f16 epilogue=bias,gate,add",
    "sm90_folded_conv2d": "conv2d_folded_se n=5 h=4 w=4 c=64 k=64 hidden=4 dtype=f16 epilogue=bias,gate,add",
    "sm90_folded_conv2d, rows": "conv2d_folded_se n=5 h=2 w=2 c=64 k=64 hidden=4 dtype=f16 epilogue=bias,gate,add",
    "sm90_image_conv2d": "conv2d_folded_se n=5 h=4 w=4 c=64 k=64 hidden=4 r=3 s=3 pad=1 dtype=f16 epilogue=gate,add",
}


@pytest.mark.daily(1)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_a_nan_is_one_in_all_that_its_gate_scales(case, tmp_path):
    found, problem = family(case.partition(",")[0]), parse(CASES[case])
    config = min(found.configs_for(problem, SM90), key=lambda config: found.cost(problem, config, SM90))
    launch = found.launches(problem, config, SM90)[0]
    emulated = Emulated(Kernel.of(found.name, config, problem.dtype, problem.epilogue, "sm_90"), tmp_path)
    tensors, scalars = random_inputs(problem)
    tensors["x"][1, 0, 1, 3] = float("nan")
    cluster = math.prod(config.get(name, 1) for name in ("cluster_m", "cluster_n", "slices", "peers"))
    y = emulated.run(problem, tensors, scalars, launch, cluster)["y"]
    expected = solve(problem, tensors, scalars)["y"]
    assert torch.equal(y.isnan(), expected.isnan()) and expected[1].isnan().all() and not expected[0].isnan().any()
