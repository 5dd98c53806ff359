"""Batch norms in training and max pools on tuned kernels, against the same network in float64 on torch's operators."""

import copy
import shutil
import warnings
from collections import Counter

import pytest
import torch
from architectures import Function
from databases import slow_down
from processes import in_threads
from step_databases import tuned_step
from torch import nn
from training_networks import Normed, images, relative_error

from autotune.ir import parse
from fused_resnet.training import step_problems
from fused_resnet.training.graph_rewrite.norm_rewrite import rewrite_norms
from fused_resnet.training.kernels.bound_problem import run, use
from fused_resnet.training.kernels.winners import Winners
from fused_resnet.tuning import TuneLimits, tune_step

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:.*run on the kernels of"),
]


@pytest.fixture(scope="module")
def norm_db(tmp_path_factory):
    """Return a database of the batch norms and max pools of `Normed` with one config for each problem."""
    found = step_problems(Normed().train(), [images()])
    return tuned_step(tmp_path_factory.mktemp("norms") / "norms.db", found.norms)


def network(kind=Normed):
    torch.manual_seed(0)
    made = kind().train()
    for norm in made.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return made


def compiled(model, database):
    return torch.compile(model, backend="autotune", options={"tuning_db": database})


def assert_trains_as_torch(trained, database):
    """Train for two steps, and compare results, gradients and running statistics with those in float64.

    An error may be 1e-5, or twice that of torch's own operators in float32.
    """
    exact, eager = copy.deepcopy(trained).double(), copy.deepcopy(trained)
    step = compiled(trained, database)
    for seed in range(2):
        x = images(seed=seed).requires_grad_()
        y, expected = step(x), exact(x.double())
        assert relative_error(y, expected) < 1e-5
        weights = torch.rand(y.shape, generator=torch.Generator().manual_seed(seed))
        for result in (y, expected, eager(x)):
            (weights * result.square()).sum().backward()
    parameters = zip(trained.named_parameters(), exact.parameters(), eager.parameters(), strict=True)
    for (name, parameter), reference, plain in parameters:
        limit = max(1e-5, 2 * relative_error(plain.grad, reference.grad))
        assert relative_error(parameter.grad, reference.grad) < limit, name
    for (name, buffer), reference in zip(trained.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(buffer.double(), reference.double(), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_step_is_right_and_runs_on_our_kernels(norm_db, solved, memory_format):
    assert_trains_as_torch(network().to(memory_format=memory_format), norm_db)
    ran = [parse(text) for text in solved]
    counts = Counter(problem.operator for problem in ran)
    assert counts == {
        "batch_norm_statistics": 10,
        "elementwise": 10,
        "batch_norm_gradient_sums": 10,
        "batch_norm_gradient": 10,
        "max_pool2d_places": 2,
        "max_pool2d_places_gradient": 2,
    }
    chains = Counter(str(problem.epilogue) for problem in ran if problem.operator == "elementwise")
    assert chains == {"scale,bias,relu": 2, "scale,bias,add,relu": 6, "scale,bias": 2}
    sums = Counter((one.relu, one.gradients) for one in ran if one.operator == "batch_norm_gradient_sums")
    assert sums == {(1, 1): 2, (2, 2): 4, (2, 1): 2, (0, 1): 2}


@pytest.fixture(scope="module")
def with_norms_db(normed_db, tmp_path_factory):
    """Return that of `Normed` in which convolutions with a part of a batch norm are the fastest."""
    path = str(shutil.copy(normed_db, tmp_path_factory.mktemp("norms")))
    fused = "operator IN ('conv2d_statistics', 'conv2d_gradient_sums') OR text LIKE '%add_scaled%'"
    slow_down(path, 1000, f"problem_id NOT IN (SELECT id FROM problem WHERE {fused})")
    return path


@pytest.mark.daily(1)
@pytest.mark.parametrize("inductor", ["0", "1"])
def test_convolutions_compute_parts_of_the_norms_beside_them(with_norms_db, solved, monkeypatch, inductor):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", inductor)
    assert_trains_as_torch(network(), with_norms_db)
    counts = Counter(parse(text).operator for text in solved)
    assert counts["conv2d_statistics"] == counts["batch_norm_gradient"] == 10
    assert "batch_norm_statistics" not in counts and counts["elementwise"] == 8
    assert counts["conv2d_gradient_sums"] == 4 and counts["batch_norm_gradient_sums"] == 6


def conv(c=16):
    return nn.Conv2d(c, 16, 3, padding=1, bias=False)


def shared():
    """Return convolutions that others read beside a batch norm, and that two batch norms read."""

    def forward(m, x):
        read, twice = m.read(x), m.twice(x)
        found = [norm(one).relu() for norm, one in zip(m.norms, (read, twice, twice), strict=True)]
        return torch.cat([*found, read.sigmoid()], 1)

    norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(3)])
    return Function(forward, read=conv(3), twice=conv(3), norms=norms)


def test_convolutions_that_others_read_stay_alone(with_norms_db, solved):
    trained = network(shared)
    found = step_problems(copy.deepcopy(trained), [images()])
    assert len(found.with_norms) == 3
    tune_step("a step", found.to_tune(), torch.device("cpu"), with_norms_db, TuneLimits(trials=1, budget="10m"))
    assert_trains_as_torch(trained, with_norms_db)
    counts = Counter(parse(text).operator for text in solved)
    assert counts["batch_norm_statistics"] == 6 and "conv2d_statistics" not in counts


