"""torch.compile(backend="autotune") with gradients, against the same network in float64 on torch's operators."""

import copy
import pickle
import shutil
import sqlite3
import warnings

import pytest
import torch
from data_parallel import parallel_network, train
from databases import slow_down
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_networks import Small, images, relative_error

from fused_resnet import FusedResNet

pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:a training step runs on torch's operators", "ignore:.*is not tuned"),
]
NUM_CONVOLUTIONS = 17  # passes of Small, without the gradient with respect to its input
NUM_PASSES = NUM_CONVOLUTIONS + 4  # those of the batch norm included


def compiled(network, database, **options):
    return torch.compile(network, backend="autotune", options={"tuning_db": str(database), **options})


def network(seed=0):
    torch.manual_seed(seed)
    return Small().train()


def with_reference():
    """Return a network and its copy in float64."""
    trained = network()
    return trained, copy.deepcopy(trained).double()


def assert_gradients_are_right(trained, reference, x, *, limit=1e-5):
    """Compare the gradients of a network with those of its float64 copy for the same input."""
    reference(x.double()).square().sum().backward()
    for (name, parameter), exact in zip(trained.named_parameters(), reference.parameters(), strict=True):
        if name == "stem.bias":  # batch norm removes it: its gradient is 0
            assert parameter.grad.abs().max() < 1e-4
        else:
            assert relative_error(parameter.grad, exact.grad) < limit, name


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_all_gradients_are_right_and_come_from_our_kernels(step_db, solved, memory_format):
    trained = network().to(memory_format=memory_format)
    reference = copy.deepcopy(trained).double()
    x = images().contiguous(memory_format=memory_format)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*run on the kernels of")
        loss = compiled(trained, step_db)(x).square().sum()
    loss.backward()
    assert len(solved) == NUM_PASSES
    assert relative_error(loss, reference(x.double()).square().sum()) < 1e-5
    reference = copy.deepcopy(network()).double()
    assert_gradients_are_right(trained, reference, x)
    for (name, buffer), exact in zip(trained.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(buffer.double(), exact.double(), rtol=1e-5, atol=1e-6, msg=name)


def test_a_gradient_by_the_input_runs_as_a_convolution_where_that_is_faster(step_db, solved, tmp_path):
    path = str(shutil.copy(step_db, tmp_path / "other.db"))
    gradients = "problem_id IN (SELECT id FROM problem WHERE text LIKE 'conv2d_dgrad %')"
    slow_down(path, 500, f"{gradients} AND kernel_id IN (SELECT id FROM kernel WHERE family != 'aten')")
    (trained, reference), x = with_reference(), images()
    compiled(trained, path)(x).square().sum().backward()
    assert_gradients_are_right(trained, reference, x)
    by_input = [name for name in solved if name.startswith("conv2d_dgrad ")]
    assert len(solved) == NUM_PASSES and len(by_input) == 2 and all("stride=2,2" in name for name in by_input)


def test_the_gradient_by_the_input(step_db, solved):
    trained, reference = with_reference()
    x, exact = images().requires_grad_(), images().double().requires_grad_()
    compiled(trained, step_db)(x).square().sum().backward()
    reference(exact).square().sum().backward()
    assert relative_error(x.grad, exact.grad) < 1e-5 and len(solved) == NUM_PASSES + 1


def test_gradients_accumulate_and_repeat_bit_for_bit(step_db):
    trained, x = network(), images()
    trained.norm.eval()  # no running statistics: both steps are the same
    step = compiled(trained, step_db)
    step(x).square().sum().backward()
    once = [parameter.grad.clone() for parameter in trained.parameters()]
    step(x).square().sum().backward()
    for parameter, gradient in zip(trained.parameters(), once, strict=True):
        assert torch.equal(parameter.grad, 2 * gradient)


def test_an_optimizer_trains_as_with_torch(step_db, solved):
    def losses(model, step, optimizer):
        found = []
        for seed in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(step(images(seed=seed)), torch.tensor([1, 3]))
            loss.backward()
            optimizer.step()
            found.append(float(loss))
        model.eval()
        with torch.no_grad():
            return [*found, float(model(images(seed=9)).sum())]

    ours, theirs = network(), network()
    found = losses(ours, compiled(ours, step_db), torch.optim.AdamW(ours.parameters(), 1e-3))
    expected = losses(theirs, theirs, torch.optim.AdamW(theirs.parameters(), 1e-3))
    assert found == pytest.approx(expected, rel=1e-3) and len(solved) == 5 * NUM_PASSES


@pytest.mark.daily(2, "whole runs")
@pytest.mark.process
def test_processes_share_the_mean_of_their_gradients(step_db, tmp_path):
    torch.multiprocessing.spawn(train, (step_db, str(tmp_path)), nprocs=2)
    reference = copy.deepcopy(parallel_network()).double()
    loss = sum(reference(images(seed=rank).double()).square().sum() for rank in range(2)) / 2
    loss.backward()
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for rank in range(2):
        gradients, hooked, solved = torch.load(tmp_path / f"{rank}.pt")
        assert sorted(hooked) == sorted(expected), "a hook for each gradient"
        assert len(solved) == NUM_CONVOLUTIONS
        for name, gradient in gradients.items():
            assert relative_error(gradient, expected[name]) < 1e-5, name


def test_derivatives_in_float64_are_those_of_finite_differences(step_db, monkeypatch):
    """No kernel computes in float64: this checks the graphs around the kernels."""
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    trained = network().double()
    trained.norm.eval()
    parameters = dict(trained.named_parameters())
    step = compiled(trained, step_db)
    checked = [parameters[name] for name in ("stem.weight", "shared.weight", "skip.weight", "head.bias")]
    assert torch.autograd.gradcheck(
        lambda x, *_: step(x), (images(1).double().requires_grad_(), *checked), fast_mode=True
    )


def test_the_first_call_may_be_inside_a_checkpoint(step_db, solved):
    """torch.utils.checkpoint compares the tensors that both runs of the forward pass save."""
    (trained, reference), x = with_reference(), images()
    checkpoint(compiled(trained, step_db), x, use_reentrant=False).square().sum().backward()
    assert solved
    assert_gradients_are_right(trained, reference, x)


def test_a_parameter_that_is_frozen_later(step_db):
    trained = network()
    step = compiled(trained, step_db)
    step(images()).sum().backward()
    trained.zero_grad()
    trained.down.requires_grad_(False)
    reference = copy.deepcopy(trained).double()
    step(images()).square().sum().backward()
    assert trained.down.weight.grad is None
    reference(images().double()).square().sum().backward()
    assert relative_error(trained.shared.weight.grad, reference.shared.weight.grad) < 1e-5


def test_a_backward_hook_sees_and_changes_the_gradient(step_db):
    trained, reference = with_reference()
    seen = []
    trained.down.weight.register_hook(lambda gradient: seen.append(gradient) or 3 * gradient)
    compiled(trained, step_db)(images()).square().sum().backward()
    reference(images().double()).square().sum().backward()
    assert relative_error(trained.down.weight.grad, 3 * reference.down.weight.grad) < 1e-5 and len(seen) == 1


def test_a_batch_size_that_was_not_tuned_runs_on_torch_and_says_so(step_db, solved):
    (trained, reference), x = with_reference(), images(3)
    with pytest.warns(UserWarning, match=rf"of the {NUM_CONVOLUTIONS} convolutions of a training step.*, 0 run on"):
        compiled(trained, step_db)(x).square().sum().backward()
    assert_gradients_are_right(trained, reference, x)
    assert not solved


def test_autocast_keeps_float32_weights_and_gradients(step_db):
    trained = network()
    reference = copy.deepcopy(trained)
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(trained, step_db)(images()).square().sum().backward()
        reference(images()).square().sum().backward()
    for (name, parameter), other in zip(trained.named_parameters(), reference.parameters(), strict=True):
        assert parameter.grad.dtype == torch.float32
        if name != "stem.bias":
            assert relative_error(parameter.grad, other.grad) < 5e-2, name


def test_a_second_derivative_is_refused_by_torch(step_db):
    trained, x = network(), images().requires_grad_()
    y = compiled(trained, step_db)(x).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


@pytest.mark.filterwarnings("ignore:Inductor cannot compile a graph")
def test_int8_is_for_inference(step_db, no_inductor):
    with pytest.warns(UserWarning, match="precision='int8' is for inference, and gradients are on"):
        compiled(network(), step_db, precision="int8", calibration={"x": 1.0})(images()).sum().backward()
    assert len(no_inductor) == 1


class Flat(Small):
    """Views results of convolutions, which are channels last in memory."""

    def forward(self, x):
        y = self.down(torch.relu(self.stem(x)))
        return y.flatten(1).sum(1, keepdim=True) + y.permute(0, 2, 3, 1).reshape(len(x), -1)


@pytest.mark.parametrize("inductor", ["0", "1"])
def test_views_of_results_are_right(step_db, solved, monkeypatch, inductor):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", inductor)
    torch.manual_seed(0)
    trained = Flat()
    reference = copy.deepcopy(trained).double()
    compiled(trained, step_db)(images()).square().sum().backward()
    reference(images().double()).square().sum().backward()
    for layer in ("stem", "down"):
        found, exact = (getattr(one, layer).weight.grad for one in (trained, reference))
        assert relative_error(found, exact) < 1e-5
    assert len(solved) == 5


def test_inductor_compiles_the_rest(step_db, solved, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "1")
    trained, reference = with_reference()
    step = compiled(trained, step_db)
    for _ in range(2):
        trained.zero_grad()
        trained.norm.reset_running_stats()
        step(images()).square().sum().backward()
    assert len(solved) == 2 * NUM_PASSES
    assert_gradients_are_right(trained, reference, images())


def test_what_is_missing_is_tuned_at_the_first_call(tmp_path, solved):
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 8 * 7, 2))
    reference = copy.deepcopy(trained).double()
    step = compiled(trained, tmp_path / "new.db", tune="missing", budget="60s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's operator may be faster for one of them
        step(images()).square().sum().backward()
    assert (tmp_path / "new.db").exists()
    reference(images().double()).square().sum().backward()
    assert relative_error(trained[0].weight.grad, reference[0].weight.grad) < 1e-5


def test_a_fused_module_trains_on_kernels_and_then_sees_the_new_weights(step_db, solved):
    torch.manual_seed(0)
    fused = FusedResNet.from_model(Small().eval(), step_db)
    plain = copy.deepcopy(fused._plain).train()
    losses = []
    for model in (fused.train(), plain):
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for seed in range(2):
            optimizer.zero_grad()
            loss = model(images(seed=seed)).square().sum()
            loss.backward()
            optimizer.step()
        losses.append(float(loss))
    assert len(solved) == 2 * NUM_PASSES and losses[0] == pytest.approx(losses[1], rel=1e-4)
    copied = pickle.loads(pickle.dumps(fused))
    for model in (fused.eval(), copied.eval()):
        with torch.no_grad():
            torch.testing.assert_close(model(images()), plain.eval()(images()), rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        fused.train()(images())  # statistics alone: the plain network
    assert len(solved) == 2 * NUM_PASSES


def test_a_fused_module_without_tuned_gradients_is_the_plain_network(empty_db, solved):
    fused = FusedResNet.from_model(Small().eval(), empty_db).train()
    fused(images()).sum().backward()
    assert fused.down.weight.grad is not None and not solved


def test_a_pass_whose_baseline_was_not_timed_stays_with_torch(step_db, solved, tmp_path):
    path = str(shutil.copy(step_db, tmp_path / "other.db"))
    with sqlite3.connect(path) as database:
        database.execute(
            "DELETE FROM measurement WHERE kernel_id IN (SELECT id FROM kernel WHERE family = 'aten') "
            "AND problem_id IN (SELECT id FROM problem WHERE text LIKE 'conv2d_wgrad %')"
        )
    (trained, reference), x = with_reference(), images()
    compiled(trained, path)(x).square().sum().backward()
    assert_gradients_are_right(trained, reference, x)
    assert solved and not any(name.startswith("conv2d_wgrad ") for name in solved)
