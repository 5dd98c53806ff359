"""explain_step: its rows are what a training step runs."""

import copy
import shutil
from collections import Counter

import pytest
import torch
from architectures import Function
from databases import slow_down
from torch import nn
from training_networks import Normed, Small, images

from fused_resnet import FusedResNet, InputError, explain_step
from fused_resnet.step_explanation import TORCH

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:.*run on the kernels of"),
]


@pytest.fixture(scope="module")
def norms_db(normed_db, tmp_path_factory):
    """Return that of `Normed`, in which torch's times are made long."""
    path = str(shutil.copy(normed_db, tmp_path_factory.mktemp("norms")))
    slow_down(path, 1000, "kernel_id IN (SELECT id FROM kernel WHERE family = 'aten')")
    return path


def run_step(network, database, x):
    network = copy.deepcopy(network)
    torch.compile(network, backend="autotune", options={"tuning_db": database})(x).square().sum().backward()


def calls(rows, *, on_kernels=True):
    return Counter(row.problem for row in rows if (row.kernel != TORCH) == on_kernels for _ in range(row.calls))


@pytest.mark.daily(2)
@pytest.mark.parametrize(("kind", "fixture"), [(Small, "step_db"), (Normed, "norms_db")])
@pytest.mark.parametrize("of_input", [False, True])
def test_rows_are_the_problems_that_a_step_solves(kind, fixture, of_input, solved, request):
    database, network = request.getfixturevalue(fixture), kind().train()
    x = images().requires_grad_(of_input and kind is Small)  # the other database has no kernel for that gradient
    found = explain_step(network, x, tuning_db=database)
    assert not solved, "nothing runs"
    run_step(network, database, x)
    assert calls(found) == Counter(solved)
    assert found.num_on_kernels == sum(row.calls for row in found) == len(solved)
    assert found.expected_us == pytest.approx(sum(row.calls * row.expected_us for row in found))
    assert all(row.passes and row.limit_share > 0 for row in found)


def test_passes_have_the_names_of_their_layers(step_db):
    found = explain_step(Small(), images(), tuning_db=step_db)
    assert explain_step(torch.compile(Small()), images(), tuning_db=step_db) == found
    # The times decide whether a convolution computes the ReLU behind it.
    named = {name.replace(" with its ReLU", ""): row for row in found for name in row.passes}
    assert {"stem", "stem by weight", "down by input", "shared", "shared (2)", "norm gradient"} <= set(named)
    assert named["shared"].calls == 2 and named["shared"] is named["shared (2)"]
    assert max(map(len, str(found).splitlines())) <= 80
    assert "21 of 21 calls run on kernels" in str(found) and "shared by weight +1" in str(found)


def test_what_torch_computes_faster_is_torchs(step_db, solved, tmp_path):
    path = str(shutil.copy(step_db, tmp_path / "other.db"))
    gradients = "problem_id IN (SELECT id FROM problem WHERE text LIKE 'conv2d_wgrad %')"
    slow_down(path, 1e6, f"{gradients} AND kernel_id IN (SELECT id FROM kernel WHERE family != 'aten')")
    network = Small()
    found = explain_step(network, images(), tuning_db=path)
    run_step(network, path, images())
    assert calls(found) == Counter(solved)
    others = calls(found, on_kernels=False)
    assert len(others) == 5 and all(problem.startswith("conv2d_wgrad ") for problem in others)
    assert all(row.expected_us > 0 for row in found)


def test_a_convolution_without_a_problem_is_torchs(step_db):
    transposed = Function(lambda m, x: m.up(x).sum(), up=nn.ConvTranspose2d(3, 4, 2))
    found = explain_step(transposed, images(), tuning_db=step_db)
    assert [(row.problem, row.kernel, row.calls) for row in found] == [("", TORCH, 1), ("", TORCH, 1)]
    assert found.expected_us is None and found.num_on_kernels == 0 and "other convolution" in str(found)


def test_the_autocast_of_the_caller_counts(step_db):
    with torch.autocast("cpu", torch.bfloat16):
        found = explain_step(Small(), images(), tuning_db=step_db)
    convolutions = [row for row in found if row.problem.startswith("conv2d")]
    assert convolutions and all("dtype=bf16" in row.problem and row.kernel == TORCH for row in convolutions)
    assert all(row.passes for row in convolutions)


def test_nothing_is_changed(norms_db):
    network, x = Normed().train(), images()
    before, seed = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    explain_step(network, x, tuning_db=norms_db)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), seed) and network.training


def test_a_fused_network_is_explained_with_its_own_database(step_db, empty_db):
    network = FusedResNet.from_model(Small().eval(), step_db)
    with pytest.raises(InputError, match=r"call train\(\) first"):
        explain_step(network, images())
    assert explain_step(network.train(), images()).num_on_kernels == 21
    other = FusedResNet.from_model(Small().eval(), empty_db).train()
    with pytest.raises(InputError, match=r"tune one with `autotune tune --train"):
        explain_step(other, images())


def test_a_step_has_an_input(step_db):
    with pytest.raises(InputError, match="give the inputs"):
        explain_step(Small(), tuning_db=step_db)
