"""Benches: random tensors, the reference, and which results are right. test_worker_client.py has faulty kernels."""

import json
from dataclasses import replace

import pytest
import torch
from comparison import relative_error
from kernels import built_paths, candidate_of
from reference import solve

from autotune.ir import DTYPES, parse, reference
from autotune.libraries import aten
from autotune.measure import THROTTLED, CandidateBench, Monitor
from autotune.measure.verify import HALF_SUMS, TOLERANCE
from autotune.runtime import Candidate

CPU = torch.device("cpu")
TEXTS = [
    "conv2d n=2 h=9 w=7 c=12 k=20 r=3 s=2 stride=2,1 pad=1,0 dilation=1,2 groups=2 dtype={} epilogue=bias,store,relu",
    "conv2d n=3 h=5 w=5 c=7 k=9 dtype={} epilogue=mul_scalar,silu,add,add_scalar,scale,sigmoid",
    "conv2d n=3 h=5 w=5 c=7 k=9 dtype={} epilogue=clamp,leaky_relu,add,relu6,bias,hardsigmoid,store,tanh",
    "conv2d n=3 h=5 w=5 c=7 k=9 dtype={} epilogue=gelu,swish_b,add,hardswish,bent,add,gelu_tanh",
    "avg_pool2d n=2 h=9 w=6 c=5 r=3 s=2 stride=2,3 pad=1,0 dtype={} epilogue=add_scalar",
    "max_pool2d n=2 h=9 w=6 c=5 r=3 s=2 stride=2,3 pad=1,0 dtype={} epilogue=bias,store",
    "max_pool2d n=2 h=8 w=7 c=5 r=3 s=3 stride=2 ceil=1 dtype={}",
    "global_avg_pool2d n=3 h=5 w=4 c=7 dtype={} epilogue=scale,store",
    "elementwise n=2 h=3 w=4 c=7 dtype={} epilogue=add,store,silu",
    "to_channels_last n=2 h=3 w=4 c=5 to=7 dtype={} epilogue=scale,bias",
    "space_to_depth n=2 h=8 w=12 c=3 block=4 dtype={}",
    "stem n=2 h=17 w=16 c=3 k=9 r=7 s=7 stride=2 pad=3 pool=3 pool_stride=2 pool_pad=1 dtype={} epilogue=bias,relu",
    "stem n=2 h=9 w=10 c=4 k=5 r=3 s=2 stride=1,2 pad=0,1 dtype={}",
    "se_tail n=3 h=5 w=4 c=24 hidden=3 dtype={} epilogue=add,relu,add_scalar",
    "conv2d_se n=2 h=5 w=4 c=6 k=24 r=3 s=2 stride=2,1 hidden=3 dtype={} epilogue=bias,gate,add,relu",
    "se_block n=2 h=5 w=4 c=12 hidden=3 dtype={} epilogue=bias,relu,store,conv,mul_scalar,gate,add,relu",
    "stem_se_block n=2 h=8 w=12 c=3 k=12 block=2 hidden=3 dtype={} epilogue=relu,keep,bias,conv,conv,gate,add_kept",
    "stem_se_block_pool n=2 h=8 w=12 c=3 k=12 block=2 hidden=3 dtype={} epilogue=keep,conv,scale,conv,gate,add_kept",
    "se_down_block n=2 h=5 w=8 c=12 k=20 hidden=3 dtype={} epilogue=bias,relu,conv,store,scale,gate,project,relu",
    "conv2d_dgrad n=2 h=9 w=7 c=12 k=20 r=3 s=2 stride=2,1 pad=1,0 dilation=1,2 groups=2 dtype={} epilogue=bias,store",
    "conv2d_dgrad n=2 h=6 w=8 c=6 k=6 r=3 s=3 stride=2 pad=1 groups=6 dtype={}",
    "conv2d_wgrad n=2 h=9 w=7 c=12 k=20 r=3 s=2 stride=2,1 pad=1,0 dilation=1,2 groups=2 dtype={} epilogue=scale,add",
    "conv2d_wgrad n=3 h=5 w=5 c=7 k=9 dtype={}",
    "gemm m=5 n=12 k=7 dtype={} epilogue=bias,relu,store",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_reference_means_what_the_operators_mean(text):
    problem = parse(text.format("f32"))
    case = CandidateBench(problem, CPU, seed=3)
    tensors = {name: tensor.double() for name, tensor in case.tensors.items()}
    computed = reference.compute(problem, tensors, case.scalars)
    expected = solve(problem, case.tensors, case.scalars)
    assert set(computed) == set(expected) == {o.name for o in problem.operands() if o.role == "output"}
    for name, value in expected.items():
        torch.testing.assert_close(computed[name], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(case.expected[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_operands_are_random_and_as_described(text, dtype):
    problem = parse(text.format(dtype))
    case, again, other = (CandidateBench(problem, CPU, seed=seed) for seed in (1, 1, 2))
    for operand in problem.operands():
        tensor = case.tensors[operand.name]
        assert tensor.shape == operand.shape and tensor.dtype == DTYPES[operand.dtype] and tensor.is_contiguous()
        if operand.role != "output":
            assert torch.equal(tensor, again.tensors[operand.name])
            assert not torch.equal(tensor, other.tensors[operand.name])
            assert tensor.double().std() > 0.01
    assert len(case.scalars) == problem.epilogue.scalars and all(0.25 <= abs(s) <= 1 for s in case.scalars)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("text", TEXTS)
def test_torchs_operators_are_right(text, dtype):
    problem = parse(text.format(dtype))
    case = CandidateBench(problem, CPU)
    expected = solve(problem, case.tensors, case.scalars)
    limit = {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}[dtype]
    for config in aten.configs(problem):
        case.fill_nan()
        case.bind(Candidate(aten.FAMILY, json.dumps(config), "")).run()
        for name, value in expected.items():
            assert relative_error(case.tensors[name], value) < limit, name


def test_nan_fills_every_output_and_is_a_wrong_result():
    case = CandidateBench(parse(TEXTS[0].format("f32")), CPU)
    case.fill_nan()
    assert case.tensors["y"].isnan().all() and case.tensors["store1"].isnan().all()
    assert not case.tensors["x"].isnan().any()
    error, complaint = case.check()
    assert error == float("inf") and "never written" in complaint


@pytest.mark.parametrize("name", ["y", "store1"])
def test_every_output_is_checked(name):
    case = CandidateBench(parse(TEXTS[0].format("f32")), CPU)

    def fill():
        case.fill_nan()
        for output, value in case.expected.items():
            case.tensors[output].copy_(value)

    fill()
    assert case.check() == (pytest.approx(0, abs=1e-7), None)
    for spoil in (lambda t: t.mul_(1.0001), lambda t: t[0, 0, 0, 0].add_(0.1), lambda t: t[-1, -1, -1, -1].fill_(1e38)):
        fill()
        spoil(case.tensors[name])
        assert name in case.check()[1]


def test_rounding_to_the_dtype_is_not_wrong():
    for dtype in ("f16", "bf16"):
        case = CandidateBench(parse(TEXTS[1].format(dtype)), CPU)
        case.fill_nan()
        case.tensors["y"].copy_(case.expected["y"])
        assert case.check()[1] is None


BYTES = "conv2d n=2 h=9 w=7 c=12 k=20 r=3 s=2 pad=1,0 groups=2 dtype=s8 epilogue=bias,scale,store,relu"


def test_bytes_are_summed_exactly_and_rounded_to_the_nearest():
    case = CandidateBench(parse(BYTES), CPU, seed=4)
    for name in ("x", "weight"):
        values = case.tensors[name].double()
        assert values.min() < -110 and values.max() > 110 and case.tensors[name].dtype == torch.int8
    expected = solve(case.problem, case.tensors, case.scalars)
    assert 10 < expected["store2"].clamp(-128, 127).std() < 90, "neither all zero nor all saturated"
    for config in aten.configs(case.problem):
        result = case.run(Candidate(aten.FAMILY, json.dumps(config), ""))
        assert result.status == "ok", result.error
        for name, value in expected.items():
            assert torch.equal(case.tensors[name].double(), value.clamp(-128, 127).round()), name


def test_a_byte_may_be_off_by_one_only_in_the_middle_between_two():
    case = CandidateBench(parse(BYTES), CPU, seed=5)
    case.expected["y"][0, 0, 0, :4] = torch.tensor([7.5003, 7.503, 300.0, -2.5])

    def check(*bytes_):
        case.fill_nan()
        for name, value in case.expected.items():
            case.tensors[name].copy_(value.clamp(-128, 127).round())
        case.tensors["y"][0, 0, 0, :4] = torch.tensor(bytes_, dtype=torch.int8)
        return case.check()[1]

    assert check(8, 8, 127, -2) is None and check(7, 8, 127, -3) is None
    for wrong in ((9, 8, 127, -2), (8, 7, 127, -2), (8, 8, 126, -2), (8, 8, -128, -2), (8, 8, 127, -4)):
        assert "off by" in check(*wrong), wrong


def test_bytes_are_filled_with_values_far_from_the_result():
    case = CandidateBench(parse(BYTES), CPU)
    case.fill_nan()
    for name, value in case.expected.items():
        assert ((case.tensors[name].double() - value.clamp(-128, 127)).abs() > 100).all()
    assert "off by" in case.check()[1]


@pytest.mark.parametrize("text", [BYTES, TEXTS[0].format("f16"), TEXTS[0].format("bf16")])
def test_the_second_filling_differs_from_the_first_in_every_element(text):
    case = CandidateBench(parse(text), CPU)
    case.fill_nan()
    first = case.copy_outputs()
    case.fill_nan(other=True)
    for name, bits in first.items():
        assert case.bit_difference({name: bits}) == f"{name} differs in {bits.numel()} of {bits.numel()} elements"
        assert not case.tensors[name].isnan().any() and case.tensors[name].double().std() > 20


@pytest.mark.parametrize("name", ["x", "weight", "bias0"])
def test_a_write_to_an_input_is_found(name):
    case = CandidateBench(parse(TEXTS[0].format("f16")), CPU)
    case.fill_nan()
    assert case.out_of_bounds_write() is None and not case.corrupted_inputs
    case.tensors[name].view(-1)[5] *= -1
    assert case.out_of_bounds_write() == f"{name} was overwritten" and case.corrupted_inputs


def test_a_write_to_the_reference_is_found():
    case = CandidateBench(parse(TEXTS[0].format("f16")), CPU)
    case.fill_nan()
    case.expected["y"].view(-1)[7] += 1e-6
    assert case.out_of_bounds_write() == "the reference of y was overwritten" and case.corrupted_inputs


def test_half_sums_have_a_tolerance_of_their_own_and_it_is_recorded():
    case = CandidateBench(parse(TEXTS[1].format("f16")), CPU)
    case.fill_nan()
    for name, value in case.expected.items():
        case.tensors[name].copy_(value * 1.004)
    assert "relative error" in case.check()[1] and case.check(HALF_SUMS)[1] is None
    result = case.run(Candidate(aten.FAMILY, json.dumps(aten.configs(case.problem)[0] | {"accumulator": "f16"}), ""))
    assert result.details["tolerance"] == TOLERANCE[HALF_SUMS]


def test_a_candidate_much_slower_than_the_best_is_timed_briefly():
    case = CandidateBench(parse("avg_pool2d n=2 h=9 w=9 c=8 r=3 s=3 stride=2 pad=1 dtype=f32"), CPU)
    candidate = Candidate(aten.FAMILY, json.dumps(aten.configs(case.problem)[0]), "")
    full = case.run(candidate, best_us=1e6)
    brief = case.run(candidate, best_us=1e-3)
    assert full.status == brief.status == "ok"
    assert (len(full.samples_us), len(brief.samples_us)) == (5, 2) and brief.median_us > 0


def test_a_run_reports_its_samples():
    case = CandidateBench(parse(TEXTS[-1].format("f32")), CPU)
    result = case.run(Candidate(aten.FAMILY, json.dumps(aten.configs(case.problem)[0]), ""))
    assert result.status == "ok" and result.error is None
    assert min(result.samples_us) - 1e-3 <= result.median_us <= max(result.samples_us) + 1e-3
    assert result.spread_us >= 0 and result.relative_error < 1e-6


@pytest.mark.parametrize("said", [[], ["other processes use 90% of the CPU"]])
def test_a_trial_beside_other_processes_says_so_and_takes_no_more_samples(said):
    class Watched(Monitor):
        def slowed_beside_run(self):
            return said

    case = CandidateBench(parse(TEXTS[-1].format("f32")), CPU)
    case._monitor = Watched(CPU)
    candidate = Candidate(aten.FAMILY, json.dumps(aten.configs(case.problem)[0]), "")
    for best_us, rounds in ((1e6, 5), (1e-3, 2)):
        result = case.run(candidate, best_us)
        assert len(result.samples_us) == rounds and "repeated_us" not in result.details
        assert result.details.get(THROTTLED, 0) == (rounds if said else 0)


class Step:
    """Calls a function when it is run."""

    def __init__(self, function):
        self._function = function

    def run(self, stream=0):
        self._function()


def test_a_librarys_implementation_is_verified_and_then_timed():
    case = CandidateBench(parse(TEXTS[-1].format("f32")), CPU)

    def solve_it():
        for name, value in reference.compute(case.problem, case.tensors, case.scalars).items():
            case.tensors[name].copy_(value)

    result = case.run_library(lambda: Step(solve_it))
    assert result.status == "ok" and len(result.samples_us) == 5 and result.median_us > 0
    assert result.relative_error < 1e-6
    elsewhere = case.run_library(lambda: Step(lambda: None), lambda: Step(solve_it))
    assert elsewhere.status == "ok", "only the second one writes to the outputs"


def test_a_librarys_implementation_that_is_wrong_or_raises_has_no_time():
    case = CandidateBench(parse(TEXTS[-1].format("f32")), CPU)
    wrong = case.run_library(lambda: Step(case.tensors["y"].zero_))
    assert wrong.status == "wrong" and wrong.median_us is None and "y holds values" not in wrong.error

    def fail():
        raise RuntimeError("no such plan\nsecond line")

    for failed in (case.run_library(fail), case.run_library(lambda: Step(fail))):
        assert (failed.status, failed.median_us, failed.error) == ("failed", None, "RuntimeError: no such plan")


DEVICE = torch.device("cpu")


@pytest.mark.compile
def test_weights_in_the_wrong_order_come_out_as_wrong(cpu_kernel):
    problem = parse("conv2d n=2 h=6 w=6 c=24 k=32 r=3 s=3 pad=1 dtype=f32 epilogue=relu")
    kernel = cpu_kernel("cpu_conv2d", {"block_k": 16, "block_pixels": 4, "unroll_c": 1}, "relu")
    right = candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1, "order": 0})
    case = CandidateBench(problem, DEVICE)
    assert case.run(right).status == "ok"
    result = case.run(replace(right, weight_layouts={"weight": "krsc"}))
    assert result.status == "wrong" and result.median_us is None and result.relative_error > 0.1


@pytest.mark.compile
def test_a_kernel_with_another_epilogue_comes_out_as_wrong(cpu_kernel):
    problem = parse("avg_pool2d n=2 h=6 w=6 c=24 r=3 s=3 stride=2 pad=1 dtype=f32 epilogue=add_scalar")
    kernel = cpu_kernel("cpu_avg_pool2d", {"block_c": 8}, "mul_scalar")
    result = CandidateBench(problem, DEVICE).run(candidate_of(kernel, built_paths([kernel])[kernel], {"threads": 1}))
    assert result.status == "wrong" and "relative error" in result.error and result.median_us is None


class Writes:
    """A step that writes the right result, and then what it is told."""

    def __init__(self, case, more=lambda: None):
        self.case, self.more = case, more

    def run(self, stream=0):
        self.case.tensors["y"].copy_(self.case.expected["y"])
        self.more()


def test_a_write_beyond_an_output_that_reaches_an_input_is_noticed_as_both():
    case = CandidateBench(parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f32"), CPU, seed=1)

    def beyond():
        case._guarded["y"][-1:].fill_(0)
        case.tensors["x"].view(-1)[0] += 1

    assert case.verify(Writes(case))[1] is None and not case.corrupted_inputs
    assert "bytes around y" in case.verify(Writes(case, beyond))[1]
    assert case.corrupted_inputs, "the next kernel would be blamed for the input"


def test_nothing_is_right_beside_a_reference_with_nan():
    case = CandidateBench(parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f32"), CPU, seed=1)
    case.expected["y"].view(-1)[0] = torch.nan
    case._sums = case._checksums()
    assert case.verify(Writes(case, lambda: case.tensors["y"].fill_(12345.0)))[1]
