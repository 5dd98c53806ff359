"""Hopper convolutions with totals of channels: their own text, run on a CPU, with one and several tiles of a block."""

import pytest
import torch
from comparison import relative_error
from emulator import Emulated, assert_special_values_arrive
from kernels import assert_not_serialized, fitting, random_inputs
from reference import solve
from repository import table_of

from autotune.core import architecture
from autotune.families import Kernel, family
from autotune.ir import Epilogue, parse

SM90 = architecture("sm90")
STATISTICS, SUMS = (family(f"sm90_conv2d_{kind}") for kind in ("statistics", "gradient_sums"))
SMALL = {
    "merge": 1, "tile_m": 64, "tile_n": 32, "tile_k": 64, "groups": 1, "schedule": "cooperative",
    "activations": "im2col", "weights": "streamed", "cluster_m": 1, "cluster_n": 1, "slices": 1,
}  # fmt: skip

CASES = table_of(__file__)["cases"]
"""Case -> what differs in the config, the problem, the most blocks."""


KINDS = ("relu=0 gradients=1", "relu=1 gradients=1", "relu=0 gradients=2", "relu=2 gradients=1", "relu=2 gradients=2")
"""Fields of a problem with sums of a gradient."""


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_convolution_and_statistics(case, tmp_path):
    found, wanted = _emulated(STATISTICS, case, CASES[case][1], tmp_path, shift=1.0)
    for outputs in found:
        for ours, exact in zip(outputs["statistics"], wanted["statistics"], strict=True):
            torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.daily(2)
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_text_computes_a_gradient_and_its_sums(case, tmp_path):
    kind = KINDS[list(CASES).index(case) % len(KINDS)]
    text = CASES[case][1].replace("conv2d_statistics", "conv2d_gradient_sums").replace(" dtype", f" {kind} dtype")
    found, wanted = _emulated(SUMS, case, text, tmp_path)
    for outputs in found:
        for ours, exact in zip(outputs["sums"], wanted["sums"], strict=True):
            torch.testing.assert_close(ours.double(), exact, rtol=2e-4, atol=2e-5 * float(exact.abs().max()))


def _emulated(chosen, case, text, folder, shift=0.0):
    """Run a case with transfers late, and at once; return all outputs of both runs, and the exact ones."""
    config, problem, grid = SMALL | CASES[case][0], parse(text), CASES[case][2]
    emulated = Emulated(fitting(chosen.name, problem, config, SM90), folder)
    tensors, scalars = random_inputs(problem)
    tensors["x"] += shift  # means that are not small
    wanted = solve(problem, tensors, scalars)
    launch = {**chosen.launches(problem, config, SM90)[-1], "staged": 1, "grid": grid}
    cluster = config["cluster_m"] * config["cluster_n"]
    assert_special_values_arrive(emulated, problem, tensors, scalars, launch, cluster)
    found = [emulated.run(problem, tensors, scalars, launch, cluster, seed) for seed in (0, 1)]
    for outputs in found:
        assert relative_error(outputs["y"], wanted["y"]) < {"f16": 1e-3, "bf16": 8e-3}[problem.dtype]
    return found, wanted


def test_blocks_stay_in_their_columns():
    problem = parse("conv2d_statistics n=128 h=56 w=56 c=64 k=256 dtype=f16")
    launches = STATISTICS.launches(problem, SMALL | {"tile_m": 128, "tile_n": 64}, SM90)
    assert launches
    assert all(launch["grid"] % 4 == 0 and launch["staged"] and not launch["raster"] for launch in launches)


@pytest.mark.compile
@pytest.mark.parametrize("chosen", [STATISTICS, SUMS], ids=lambda chosen: chosen.name)
@pytest.mark.parametrize(
    "config",
    [
        {"tile_m": 128, "tile_n": 128, "groups": 2, "schedule": "pingpong"},
        {"tile_m": 128, "tile_n": 256, "groups": 2},
        {"tile_m": 128, "tile_n": 64, "groups": 2, "activations": "patch", "weights": "resident"},
    ],
    ids=["turns", "many sums", "patches"],
)
def test_the_compiler_does_not_serialize_products(chosen, config, tmp_path):
    assert chosen.why_illegal(SMALL | config, SM90, "f16", Epilogue()) is None
    assert_not_serialized(Kernel.of(chosen.name, SMALL | config, "f16", Epilogue(), "sm_90"), tmp_path)
