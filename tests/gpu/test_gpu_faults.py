"""The measuring process against kernels that hang, lie, write where they must not and ruin the context, on a GPU."""

import faults
import pytest
import torch
from faults import PROBLEM
from kernels import tried
from pool_networks import NETWORK, SECOND, plan
from torch.nn.functional import avg_pool2d

from autotune.ir import parse
from autotune.libraries import aten
from autotune.measure import Timing, Worker
from autotune.measure.network_bench import NetworkBench
from autotune.runtime import Candidate

pytestmark = pytest.mark.gpu

FAULTS = {
    **faults.FAULTS,
    "writes_far": ("crashed", "illegal memory access"),
    "misaligned": ("crashed", "misaligned address"),
    "loops": ("timed_out", f"no answer within {faults.DEADLINE:g} s"),
    "traps": ("crashed", "launch failure"),
    "trusts_workspace": ("unstable", "the same input gave other results in another run"),
    "leaks": ("crashed", "illegal memory access"),
    "refuses": ("refused", "refuses the problem: c=7 is not supported"),
    "asks_too_much": ("refused", "needs 1048576 bytes of shared memory"),
    "has_no_blocks": ("crashed", "invalid argument"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Name -> candidate, all in one device image."""
    return faults.on_gpu(tmp_path_factory.mktemp("faulty"))


@pytest.fixture(scope="module")
def results(faulty):
    with Worker("cuda:0") as worker:
        return faults.answers(worker, faulty, FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_for_what_it_is(name, results):
    faults.assert_told(results[name][0], *FAULTS[name])


@pytest.mark.parametrize("name", FAULTS)
def test_a_good_kernel_after_it_is_still_measured(name, results):
    answer = results[name][1]
    assert answer.status == "ok", answer.error
    assert answer.median_us > 0 and answer.relative_error < 1e-6
    details = answer.details
    assert details["repeatable"] and details["workspace_bytes"] == 4
    assert 0.5 < details["host_us"] < 200
    state = details["state"]
    assert state["sm_mhz"] > 100 and 0 < state["celsius"] < 110 and state["watts"] > 10
    assert isinstance(state["throttle_reasons"], list)


def test_a_plan_whose_kernels_are_right_alone_only_is_wrong(faulty):
    """The second kernel does not wait for the first one, which matters only where they may overlap."""
    device = torch.device("cuda:0")
    bench = NetworkBench(NETWORK, device)
    for overlap, status in [(False, "ok"), (True, "wrong"), (False, "ok")]:
        [result] = bench.compare([plan(faulty("ends_late"), faulty("good"), overlap)], 3)
        assert result.status == status, result.error


def test_plans_with_layers_on_torch_are_timed_as_they_run(faulty):
    """Torch's layer reads the caller's input and writes its result: the graph copies both."""
    bench = NetworkBench(NETWORK, torch.device("cuda:0"))
    on_torch = Candidate(aten.FAMILY, '{"memory_format": "channels_last"}', "")
    plans = [plan(on_torch, faulty("good")), plan(faulty("good"), on_torch), plan(on_torch, on_torch)]
    for several in (plans, plans[::-1], plans[:1]):
        x, y = bench._callers.values()
        y.fill_(torch.nan)
        for result in bench.compare(several, 3):
            assert result.status == "ok", result.error
        first = avg_pool2d(x.permute(0, 3, 1, 2).double(), PROBLEM.r, PROBLEM.stride, PROBLEM.pad)
        expected = avg_pool2d(first, SECOND.r, SECOND.stride, SECOND.pad).permute(0, 2, 3, 1)
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6)


def test_every_way_of_timing_works(faulty):
    candidates = [faulty("good"), Candidate(aten.FAMILY, '{"memory_format": "channels_last"}', "")]
    for timing in (Timing(), Timing("events"), Timing(buffers="rotating"), Timing("events", "rotating", energy=True)):
        with Worker("cuda:0", timing=timing) as worker:
            for answer in tried(worker, PROBLEM, candidates):
                assert answer.status == "ok", answer.error
                assert (answer.details["timer"], answer.details["buffers"]) == (timing.timer, timing.buffers)
                assert 0.3 < answer.median_us < 1000
                assert ("energy_uj" in answer.details) == timing.energy
                if timing.energy:  # a GPU that works draws some tens to some hundreds of watts
                    assert 10 < answer.details["energy_uj"] / answer.median_us < 2000
            finals = worker.finals(PROBLEM, candidates, rounds=9)
            assert all(answer.status == "ok" and len(answer.samples_us) == 9 for answer in finals)
            for answer in finals:
                low, high = answer.details["interval_us"]
                assert low - 1e-3 <= answer.median_us <= high + 1e-3


def test_tensors_of_earlier_problems_make_room_when_others_use_the_memory():
    candidate = Candidate(aten.FAMILY, '{"memory_format": "channels_last"}', "")
    first, second = (
        parse(f"elementwise n=32 h=256 w=256 c={c} dtype=f32 epilogue=relu")  # 0.5 GB an operand
        for c in (64, 56)
    )
    with Worker("cuda:0") as worker:
        (answer,) = tried(worker, first, [candidate])
        assert answer.status == "ok", answer.error
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        # The second problem needs 5 GB; the first keeps as much, and 2 GB are free.
        taken = torch.empty(max(0, free - 2**31), dtype=torch.uint8, device="cuda")
        (answer,) = tried(worker, second, [candidate])
        del taken
        assert answer.status == "ok", answer.error
        assert worker.pid
