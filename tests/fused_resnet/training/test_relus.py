"""ReLUs in a training step that convolutions compute, against the same network in float64 on torch's operators."""

import copy
import shutil

import pytest
import torch
from architectures import Function
from databases import slow_down
from step_databases import tuned_step
from torch import nn
from training_networks import images, relative_error

from autotune.ir import parse
from fused_resnet.training import step_problems

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:of the"),
]


def network():
    """Return ReLUs behind convolutions with and without a bias, one in place, and one whose result two others read."""

    def forward(m, x):
        x = torch.relu(m.first(x))
        x = nn.functional.relu(m.second(x), inplace=True)
        x = m.third(x).relu()
        return m.last(x) + x.mean(1, keepdim=True)

    before = {"first": nn.Conv2d(3, 16, 3, padding=1), "second": nn.Conv2d(16, 16, 3, padding=1, bias=False)}
    behind = {"third": nn.Conv2d(16, 24, 3, padding=1, stride=2), "last": nn.Conv2d(24, 8, 1)}
    return Function(forward, **before, **behind).train()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return a database of the network with one config for each problem."""
    found = step_problems(network(), [images()])
    return tuned_step(tmp_path_factory.mktemp("relus") / "relus.db", found.to_tune())


def with_slow(path, folder, condition):
    """Return a copy of a database in which the problems of a condition are slow."""
    copied = shutil.copy(path, folder / "slow.db")
    slow_down(copied, 1000, f"problem_id IN (SELECT id FROM problem WHERE {condition})")
    return str(copied)


def assert_trains_as_torch(database):
    torch.manual_seed(0)
    trained = network()
    exact, x = copy.deepcopy(trained).double(), images()
    y = torch.compile(trained, backend="autotune", options={"tuning_db": database})(x)
    y.square().sum().backward()
    exact(x.double()).square().sum().backward()
    assert relative_error(y, exact(x.double())) < 1e-5
    for (name, parameter), reference in zip(trained.named_parameters(), exact.parameters(), strict=True):
        assert relative_error(parameter.grad, reference.grad) < 1e-5, name


def chains(solved):
    return sorted(chain for text in solved if (chain := str(parse(text).epilogue)) != "none")


@pytest.mark.daily(1)
@pytest.mark.parametrize("inductor", ["0", "1"])
def test_convolutions_compute_the_relus_around_them(tuned, tmp_path, solved, monkeypatch, inductor):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", inductor)
    assert_trains_as_torch(with_slow(tuned, tmp_path, "text LIKE '%epilogue=none'"))
    # The gradient with respect to the result of `second` has a stride, and that of `third` has another summand.
    assert chains(solved) == ["bias,relu", "bias,relu", "relu", "relu_mask"]


def test_they_do_not_where_that_is_slower(tuned, tmp_path, solved):
    assert_trains_as_torch(with_slow(tuned, tmp_path, "text NOT LIKE '%epilogue=none'"))
    assert solved and not chains(solved)


def test_the_problems_are_known_by_the_names_of_their_layers():
    fused = step_problems(network(), [images()]).with_relus
    assert {name: str(problem.epilogue) for name, problem in fused.items()} == {
        "first with its ReLU": "bias,relu",
        "second with its ReLU": "relu",
        "second by input with the ReLU's mask": "relu_mask",
        "third with its ReLU": "bias,relu",
    }


def test_what_others_read_has_no_such_problems():
    def forward(m, x):
        y = m.first(x)
        z = torch.relu(input=y)
        return m.second(z).mean() + z.chunk(2, 1)[0].mean() + y.mean()

    read = Function(forward, first=nn.Conv2d(3, 16, 3), second=nn.Conv2d(16, 8, 3))
    assert not step_problems(read.train(), [images()]).with_relus


def test_a_relu_behind_a_batch_norm_belongs_to_that():
    normed = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3))
    assert not step_problems(normed.train(), [images()]).with_relus
