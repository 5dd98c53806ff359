"""tests/campaigns/random_graphs.py on the CPU: random networks against torch, and what the check itself finds."""

import copy
import json

import pytest
import torch
from processes import script
from random_graphs import compare, exact, outcome, relative_error
from random_networks import draw
from torch import nn

from autotune.ir import parse
from fused_resnet import FusedResNet

pytestmark = [pytest.mark.fuzz, pytest.mark.filterwarnings("ignore:.*is not tuned", "ignore:.*LeafSpec")]

CPU = torch.device("cpu")
NETWORKS, SHARE = 300, 25
"""Number of networks of one block, and of those in one test."""


@pytest.fixture(autouse=True)
def one_thread():
    """The networks are too small to be shared by threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.daily(3)
@pytest.mark.parametrize("first", range(0, NETWORKS, SHARE))
def test_random_networks_are_as_exact_as_torchs(first, empty_db):
    for seed in range(first, first + SHARE):
        found = outcome(seed, empty_db, CPU, blocks=1)
        assert not found.failure and not found.wrong, f"{found}\n{draw(seed, blocks=1)[0]}"
        assert len(found.deviations) >= 5


def test_a_seed_draws_the_same_network():
    (one, x), (same, y), (other, _) = draw(5), draw(5), draw(6)
    assert str(one) == str(same) != str(other) and torch.equal(x, y)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True))


def changed_bias(model):
    model[1].bias[2] += 3e-5


def changed_epsilon(model):
    model[1].eps = 1e-4  # instead of 1e-5


def changed_filter(model):
    model[4].weight[3, 5] *= 1.0001


@pytest.mark.parametrize("change", [changed_bias, changed_epsilon, changed_filter])
@torch.no_grad()
def test_a_small_defect_is_found(change, empty_db):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Sigmoid(), nn.MaxPool2d(3, 1), nn.Conv2d(8, 4, 1))
    nn.init.normal_(model[1].bias)
    model.eval()
    defective = copy.deepcopy(model)
    change(defective)
    x = torch.randn(2, 3, 9, 9)
    found = compare(model, FusedResNet.from_model(defective, empty_db), x)
    assert [deviation.case for deviation in found if not deviation.is_wrong] == []
    assert not any(d.is_wrong for d in compare(model, FusedResNet.from_model(model, empty_db), x))


@torch.no_grad()
def test_where_terms_cancel_the_error_of_torch_is_allowed(empty_db):
    """The result is what a ReLU leaves of sums that a bias cancels, up to 1e-5 of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 1, 3, padding=1), nn.ReLU()).eval()
    x = torch.randn(2, 8, 6, 6)
    largest = nn.functional.conv2d(x.double(), model[0].weight.double(), padding=1).max()
    model[0].bias.fill_(1e-5 - largest)
    assert (exact(model, x) > 0).sum() == 1
    found = compare(model, FusedResNet.from_model(model, empty_db), x)[0]
    assert not found.is_wrong and found.allowed > 1e-3
    assert relative_error(model(x), exact(model, x)) > 1e-4  # more than a fixed tolerance could allow


def test_results_that_are_not_finite_count_as_wrong():
    y = torch.tensor([1.0, float("inf"), 3.0])
    assert relative_error(y, y) == 0
    assert relative_error(torch.tensor([1.0, 2.0, 3.0]), y) == float("inf") == relative_error(y[:2], y)
    assert relative_error(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([1.0, 2.0, 3.0])) == float("inf")


@pytest.mark.process  # git, for the record
def test_the_command(tmp_path):
    words = ("--graphs", 3, "--seed", 7, "--device", "cpu", "--out", tmp_path / "r.json")
    done = script("tests/campaigns/random_graphs.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 networks, 0 wrong, 0 failed" in done.stdout
    graphs = json.loads((tmp_path / "r.json").read_text())["graphs"]
    assert [graph["seed"] for graph in graphs] == [7, 8, 9] and all(graph["deviations"] for graph in graphs)
    done = script("tests/campaigns/random_graphs.py", "--graphs", 3, "--seed", 7, "--problems", tmp_path / "p.txt")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([parse(line) for line in (tmp_path / "p.txt").read_text().splitlines()]) > 3