def test_a_convolution_with_a_bias_stays_alone():
    trained = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).train()
    found = step_problems(trained, [images()])
    assert not found.with_norms and found.norms


def test_the_problems_that_are_tuned_are_those_that_run(norm_db, solved):
    named = step_problems(network(), [images()]).norms
    assert named["stem_norm normalization"] == parse("elementwise n=2 h=10 w=9 c=16 dtype=f32 epilogue=scale,bias,relu")
    assert named["shared_norm statistics (2)"] == named["shared_norm statistics"]
    assert named["pool gradient"].operator == "max_pool2d_places_gradient"
    compiled(network(), norm_db)(images()).square().sum().backward()
    assert set(map(parse, solved)) <= set(named.values())


def changed_skip():
    """Return a network with a tensor that is added to a batch norm's result and changed before the ReLU."""

    def forward(m, x):
        x = m.pool(m.stem(x))
        skip = x * 1.5
        y = m.norm(m.shared(x)) + skip
        skip.mul_(0.25)
        return torch.relu(y).mean((2, 3)) + skip.mean((2, 3))

    return Function(forward, stem=conv(3), pool=nn.MaxPool2d(3, 2, 1), shared=conv(), norm=nn.BatchNorm2d(16))


def test_an_operand_that_is_changed_before_the_relu_is_read_before(norm_db):
    assert_trains_as_torch(network(changed_skip), norm_db)


def others():
    """Return batch norms before pointwise operators other than a ReLU, and one that is added to a tensor in place."""

    def forward(m, x):
        first = m.stem(x)
        kept = nn.functional.silu(m.gated(first)) + m.stem(x + m.stem(x).mean())
        kept += m.in_place(first)
        return torch.relu(kept) + kept.sigmoid() + (m.added(first) + first).tanh()

    return Function(forward, stem=conv(3), **{name: nn.BatchNorm2d(16) for name in ("gated", "added", "in_place")})


class Frozen(nn.Module):
    """A batch norm that is not in training, and one without running statistics."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16, track_running_stats=False)])

    def train(self, mode=True):
        super().train(mode)
        self.norms[0].eval()
        return self

    def forward(self, x):
        x = self.stem(x)
        return torch.cat([norm(x).relu() for norm in self.norms], 1)


@pytest.mark.parametrize(("kind", "count"), [(others, 0), (Frozen, 1)])
def test_what_is_not_alike_is_left_to_torch(norm_db, solved, kind, count):
    """The batch norms that run on kernels in each of two steps are those that are tuned."""
    trained = network(kind)
    found = step_problems(copy.deepcopy(trained), [images()]).norms
    assert sum(name.endswith(" statistics") for name in found) == count
    if found:
        tune_step(kind.__name__, found, torch.device("cpu"), norm_db, TuneLimits(trials=1, budget="10m"))
    assert_trains_as_torch(trained, norm_db)
    assert sum(text.startswith("batch_norm_statistics ") for text in solved) == 2 * count


def test_batches_are_counted_together(norm_db):
    """The graph that is differentiated has one addition for all counters; test_a_step_... compares their values."""
    graphs = []

    def backend(module, _):
        use(Winners(norm_db))
        rewrite_norms(module, norm_db, torch.device("cpu"))
        graphs.append(module)
        return module.forward

    torch.compile(network(), backend=backend)(images())
    counted = [node for node in graphs[0].graph.nodes if "num_batches_tracked" in str(node.args)]
    [joined] = [node for node in counted if node.target is torch._foreach_add_]
    alone = [node.args[0] for node in counted if node is not joined]
    assert len(alone) == 2 and len(set(alone)) == 1, "the counter of the norm that is called twice"
    assert len(joined.args[0]) == sum(isinstance(one, nn.BatchNorm2d) for one in network().modules()) - 1


def test_one_value_in_a_channel_is_refused_as_in_torch(norm_db):
    trained = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).train()
    with pytest.raises(Exception, match="Expected more than 1 value per channel when training"):
        compiled(trained, norm_db)(torch.randn(1, 3, 3, 3))


def test_autocast(norm_db, solved):
    """The products are in bfloat16, and so are the norms' inputs, for which the database has no kernels."""
    trained, exact = network(), network().double()
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        y = compiled(trained, norm_db)(images())
    assert relative_error(y, exact(images().double())) < 0.05 and not solved


def test_threads_share_a_kernel_with_a_workspace(norm_db):
    use(Winners(norm_db))
    problem = step_problems(network(), [images()]).norms["stem_norm statistics"]
    wanted, wrong = {}, []

    def statistics(seed):
        x = torch.randn(2, 16, 10, 9, generator=torch.Generator().manual_seed(seed))
        (found,) = run(str(problem), [x, torch.ones(16), torch.zeros(16)], str(norm_db), scalars=(1e-5,))
        return found

    def work(seed):
        wrong.extend(i for i in range(400) if not torch.equal(statistics(seed), wanted[seed]))

    for seed in range(4):
        wanted[seed] = statistics(seed)
    in_threads(work, ((seed,) for seed in range(4)))
    assert not wrong
