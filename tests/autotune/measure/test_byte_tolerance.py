"""Which bytes are accepted as the rounding of an exact value."""

import json

import pytest
import torch

from autotune.ir import E4M3, S8, parse
from autotune.libraries import aten
from autotune.measure import CandidateBench
from autotune.measure.byte_tolerance import FLOAT_SLACK, allowance, fault, nominal
from autotune.measure.verify import Workload
from autotune.runtime import Candidate

CPU = torch.device("cpu")
E4M3_CONV = "conv2d n=2 h=9 w=7 c=12 k=20 r=3 s=2 pad=1,0 groups=2 dtype=e4m3 epilogue=bias,scale,store,relu"


def said(form, actual, expected, of_sums=0.0):
    rest = torch.full((63,), 64.0, dtype=torch.float64)  # so that values spread by 64
    both = (torch.cat([torch.tensor([value], dtype=torch.float64), form.rounded(rest)]) for value in (actual, expected))
    return fault(form, *(values.view(1, 1, -1, 1) for values in both), of_sums)


@pytest.mark.parametrize(
    ("exact", "right", "wrong"),
    [
        (17.0, {16.0, 18.0}, {14.0, 15.0, 20.0}),  # a tie
        (17.01, {18.0}, {16.0, 20.0}),
        (16.99, {16.0}, {15.0, 18.0}),
        (-68.1, {-72.0}, {-64.0, -80.0, 72.0}),
        (1e4, {448.0}, {416.0, -448.0}),
        (-449.0, {-448.0}, {-416.0}),
        (464.0, {448.0}, {480.0}),
        (0.0, {0.0, 2**-9}, {0.01, -0.01, 1.0}),  # the allowance is that of the other values
    ],
)
def test_e4m3_is_rounded_to_the_nearest(exact, right, wrong):
    assert all(said(E4M3, value, exact) is None for value in right)
    assert all("before rounding" in said(E4M3, value, exact) for value in wrong)


def test_rounded_sums_have_a_neighbor_within_their_error():
    assert said(E4M3, 16.0, 17.5) and said(E4M3, 16.0, 17.5, 2**-7) is None
    assert said(E4M3, 15.0, 17.5, 2**-7) and said(E4M3, 16.0, 19.0, 2**-7)


def test_an_allowance_follows_the_channel():
    expected = torch.ones(4, 4, 4, 2, dtype=torch.float64)
    expected[..., 1] = 100
    small, large = allowance(E4M3, expected, 0.0)[0, 0, 0].tolist()
    assert large == pytest.approx(200 * FLOAT_SLACK) and 70 * FLOAT_SLACK < small < 73 * FLOAT_SLACK
    assert (allowance(S8, expected, 0.0) == 1e-3).all()
    assert nominal(S8, 0.0) == 1e-3 and nominal(E4M3, 0.5) == 0.5 + FLOAT_SLACK


@pytest.mark.parametrize(
    "text",
    [
        E4M3_CONV,
        "conv2d n=2 h=9 w=7 c=16 k=32 r=3 s=3 dtype=e4m3 epilogue=scale,bias,add,mul_scalar,relu",
        "gemm m=5 n=16 k=64 dtype=e4m3 epilogue=scale,bias,store,silu",
        "elementwise n=2 h=4 w=9 c=35 dtype=e4m3 epilogue=scale,bias,add,relu",
        "max_pool2d n=2 h=9 w=9 c=33 r=3 s=3 stride=2 pad=1 dtype=e4m3",
        "cast n=2 h=9 w=4 c=71 result=e4m3 dtype=f32 epilogue=mul_scalar,add",
        "cast n=2 h=9 w=4 c=71 result=f32 dtype=e4m3 epilogue=mul_scalar",
        "stem_cast n=4 h=36 w=36 c=3 k=24 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1 result=e4m3 dtype=f16 "
        "epilogue=bias,relu,mul_scalar",
    ],
)
def test_torchs_operators_cast(text):
    problem = parse(text)
    case = CandidateBench(problem, CPU, seed=4)
    for config in aten.configs(problem):
        result = case.run(Candidate(aten.FAMILY, json.dumps(config), ""))
        assert result.status == "ok", result.error
        assert result.details["tolerance"] == (1e-5 if problem.output_dtype == "f32" else FLOAT_SLACK)


def test_outputs_in_e4m3_are_nan_before_the_first_run_and_large_before_the_second():
    case = CandidateBench(parse(E4M3_CONV), CPU)
    assert case.tensors["x"].dtype == torch.float8_e4m3fn
    case.fill_nan()
    assert "not finite" in case.check()[1]
    case.fill_nan(other=True)
    assert {float(value) for value in case.tensors["y"].float().unique()} == {-448.0, 448.0}
    assert "off by" in case.check()[1]


def test_a_result_in_e4m3_is_checked_element_by_element():
    case = Workload(parse(E4M3_CONV), CPU, seed=3)
    for name, value in case.expected.items():
        case.tensors[name].copy_(value.clamp(-448, 448))
    assert case.check()[1] is None
    spread = case.tensors["store2"].float()
    assert 20 < spread.std() < 150 and (spread.abs() == 448).float().mean() < 0.05
    place = tuple(int(i) for i in (spread.abs() - 30).abs().eq((spread.abs() - 30).abs().min()).nonzero()[0])
    case.tensors["store2"].view(torch.uint8)[place] += 1  # the next number of the format
    assert "store2 has an element that is off by" in case.check()[1]
