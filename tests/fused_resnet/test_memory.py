"""The memory report: what it says is what a call then allocates."""

import gc
from dataclasses import replace

import pytest
import torch
from databases import alter
from planned_database import with_plan
from processes import TUNED_BATCH, assert_error, script
from seed_network import fused, images, plain

from autotune.core import format_bytes
from autotune.ir import network_text
from fused_resnet import FusedResNet
from fused_resnet.memory import planned_memory
from tuning_db import open_reader

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def allocated(network):
    """Return the bytes of all tensors of one dimension or more that a network's cache refers to, by kind."""
    [context] = network._cache.contexts.values()
    steps = [bound.step for bound in context.plan.bound]
    workspaces = context._tensors[len(context.plan.buffers) :]
    own = {tensor.data_ptr() for tensor in plain().state_dict().values()} | {p.data_ptr() for p in network.parameters()}
    kept = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for step in steps for tensor in step.keep}
    return {
        "activations": context.memory.block.numel(),
        "workspaces": workspaces[0].untyped_storage().nbytes() if workspaces else 0,
        "constants": sum(size for place, size in kept.items() if place not in own),
    }


@pytest.mark.parametrize("n", [1, TUNED_BATCH, 7])
def test_a_call_allocates_what_was_reported_and_nothing_before(tuned_db, n):
    network, x = fused(tuned_db), images(n)
    report = network.memory(x)
    assert not network._cache.contexts
    y = network(x)
    found = allocated(network)
    assert {name: getattr(report, name) for name in found} == found
    assert report.results == y.numel() * y.element_size()
    assert report.parameters == sum(p.numel() * p.element_size() for p in network.parameters())
    assert 0 < report.activations < report.unshared / 2 and report.code > 0
    assert network.memory(x) == report == network.explain(x).memory


def test_what_plans_share_counts_once(tuned_db):
    network = fused(tuned_db)
    small, large = network.memory(images(1)), network.memory(images(8))
    assert small.constants <= large.constants < 1.5 * small.constants
    assert large.activations > 4 * small.activations


def test_a_network_on_torchs_operators_needs_no_packed_weights(empty_db):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    report = FusedResNet.from_model(model, empty_db, compile=False).memory(torch.randn(2, 3, 9, 9))
    assert report.code == report.workspaces == 0 and report.parameters == 4 * (8 * 27 + 8)
    assert report.results == 2 * 8 * 7 * 7 * 4 and "at the peak, 0 % less" in str(report)


def test_the_report_does_not_grow_with_calls(tuned_db):
    network = fused(tuned_db)
    reports = set()
    for n in (2, 4, 2, 4):
        network(images(n))
        gc.collect()
        reports.add(str(network.memory(images(2))))
    assert len(reports) <= 2  # the second size may have kernels with other layouts


def test_a_database_tells_the_memory_of_a_plan_without_its_device(tuned_db, tmp_path):
    path = with_plan(tuned_db, tmp_path / "planned.db")
    here = fused(path).memory(images(TUNED_BATCH))
    with open_reader(path) as store:
        [device] = store.devices()
        [key] = store.planned(device)
        network = network_text.find(store.networks(), key)
        read = planned_memory(store, device, network, store.plan(device, key))
    assert replace(read, parameters=here.parameters) == here
    done = script("memory", path, COLUMNS="150")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if "input=3x64x64" in line]
    assert format_bytes(read.activations) in line and line.rstrip().endswith(format_bytes(read.total))


def test_plans_whose_memory_is_not_known_are_named(tuned_db, tmp_path):
    path = with_plan(tuned_db, tmp_path / "planned.db")
    alter(path, "DELETE FROM network")
    done = script("memory", path)
    assert done.returncode == 0 and "it was stored without its network: tune again" in " ".join(done.stdout.split())
    assert_error(script("memory", path, "--batch", "77"), "no such plan", "autotune db info")
    assert_error(script("memory", tuned_db), "no plan of a network", "autotune tune")


def test_the_report_says_all_numbers(tuned_db):
    text = str(fused(tuned_db).memory(images(2)))
    assert [line.partition(":")[0] for line in text.splitlines()] == ["activations", "workspaces", "weights", "kernels"]
    assert all(len(line) <= 80 for line in text.splitlines())
