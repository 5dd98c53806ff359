"""The lanes of modules and kernels in the trace of a profile: on this CPU, and in recorded traces of GPUs."""

import copy
from collections import Counter

import pytest
import torch
import trace_events
from repository import ROOT
from torch import nn

from autotune.core import chrome_trace
from autotune.profiling import attribution, record
from autotune.profiling.lanes import CATEGORY, with_lanes

CALLS = 2
LIMITS = {"flops_per_us": 1e5, "bytes_per_us": 1e4}
RECORDED = sorted((ROOT / "tests" / "data" / "traces").glob("*.json.gz"))


@pytest.fixture(scope="module")
def cpu():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    net = nn.Sequential(block, nn.Flatten(), nn.Linear(4 * 6 * 6, 5)).eval().requires_grad_(False)
    about = {"model": "test", "variant": "eager", "limits": LIMITS}
    subject = record.of_module(net, torch.randn(2, 3, 8, 8))
    return record.record(subject, torch.device("cpu"), CALLS, about)


def drawn(trace):
    return with_lanes(trace, attribution.read(trace))


def around(lane):
    """Return each slice of a lane with the names of the slices around it."""
    found, outer = [], []
    for one in lane:
        while outer and outer[-1]["ts"] + outer[-1]["dur"] <= one["ts"] + trace_events.ROUNDING_US / 2:
            outer.pop()
        found.append((one, [each["name"] for each in outer]))
        outer.append(one)
    return found


def test_on_a_cpu_each_call_shows_its_modules_and_their_operators(cpu):
    trace = drawn(cpu)
    [(name, lane)] = trace_events.lanes(trace, CATEGORY).items()
    assert name == "CPU"
    assert [one["name"] for one in trace_events.top(lane)] == ["call 0", "call 1"]
    modules = Counter(one["name"] for one in lane if "class" in one["args"])
    assert modules == dict.fromkeys(["network", "0", "0.0", "0.1", "0.2", "1", "2"], CALLS)
    operators = [(one, outer) for one, outer in around(lane) if "kernel" in one["args"]]
    profile = attribution.read(cpu)
    assert Counter((one["args"]["module"], f"aten::{one['name']}") for one, _ in operators) == {
        (path, operator.name): CALLS * operator.calls
        for path, module in profile.modules.items()
        for operator in module.operators.values()
    }
    assert all(outer[-1] == one["args"]["module"] for one, outer in operators)
    [[first, _], *_] = [each for each in operators if each[0]["name"] == "conv2d"]
    assert first["args"]["flops"] == 2 * 2 * 6 * 6 * 4 * 3 * 9 and first["args"]["shapes"].startswith("2x3x8x8 ")
    assert first["args"]["limit_us"] == pytest.approx(first["args"]["bytes"] / LIMITS["bytes_per_us"], abs=0.001)
    recorded = {(e["ts"], e["dur"]) for e in cpu["traceEvents"] if e.get("name") == "aten::conv2d"}
    conv2d = {(one["ts"], one["dur"]) for one, _ in operators if one["name"] == "conv2d"}
    assert sorted(conv2d) == [pytest.approx(times, abs=2 * trace_events.ROUNDING_US) for times in sorted(recorded)]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_on_a_gpu_every_kernel_is_once_in_its_module(path):
    recorded = chrome_trace.load(path)
    trace, about = drawn(recorded), recorded[record.ABOUT]
    lanes = trace_events.lanes(trace, CATEGORY)
    assert all(name.startswith("GPU 0, stream ") for name in lanes)
    kernels = [each for lane in lanes.values() for each in around(lane) if "kernel" in each[0]["args"]]
    ran = [e for e in recorded["traceEvents"] if e.get("cat") in record.DEVICE and "spin_kernel" not in e["name"]]
    assert Counter(one["args"]["kernel"] for one, _ in kernels) == Counter(event["name"] for event in ran)
    starts, real = (sorted((e["ts"], e["dur"]) for e in events) for events in ([one for one, _ in kernels], ran))
    assert starts == [pytest.approx(times, abs=2 * trace_events.ROUNDING_US) for times in real]
    for one, outer in kernels:
        module = one["args"]["module"]
        assert outer[0].startswith("call ")
        called = [path for path, kind in about["modules"].items() if kind not in ("ModuleList", "ModuleDict")]
        above = [path for path in called if path and f"{module}.".startswith(f"{path}.")]
        modules = [name for name in outer if name in about["modules"]]
        assert modules == sorted(above, key=len) and outer[1] == "network"
        layer = about["layers"].get(module)
        if layer and "template" in layer:
            assert one["args"]["problem"] == layer["problem"] and one["args"]["candidate"] == layer["candidate"]
            assert 0 < one["args"]["limit_us"] < one["dur"] * 2


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_trace_with_lanes_is_read_as_before_and_gets_no_second_ones(path):
    recorded = chrome_trace.load(path)
    before = copy.deepcopy(recorded)
    trace = drawn(recorded)
    assert recorded == before
    assert attribution.read(trace) == attribution.read(recorded)
    assert drawn(trace) == trace


def test_kernels_of_a_stream_that_overlap_are_in_lanes_of_their_own():
    """A kernel may begin before the one before it has ended (programmatic dependent launch)."""
    recorded = chrome_trace.load(next(path for path in RECORDED if "fused" in path.name))
    first, second = [e for e in recorded["traceEvents"] if e.get("cat") == "kernel" and "spin" not in e["name"]][:2]
    first["dur"] = second["ts"] - first["ts"] + 0.5 * second["dur"]
    lanes = trace_events.lanes(drawn(recorded), CATEGORY)
    assert len(lanes) == 2
    names = [[one["args"]["kernel"] for one in lane if "kernel" in one["args"]] for lane in lanes.values()]
    assert [second["name"]] == names[1] and first["name"] in names[0]


def test_the_group_is_called_by_the_network_and_how_it_ran(cpu):
    events = drawn(cpu)["traceEvents"]
    [group] = {event["pid"] for event in events if event.get("cat") == CATEGORY}
    [title] = [e["args"]["name"] for e in events if e["pid"] == group and e["name"] == "process_name"]
    assert title == "test: eager"
