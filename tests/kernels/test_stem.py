"""The first convolution of a network with its max pool, by mma.sync, and its result in bytes: run on a CPU."""

import pytest
import torch
from comparison import relative_error
from emulator import Emulated
from kernels import assert_exported, need_compiler, random_inputs
from reference import solve

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import BYTE_FORMATS, parse
from autotune.measure import byte_tolerance

pytestmark = [pytest.mark.compile]

POOL = "pool=3 pool_stride=2 pool_pad=1"
SIZES = {
    "pool": f"n=2 h=21 w=40 c=3 k=40 r=7 s=7 stride=2 pad=3 {POOL}",
    "odd sizes": f"n=1 h=18 w=34 c=4 k=64 r=5 s=5 stride=2 pad=2 {POOL}",
    "no pool": "n=2 h=13 w=24 c=1 k=32 r=3 s=3 stride=2 pad=1",
}
OTHERS = {"instruction": "mma", "tile_k": 32, "strips": 2, "rows": 2, "together": 1, "stages": 2, "resident": 1}


def kernel(problem, arch="sm80", **values):
    name = f"cuda_{problem.operator}"
    wanted = {**OTHERS, **values}
    found = next(
        config
        for config in family(name).configs_for(problem, architecture(arch))
        if all(config[key] == value for key, value in wanted.items())
    )
    return Kernel.of(name, found, problem.dtype, problem.epilogue, arch.replace("sm", "sm_"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_stems(sizes, dtype, tmp_path):
    problem = parse(f"stem {sizes} dtype={dtype} epilogue=bias,relu")
    emulated = Emulated(kernel(problem, rows=4, stages=1), tmp_path)
    tensors, scalars = random_inputs(problem)
    y = emulated.run(problem, tensors, scalars, {"walk": 2}, 1)["y"]
    assert relative_error(y, solve(problem, tensors, scalars)["y"]) < {"f16": 1e-3, "bf16": 8e-3}[dtype]


@pytest.mark.parametrize("result", BYTE_FORMATS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_stems_with_a_result_in_bytes(sizes, result, tmp_path):
    problem = parse(f"stem_cast {sizes} result={result} dtype=f16 epilogue=bias,relu,mul_scalar")
    emulated = Emulated(kernel(problem, "sm90"), tmp_path)
    tensors, _ = random_inputs(problem)
    scalars = (20.0,)
    y = emulated.run(problem, tensors, scalars, {"walk": 1}, 1)["y"]
    expected = solve(problem, tensors, scalars)["y"]
    assert y.dtype == BYTE_FORMATS[result].tensors
    assert byte_tolerance.fault(BYTE_FORMATS[result], y.double(), expected, 0.0) is None
    assert len(torch.unique(y.float())) > 20


@pytest.mark.parametrize(("target", "values"), [("sm80", {}), ("sm90", {"instruction": "wgmma", "strips": 4})])
def test_kernels_with_bytes_compile(target, values):
    need_compiler(target.replace("sm", "sm_"))
    problem = parse(f"stem_cast {SIZES['pool']} result=s8 dtype=f16 epilogue=bias,relu,mul_scalar")
    assert_exported([kernel(problem, target, **values)])
