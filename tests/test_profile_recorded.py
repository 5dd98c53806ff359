"""Profiles of traces that scripts/profile.py --trace recorded on GPUs: tests/data/traces/*.json.gz."""

import pytest
from helpers import ROOT

from autotune.profiling import attribution, record, summary
from fused_resnet import reference

RECORDED = sorted((ROOT / "tests" / "data" / "traces").glob("*.json.gz"))
pytestmark = pytest.mark.skipif(not RECORDED, reason="no recorded traces of a GPU here")


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def trace(request):
    return record.load(request.param)


def test_every_kernel_has_a_module_and_a_library(trace):
    profile = attribution.read(trace)
    assert not profile.unattributed
    assert "unknown" not in {kernel.origin.library for kernel in profile.kernels()}
    launched = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    others = sum("spin_kernel" in event["name"] for event in launched)
    assert others <= 1
    launches = sum(kernel.launches for kernel in profile.kernels())
    assert launches * trace[record.ABOUT]["calls"] == pytest.approx(len(launched) - others)


def test_times_add_up_to_what_was_measured(trace):
    sums = summary.totals(attribution.read(trace))
    assert sums.total_us == pytest.approx(sums.profiled_us, rel=0.03)
    assert abs(sums.difference) < 0.05  # against a run without the profiler, which lengthens the gaps between kernels


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
        assert about["modules"] == {path: type(module).__name__ for path, module in reference.build().named_modules()}
