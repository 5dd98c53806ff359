"""Profiles of traces that `autotune profile --trace` recorded on GPUs: tests/data/traces/*.json.gz."""

from collections import Counter

import pytest
from repository import ROOT

from autotune.core import chrome_trace
from autotune.profiling import attribution, record, summary
from autotune.profiling.tree import tree
from fused_resnet.networks import se_resnet9_fixup

TRACES = ROOT / "tests" / "data" / "traces"
RECORDED = sorted(TRACES.glob("*.json.gz"))
pytestmark = pytest.mark.skipif(not RECORDED, reason="no recorded traces of a GPU here")


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def trace(request):
    return chrome_trace.load(request.param)


def test_every_kernel_has_a_module_and_a_library(trace):
    profile = attribution.read(trace)
    assert not profile.unattributed
    assert "unknown" not in {kernel.origin.library for kernel in profile.kernels()}
    launched = [event for event in trace["traceEvents"] if event.get("cat") in record.DEVICE]
    others = sum("spin_kernel" in event["name"] for event in launched)
    assert others <= 1
    launches = sum(kernel.launches for kernel in profile.kernels())
    assert launches * trace[record.ABOUT]["calls"] == pytest.approx(len(launched) - others)


def test_times_add_up_to_what_was_measured(trace):
    sums = summary.totals(attribution.read(trace))
    assert sums.total_us == pytest.approx(sums.profiled_us, rel=0.03)
    assert abs(sums.difference) < 0.05  # against a run without the profiler, which lengthens the gaps between kernels


def test_no_more_is_recorded_at_once_than_the_device_takes(trace):
    """Else it would wait for the host, and the profile with it."""
    launches = sum(event.get("cat") in record.DEVICE for event in trace["traceEvents"])
    assert record.calls_in_queue(trace, 1000) == 900 // launches
    assert record.calls_in_queue(trace, 1) == 1
    assert record.calls_in_queue({"traceEvents": 1000 * trace["traceEvents"]}, 4) == 1, "at least one"
    assert record.calls_in_queue({"traceEvents": []}, 4) == 4, "a CPU has no queue"


def test_layers_on_our_kernels_ran_them(trace):
    profile = attribution.read(trace)
    for path, layer in trace[record.ABOUT]["layers"].items():
        kernels = [k for operator in profile.modules[path].operators.values() for k in operator.kernels.values()]
        assert kernels
        if "template" in layer:
            assert {kernel.name for kernel in kernels} == {layer["symbol"]}
            assert kernels[0].origin.library == "ours" and layer["candidate"] in kernels[0].origin.where


def test_convolutions_are_where_the_network_has_them(trace):
    about = trace[record.ABOUT]
    if about["variant"] != "eager":
        pytest.skip("only plain modules keep their operators")
    profile = attribution.read(trace)
    for path, kind in about["modules"].items():
        if kind == "Conv2d":
            [operator] = profile.modules[path].operators.values()
            assert operator.name == "aten::conv2d" and operator.us > 0 and operator.flops > 0
    if about["model"] == "se_resnet9_fixup":
        assert about["modules"] == {
            path: type(module).__name__ for path, module in se_resnet9_fixup.build().named_modules()
        }


def test_a_tree_has_every_kernel_once_and_adds_up(trace):
    profile = attribution.read(trace)
    root = tree(profile)
    kernels = [node for _, node in root.walk() if node.kind == "kernel"]
    assert Counter(node.text for node in kernels) == Counter(kernel.name for kernel in profile.kernels())
    for _, node in root.walk():
        sums = ("us",) if node.kind == "operator" else ("us", "flops", "bytes")
        for name in sums if node.children else ():
            assert getattr(node, name) == pytest.approx(sum(getattr(child, name) for child in node.children))
    assert sum(library.us for library in summary.libraries(root)) == pytest.approx(root.us) == profile.kernels_us


def test_without_its_modules_ranges_a_trace_attributes_nothing_and_loses_no_time(trace):
    whole = attribution.read(trace)
    bare = [event for event in trace["traceEvents"] if not event["name"].startswith(record.MODULE)]
    profile = attribution.read({**trace, "traceEvents": bare})
    assert not profile.modules and profile.unattributed
    assert profile.total_us == pytest.approx(whole.total_us)


def test_before_and_after_are_one_tree_in_which_nothing_of_ours_is_left_out():
    before, after = (
        tree(attribution.read(chrome_trace.load(TRACES / f"se_resnet9_fixup{end}.json.gz"))) for end in ("", "-fused")
    )
    rows = summary.side_by_side(before, after)
    paths = [path for path, *_ in rows]
    assert len(set(paths)) == len(paths)
    above = [""]
    for path in paths[1:]:  # each stands below its module, or below others of that module
        while above[-1] and not path.startswith(f"{above[-1]}."):
            above.pop()
        assert path.rpartition(".")[0] == above[-1]
        above.append(path)
    hidden = [path for path in after.modules() if path not in paths]
    assert all(any(path.startswith(f"{row}.") and not left for row, left, _ in rows) for path in hidden)
    assert {path for path, left, right in rows if left and right} == before.modules().keys() & after.modules().keys()
