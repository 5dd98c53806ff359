"""Replays of a step on a CPU, where a recording runs the pass again and writes to the results of the first run."""

import ctypes

import pytest
import replayed_steps
import torch

pytestmark = pytest.mark.compile


def same_memory(tensor):
    """Return a tensor in the memory of another, which neither owns it nor counts as a change of it, as a CUDA graph."""
    count = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = (ctypes.c_byte * (count * tensor.element_size())).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def record_again(run, given):
    arguments = [same_memory(one) for one in given]
    before = [one.clone() for one in arguments]
    originals = {id(one): original for one, original in zip(arguments, given, strict=True)}
    results = [originals.get(id(one), one) for one in run(list(arguments))]
    passed_on = set(originals)
    del originals  # as a CUDA graph, the recording does not own the arguments
    for one, values in zip(arguments, before, strict=True):  # the backward pass writes to what the forward pass saved
        one.copy_(values)

    def repeat():
        for result, now in zip(results, run(list(arguments)), strict=True):
            if id(now) not in passed_on and isinstance(now, torch.Tensor):
                same_memory(result).copy_(now)

    return repeat, results


@pytest.mark.daily(10)
@pytest.mark.parametrize("situation", replayed_steps.SITUATIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", replayed_steps.NETWORKS)
def test_a_replay_changes_nothing_that_is_held(kind, situation):
    situation(replayed_steps.Steps(torch.device("cpu"), record_again, kind))


@pytest.mark.daily(10)
@pytest.mark.parametrize(
    "situation",
    [one for one in replayed_steps.SITUATIONS if one not in replayed_steps.OF_AUTOGRADS_FUNCTIONS],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("kind", replayed_steps.NETWORKS)
def test_so_it_does_where_it_stores_gradients_itself(kind, situation):
    situation(replayed_steps.Steps(torch.device("cpu"), record_again, kind, direct=True))


def test_a_step_that_stores_gradients_itself_asks_autograd_for_none():
    steps = replayed_steps.Steps(torch.device("cpu"), record_again, direct=True)
    steps.run(3)
    loss = steps.loss_of(steps.compiled, steps.batch())
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(loss, steps.network.shift)
    steps.step()


def test_a_step_that_stores_gradients_itself_makes_no_graph_of_them_and_heeds_requires_grad():
    steps = replayed_steps.Steps(torch.device("cpu"), record_again, direct=True)
    steps.run(3)
    steps.network.zero_grad()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        steps.loss_of(steps.compiled, steps.batch()).backward(create_graph=True)
    loss = steps.loss_of(steps.compiled, steps.batch())
    steps.network.shift.requires_grad_(False)
    loss.backward()
    assert steps.network.shift.grad is None and steps.network.other_shift.grad is not None


def test_a_pass_that_cannot_be_recorded_runs_as_it_is():
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    steps = replayed_steps.Steps(torch.device("cpu"), refuse)
    with pytest.warns(UserWarning, match="without a CUDA graph: operation not permitted"):
        for _ in range(4):
            steps.step()
    assert steps.events == {"recordings": 1, "by AOTAutograd": 4}


def test_a_step_that_saves_much_is_left_to_inductor(monkeypatch):
    monkeypatch.setattr("fused_resnet.training.replay.replay.LARGEST_SAVED", 1000)
    steps = replayed_steps.Steps(torch.device("cpu"), record_again)
    steps.run(3)
    assert steps.events == {"by AOTAutograd": 3}
