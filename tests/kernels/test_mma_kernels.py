"""Kernels whose products are those of every GPU from sm_80 on: their own text, run on a CPU."""

import dataclasses

import pytest
import torch
from comparison import LIMIT, assert_right, relative_error
from emulator import Emulated
from kernels import config_of, proposed, random_inputs, spread_inputs
from reference import solve
from reference_steps import run_chain
from repository import table_of

from autotune.core import architecture
from autotune.families import family
from autotune.ir import Epilogue, parse

pytestmark = pytest.mark.compile

SM80 = architecture("sm80")

CASES = table_of(__file__)
"""Family, or "bytes" -> case -> a problem, the values of the config, and values of the launch."""

DAILY = {"cuda_conv2d": 6, "cuda_folded_conv2d": 2, "cuda_se_block": 1, "cuda_se_down_block": 1, "cuda_mma_se_tail": 1}
"""Family -> how many of its cases a day runs."""


def emulated_kernel(name, problem, values, wanted, folder):
    """Return a kernel, and the last launch that has the wanted values; without any the first one."""
    config = config_of(name, values)
    launches = [one for one in family(name).launches(problem, config, SM80) if wanted.items() <= one.items()]
    return Emulated(proposed(name, problem, config, SM80), folder), launches[-1 if wanted else 0]


@pytest.mark.parametrize(
    ("name", "text", "values", "wanted"),
    [
        pytest.param(name, *case, id=f"{name}: {said}", marks=pytest.mark.daily(count, name))
        for name, count in DAILY.items()
        for said, case in CASES[name].items()
    ],
)
def test_the_kernels_text_solves_the_problem(name, text, values, wanted, tmp_path):
    problem = parse(text)
    emulated, launch = emulated_kernel(name, problem, values, wanted, tmp_path)
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)
    for seed in (0, 1):
        assert_right(emulated.run(problem, tensors, scalars, launch, 1, seed), expected, problem.dtype, f"seed {seed}")


def bytes_of(problem, tensors, scalars):
    """Return the outputs as the kernel computes them: whole sums, then float32 after each step, then bytes."""
    sums = solve(dataclasses.replace(problem, epilogue=Epilogue()), tensors, ())["y"]
    given = {name: tensor.float() for name, tensor in tensors.items()}
    outputs = run_chain(problem.epilogue.names, sums.float(), given, scalars)
    return {name: value.round().clamp(-128, 127).to(torch.int8) for name, value in outputs.items()}


def assert_computes_bytes(problem, emulated, launch, tensors, scalars):
    expected = bytes_of(problem, tensors, scalars)
    assert expected["y"].double().std() > 5, "a test of few values would prove little"
    for seed in (0, 1):
        results = emulated.run(problem, tensors, scalars, launch, 1, seed)
        assert results.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.equal(results[key], value), (key, seed)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("text", "values", "wanted"), CASES["bytes"].values(), ids=CASES["bytes"])
def test_convolutions_of_bytes(text, values, wanted, tmp_path):
    problem = parse(text)
    emulated, launch = emulated_kernel("cuda_conv2d", problem, values, wanted, tmp_path)
    assert_computes_bytes(problem, emulated, launch, *spread_inputs(problem))


def test_slices_add_sums_beyond_the_precision_of_float32(tmp_path):
    """Both slices' sums are above 2^24 and odd or even: 127 x 127, and a small number from one channel of each."""
    problem = parse("conv2d n=1 h=8 w=8 c=400 k=8 r=3 s=3 dtype=s8 epilogue=add_scalar")
    emulated, launch = emulated_kernel("cuda_conv2d", problem, (64, 32, 64, 32, 2, 3, 2), {"patches": 2}, tmp_path)
    own = [0, 64]
    tensors = {name: torch.full_like(tensor, 127) for name, tensor in random_inputs(problem)[0].items()}
    tensors["x"][..., own] = torch.arange(128).to(torch.int8).view(1, 8, 8, 2) % 97 - 48
    tensors["weight"][:, own] = 0
    tensors["weight"][:, own, 1, 1] = torch.arange(16).to(torch.int8).view(8, 2) % 5 - 2
    large = torch.tensor(398 * 9 * 127.0**2)
    assert_computes_bytes(problem, emulated, launch, tensors, (-float(large),))
    odd = dataclasses.replace(problem, c=392)
    assert emulated.refusal(odd, launch) == "c must be a multiple of 16 bytes, and k of 8 channels"


def test_problems_of_bytes_that_are_not_served_have_a_reason():
    text = "conv2d n=1 h=16 w=16 c=64 k=72 r=3 s=3 pad=1 dtype=s8 epilogue=scale"
    found = family("cuda_conv2d")
    assert found.why_not_served(parse(text), SM80) is None
    for before, after, said in (
        ("c=64", "c=72", "c must be a multiple of 16, and k of 8"),
        ("k=72", "k=68", "c must be a multiple of 16, and k of 8"),
        ("c=64", "c=16384", "so that no sum overflows int32"),
        ("conv2d n=1", "conv2d_se hidden=4 n=1", "gates are not computed from bytes"),
    ):
        gate = ",gate" if "_se" in after else ""
        assert said in found.why_not_served(parse(text.replace(before, after) + gate), SM80), after
    config = config_of("cuda_conv2d", (256, 64, 64, 64, 2, 3, 2))
    gated = Epilogue.parse("scale,gate")
    assert found.why_illegal(config, SM80, "f16", gated) is None
    assert found.why_illegal(config, SM80, "s8", gated) == "gates are not computed from bytes"
    for name in ("cuda_folded_conv2d", "cuda_se_block", "cuda_se_down_block", "cuda_stem_se_block"):
        assert "s8" not in family(name).dtypes


def test_the_cost_of_bytes_is_that_of_the_rows_that_are_multiplied():
    """A step takes 128 bytes of channels; of a last chunk of at most 64 channels in int8 it multiplies half."""
    text = "conv2d n=64 h=28 w=28 c={} k=256 r=3 s=3 pad=1 dtype={}"
    config = config_of("cuda_conv2d", (128, 128, 64, 32, 1, 1, 3))
    found = family("cuda_conv2d")

    def cost(channels, dtype):
        return found.cost(parse(text.format(channels, dtype)), config, SM80)

    assert cost(128, "s8") == cost(64, "f16") and cost(256, "s8") == cost(128, "f16")
    assert cost(64, "s8") < cost(80, "s8") == cost(128, "s8") and cost(128, "s8") < cost(192, "s8") < cost(256, "s8")


STEMS = CASES["cuda_stem_se_block"]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("text", "values"), STEMS.values(), ids=STEMS)
def test_residual_blocks_behind_a_stem(text, values, tmp_path):
    problem = parse(text)
    emulated, launch = emulated_kernel("cuda_stem_se_block", problem, values, {}, tmp_path)
    assert launch == {"channels_last": 0}
    tensors, scalars = random_inputs(problem)
    expected = solve(problem, tensors, scalars)["y"]
    for last in (0, 1):
        x = tensors["x"].permute(0, 2, 3, 1).contiguous() if last else tensors["x"]
        results = emulated.run(problem, {**tensors, "x": x}, scalars, {"channels_last": last}, 1, last)
        assert relative_error(results["y"], expected) < LIMIT[problem.dtype], last
