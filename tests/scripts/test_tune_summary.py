"""The end of a tune's output: problems that were not searched, times, and the line of Python that runs the network."""

import io

import pytest
import torch
from databases import identity, put_time
from rich.console import Console
from torch import nn

from autotune.core import architecture
from autotune.ir import parse
from autotune.measure import THROTTLED
from autotune.tuner import SLOWED, Progress, Tuner, TuneRequest, TunerOptions
from autotune_cli.models import Model
from autotune_cli.tune_summary import show_gaps, show_outcome
from fused_resnet import FusedResNet
from tuning_db import Store

CPU, SM90 = architecture("cpu"), architecture("sm90")
POOL = parse("avg_pool2d n=4 h=8 w=8 c=64 r=3 s=3 stride=1 dtype=f16")


@pytest.mark.parametrize("enumerated", [False, True])
def test_a_run_that_ended_before_its_search_says_so(tmp_path, enumerated):
    """Also if the configs were already enumerated."""
    with Store.create(tmp_path / "a.db") as store:
        tuner = Tuner(store, [POOL], TunerOptions(SM90, "sm_90", trials=8, jobs=1), [], Progress())
        if enumerated:
            tuner.study_manager.enumerate()
        printed = io.StringIO()
        request = TuneRequest("net", "net", [("pool", POOL)])
        show_gaps(Console(file=printed, width=200), tuner, [request], verbose=False)
    assert "pool: not searched: the budget was too short." in printed.getvalue()


def said_of(network, store, **details):
    """Return what is printed at the end of a tune in which each layer took 2 us, and torch's operators 8 us.

    details: further ones of these times.
    """
    request = TuneRequest("net", "net", [(layer.name, layer.problem) for layer in network.all_layers], network)
    tuner = Tuner(store, request.problems, TunerOptions(CPU, "x86-64-v3", trials=1, jobs=1), [], Progress())
    tuner.device = store.put_device("a CPU", "x86-64-v3", flops_per_us=1e6, bytes_per_us=1e5)
    for family, us in (("cpu_conv2d", 2.0), ("aten", 8.0)):
        kernel = store.put_kernel({**identity("{}"), "family": family}, symbol="s")
        for problem in dict.fromkeys(request.problems):
            known = {"launch": {}, "samples_us": [us], "spread_us": 0.0, "final": True}
            put_time(store, tuner.device, problem, kernel.id, us, **known, details={"finals": 1, **details})
    printed = io.StringIO()
    show_outcome(Console(file=printed, width=300), tuner, [request], store.name)
    return printed.getvalue().splitlines()


@pytest.mark.parametrize("details", [{}, {THROTTLED: 5}])
def test_a_sum_of_times_that_other_processes_have_made_longer_says_so(tmp_path, details):
    network = Model("net", (8, 8, 8), nn.Sequential(nn.Conv2d(8, 8, 3)).eval()).network(2, "f32", None)
    with Store.create(tmp_path / "a.db") as store:
        outcome, *_ = said_of(network, store, **details)
    assert "us, 4.00x faster than torch's operators" in outcome and (SLOWED in outcome) == bool(details)


@pytest.mark.parametrize("precision", [None, "tf32", "int8", "fp8"])
def test_the_printed_line_loads_the_network_as_it_was_tuned(tmp_path, precision):
    module = nn.Sequential(
        nn.Conv2d(16, 32, 3), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 32, 3), nn.Conv2d(32, 32, 1)
    ).eval()
    network, x = Model("net", (16, 16, 16), module).network(4, "f32", precision), torch.randn(4, 16, 16, 16)
    with Store.create(tmp_path / "a.db") as store:
        outcome, database, line = said_of(network, store)
    net = eval(line, {"FusedResNet": FusedResNet, "model": module, "batches": [x]})
    assert net._network(x).key == network.key
    assert database == f"database {tmp_path / 'a.db'}"
    assert ("4.00x faster than torch's operators" in outcome) == (precision in (None, "tf32"))
    assert (f"torch only emulates {precision}" in outcome) == (precision in ("int8", "fp8"))
