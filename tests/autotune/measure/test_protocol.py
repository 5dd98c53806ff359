"""Requests to a measuring process in the trace of a run: steps, times and failures."""

import pytest
import trace_events

from autotune.core import timeline
from autotune.ir import CallerTensor, Layer, Network, NetworkKey, parse
from autotune.ir.network import INPUT, OUTPUT
from autotune.libraries import aten
from autotune.measure import LayerAssignment, Worker
from autotune.runtime import Binary, Candidate

pytestmark = pytest.mark.process

PROBLEM = parse("avg_pool2d n=2 h=9 w=7 c=7 r=3 s=3 stride=2 pad=1 dtype=f32")
GOOD = Candidate(aten.FAMILY, '{"memory_format": "channels_last"}', "")
CONTIGUOUS = Candidate(aten.FAMILY, '{"memory_format": "contiguous"}', "")
BAD = Candidate("faulty", '{"block": 2}', "s", Binary.of("shared_library", b"not a library"))
NETWORK = Network(
    NetworkKey("net"),
    (Layer("pool", PROBLEM, {"x": INPUT, "y": OUTPUT}, {}),),
    (CallerTensor((2, 7, 9, 7), "f32"),),
    (CallerTensor(PROBLEM.output_shape, "f32"),),
)
PLANS = [[LayerAssignment("pool", candidate)] for candidate in (GOOD, CONTIGUOUS)]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return the answers of a process of its own, which the second candidate ends, and the lanes of the trace."""
    answers = {}
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    with timeline.recording(path), Worker("cpu") as worker, Worker("cpu", lane=timeline.Lane.LISTING) as lister:
        answers["facts"] = worker.facts()
        for candidate in (GOOD, BAD, GOOD):
            worker.send(PROBLEM, candidate)
        answers["trials"] = [worker.receive() for _ in range(3)]
        answers["finals"] = worker.finals(PROBLEM, [GOOD, GOOD], rounds=3)
        answers["network"] = worker.time_networks(NETWORK, PLANS, rounds=2)
        answers["plans"] = lister.library_plans(None, 60.0)
    return answers, trace_events.lanes(trace_events.read(path), "tune")


@pytest.fixture(scope="module")
def answers(traced):
    return traced[0]


@pytest.fixture(scope="module")
def lanes(traced):
    return traced[1]


def test_every_request_is_a_slice_in_the_lane_of_its_process(lanes):
    names = [one["name"] for one in trace_events.top(lanes["device"])]
    problem, start = PROBLEM.short_name, "start the process"
    first, last = (
        [start, "measure the device", f"{problem} aten"],
        [f"{problem} aten", f"finals: {problem}", "network: 2 plans"],
    )
    assert names == [*first, f"{problem} faulty", start, *last]
    assert [one["name"] for one in lanes["cuDNN plans"]] == [start, "version of cuDNN"]
    assert lanes.keys() == {"device", "cuDNN plans"}


def test_a_trial_has_its_steps_its_time_or_its_failure(lanes, answers):
    device = lanes["device"]
    trials = [i for i, one in enumerate(device) if "family" in one["args"]]
    for i, result in zip(trials, answers["trials"], strict=True):
        args = device[i]["args"]
        assert args["problem"] == str(PROBLEM) and args["status"] == result.status
        assert (args.get("us"), args.get("error")) == (result.median_us, result.error)
    first, failed, last = trials
    assert device[failed]["args"]["config"] == {"block": 2} and device[failed]["args"]["error"]
    for i in (first, last):
        steps = device[i + 1 : i + 4]
        seconds = answers["trials"][0 if i == first else 2].details["seconds"]
        assert [one["name"] for one in steps] == ["load", "verify", "time"]
        for one in steps[:2]:
            assert one["dur"] == pytest.approx(1e6 * seconds[one["name"]], abs=1)


def test_finals_have_the_times_of_all_candidates(lanes, answers):
    args = lanes["device"][-2]["args"]
    assert args["us"] == [result.median_us for result in answers["finals"]] and args["rounds"] == 3
    assert args["candidates"] == [str(GOOD)] * 2


def test_plans_of_a_network_have_their_times_and_what_they_change(lanes, answers):
    args = lanes["device"][-1]["args"]
    assert args["us"] == [result.median_us for result in answers["network"]] and all(args["us"])
    assert args["changes"] == [[], [f"pool: {CONTIGUOUS}"]] and args["network"] == NETWORK.key
