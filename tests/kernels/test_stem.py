"""The first convolution of a network with its max pool, and other convolutions of few channels: run on a CPU."""

import pytest
import torch
from comparison import relative_error
from emulator import Emulated
from kernels import assert_exported, assert_not_serialized, need_compiler, random_inputs
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
    name = "cuda_narrow_conv2d" if problem.operator == "conv2d" else f"cuda_{problem.operator}"
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


# Image, config and tiles a block. The last tiles of an image are not whole, and a block has tiles below each other.
AHEAD = {
    "pool": (f"stem {SIZES['pool']}", {"tile_k": 64, "rows": 4, "stages": 2}, 2),
    "pool, one stage": (f"stem {SIZES['pool']}", {"rows": 4, "stages": 1}, 2),
    "pool, many tiles": (f"stem n=1 h=55 w=28 c=3 k=32 r=7 s=7 stride=2 pad=3 {POOL}", {"rows": 4}, 4),
    "pool, 8 strips": (f"stem n=1 h=10 w=240 c=3 k=32 r=7 s=7 stride=2 pad=3 {POOL}", {"strips": 8, "rows": 4}, 1),
    "pool, 5x5": (f"stem {SIZES['odd sizes']}", {"tile_k": 64, "rows": 4}, 2),
    "no pool": ("stem n=2 h=21 w=40 c=3 k=40 r=7 s=7 stride=2 pad=3", {"tile_k": 64, "rows": 4}, 2),
    "no pool, one stage": ("stem n=1 h=37 w=24 c=1 k=32 r=7 s=7 stride=2 pad=3", {"rows": 8, "stages": 1}, 2),
    "interleaved": ("conv2d n=2 h=21 w=40 c=3 k=40 r=7 s=7 stride=2 pad=3", {"tile_k": 64, "rows": 4}, 2),
    "interleaved, 3x3": ("conv2d n=1 h=19 w=40 c=3 k=32 r=3 s=3 stride=2 pad=1", {"rows": 4}, 4),
    "stride 1": ("conv2d n=1 h=18 w=40 c=2 k=32 r=5 s=5 pad=2", {"rows": 8}, 2),
    "stride 1, 3x3": ("conv2d n=1 h=18 w=36 c=4 k=64 r=3 s=3 pad=1", {"tile_k": 64, "rows": 4}, 4),
}


def ahead(text, values):
    return kernel(parse(text), "sm90", **{"instruction": "wgmma_ahead", "strips": 4, **values})


@pytest.mark.daily(3)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("sizes", "values", "walk"), AHEAD.values(), ids=AHEAD)
def test_products_of_the_next_row_run_while_a_row_is_finished(sizes, values, walk, dtype, tmp_path):
    problem = parse(f"{sizes} dtype={dtype} epilogue=bias,relu")
    emulated = Emulated(ahead(str(problem), values), tmp_path)
    tensors, scalars = random_inputs(problem)
    y = emulated.run(problem, tensors, scalars, {"walk": walk}, 1)["y"]
    assert relative_error(y, solve(problem, tensors, scalars)["y"]) < {"f16": 1e-3, "bf16": 8e-3}[dtype]


def test_an_infinity_next_to_the_filter_rows_stays_out_of_the_zero_step(tmp_path):
    """Operand A of the half step that no line fills is zero, not what lies in shared memory."""
    problem = parse(f"stem {SIZES['pool']} dtype=f16 epilogue=bias")
    emulated = Emulated(ahead(str(problem), {"tile_k": 64, "rows": 4}), tmp_path)
    tensors, scalars = random_inputs(problem)
    tensors["x"][:, :, 14:] = float("inf")
    y = emulated.run(problem, tensors, scalars, {"walk": 1}, 1)["y"]
    assert y[:, :2].isfinite().all(), "rows of the pool that only need image rows above 14"


@pytest.mark.parametrize("result", BYTE_FORMATS)
def test_products_ahead_with_a_result_in_bytes(result, tmp_path):
    problem = parse(f"stem_cast {SIZES['pool']} result={result} dtype=f16 epilogue=bias,relu,mul_scalar")
    emulated = Emulated(ahead(str(problem), {"tile_k": 64, "rows": 4}), tmp_path)
    tensors, _ = random_inputs(problem)
    scalars = (20.0,)
    y = emulated.run(problem, tensors, scalars, {"walk": 2}, 1)["y"]
    expected = solve(problem, tensors, scalars)["y"]
    assert byte_tolerance.fault(BYTE_FORMATS[result], y.double(), expected, 0.0) is None
    assert len(torch.unique(y.float())) > 20


@pytest.mark.parametrize("name", ["pool", "pool, 5x5", "no pool", "interleaved", "stride 1"])
def test_products_ahead_are_not_serialized(name, tmp_path):
    sizes, values, _ = AHEAD[name]
    assert_not_serialized(ahead(f"{sizes} dtype=f16 epilogue=bias,relu", values), tmp_path)
