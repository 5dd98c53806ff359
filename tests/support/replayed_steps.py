"""Training steps that are replayed, and the situations in which a replay must not change what others hold."""

import copy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_networks import images, relative_error

from fused_resnet.training.replay.replay import StepReplay


class Plain(nn.Module):
    """A network without state beside its parameters; it returns its result and a tensor within.

    The saved result of the head has the shape of the gradient of `shift`, so Inductor writes that to its memory.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.head = nn.Linear(8, 5)
        self.shift = nn.Parameter(torch.randn(2, 5))
        self.other_shift = nn.Parameter(torch.randn(2, 5))

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x)) + x
        features = x.mean((2, 3))
        return torch.sin(self.head(features) + self.shift + self.other_shift), features


class Viewed(Plain):
    """The same, but it returns a view of the tensor within, which AOTAutograd makes from its base."""

    def forward(self, x):
        y, features = super().forward(x)
        return y, features[:, :4]


class Normed(Plain):
    """The same with a batch norm, whose running statistics each forward pass changes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return super().forward(self.norm(x))


NETWORKS = [Plain, Viewed, Normed]


class Steps:
    """Steps of a network behind Inductor with replays, beside the same steps of eager PyTorch in float64.

    Args:
        device: The device.
        record: How passes are recorded.
        kind: One of NETWORKS.
        direct: Whether the backward pass stores the gradients of parameters itself.

    Attributes:
        events: How often a pass was recorded or replayed, and how often AOTAutograd ran a step.
    """

    def __init__(self, device, record, kind=Plain, *, direct=False):
        from torch._inductor.compile_fx import compile_fx

        torch._dynamo.reset()
        torch.manual_seed(0)
        self.network = kind().to(device)
        self.exact = copy.deepcopy(self.network).double()
        self.device, self.events, self._batches = device, Counter(), 0

        def counted(run, arguments):
            self.events["recordings"] += 1
            repeat, results = record(run, arguments)

            def counted_repeat():
                self.events["replays"] += 1
                repeat()

            return counted_repeat, results

        replay = StepReplay(counted)

        def backend(graph_module, example_inputs):
            with torch._functorch.config.patch(enable_autograd_cache=False):  # a hit would not call `compile`
                compiled = compile_fx(graph_module, list(example_inputs), inner_compile=replay.compile)

            def counted_compiled(*arguments):
                self.events["by AOTAutograd"] += 1
                return compiled(*arguments)

            return replay.step(counted_compiled, example_inputs, direct=direct)

        self.compiled = torch.compile(self.network, backend=backend, dynamic=False)

    def batch(self):
        """Return another input in each call."""
        self._batches += 1
        return images(seed=self._batches).to(self.device)

    def both(self):
        """Return both networks, each with what calls it."""
        return (self.network, self.compiled), (self.exact, self.exact)

    def zero_grad(self):
        self.network.zero_grad()
        self.exact.zero_grad()

    def run(self, count):
        for _ in range(count):
            self.step()

    def step(self, scale=1.0):
        """Run a step of both networks, update the parameters in place, and return the gradients."""
        x = self.batch()
        for model, call in self.both():
            model.zero_grad()
            (self.loss_of(call, x) * scale).backward()
        self.check()
        gradients = [parameter.grad for parameter in self.network.parameters()]
        with torch.no_grad():
            for parameter, exact in zip(self.network.parameters(), self.exact.parameters(), strict=True):
                parameter.sub_(0.01 * parameter.grad)
                exact.copy_(parameter)
        return gradients

    def loss_of(self, call, x):
        y, features = call(x if call is self.compiled else x.double())
        return y.square().sum() + features.sum()

    def check(self):
        """Compare all gradients, and the running statistics."""
        for (name, parameter), exact in zip(self.network.named_parameters(), self.exact.parameters(), strict=True):
            assert relative_error(parameter.grad, exact.grad) < 1e-5, name
        for (name, buffer), exact in zip(self.network.named_buffers(), self.exact.buffers(), strict=True):
            torch.testing.assert_close(buffer.double(), exact.double(), rtol=1e-5, atol=1e-6, msg=name)


def steps_are_replayed(steps):
    for number in range(5):
        steps.step(scale=1.0 + number)
    # All passes but those of the first step are replayed; AOTAutograd runs it, and the step that is recorded.
    by_aot = 5 if isinstance(steps.network, Viewed) else 2
    assert steps.events == {"recordings": 2, "replays": 8, "by AOTAutograd": by_aot}


def gradients_that_are_held_stay(steps):
    held = []
    for _ in range(5):
        gradients = steps.step()
        held += [(gradient, gradient.clone()) for gradient in gradients]
        steps.network.zero_grad()
    assert all(torch.equal(gradient, before) for gradient, before in held)


def results_that_are_held_stay(steps):
    held = []
    for _ in range(5):
        x = steps.batch()
        results = steps.compiled(x)
        held += [(one, one.clone()) for one in results]
        (results[0].square().sum() + results[1].sum()).backward()
        steps.network.zero_grad()
    assert all(torch.equal(one, before) for one, before in held)


def gradients_accumulate(steps):
    for _ in range(4):
        steps.zero_grad()
        for x in (steps.batch(), steps.batch(), steps.batch()):
            for call in (steps.compiled, steps.exact):
                steps.loss_of(call, x).backward()
        steps.check()


def passes_of_several_steps_interleave(steps, forward_in=nullcontext):
    for _ in range(4):
        steps.zero_grad()
        x, other = steps.batch(), steps.batch()
        for call in (steps.compiled, steps.exact):
            with forward_in():
                losses = steps.loss_of(call, x), steps.loss_of(call, other)
            for loss in losses:
                loss.backward()
        steps.check()


def a_forward_pass_without_a_backward_pass_does_not_matter(steps):
    for _ in range(3):
        steps.step()
        x = steps.batch()
        with_gradient = steps.compiled(x), steps.exact(x.double())
        del with_gradient
        steps.step()
    assert steps.events["replays"] > 6


def parameters_move(steps):
    for _ in range(12):
        steps.step()
        for parameter in steps.network.parameters():
            parameter.data = parameter.data.clone()
    assert 2 < steps.events["recordings"] <= 8


def losses_are_kept(steps):
    losses = []
    for _ in range(4):
        x = steps.batch()
        for model, call in steps.both():
            model.zero_grad()
            losses.append(steps.loss_of(call, x))
            losses[-1].backward()
        steps.check()
    assert steps.events["replays"] >= 4
    assert len({float(loss) for loss in losses[::2]}) == 4


def one_result_alone_is_used(steps):
    for _ in range(4):
        x = steps.batch()
        for model, call in steps.both():
            model.zero_grad()
            y, _ = call(x if call is steps.compiled else x.double())
            y.square().sum().backward()
        steps.check()


def a_parameter_that_changes_before_the_backward_pass_does_not_pass_unnoticed(steps):
    steps.run(3)
    refused = 0
    for name, parameter in steps.network.named_parameters():
        x = steps.batch()
        loss, exact = steps.loss_of(steps.compiled, x), steps.loss_of(steps.exact, x)
        steps.zero_grad()
        exact.backward()
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(2.0)
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error), name
            refused += 1
        else:  # a copy of it was saved, or nothing
            steps.check()
        with torch.no_grad():
            parameter.copy_(before)
    assert refused


def a_backward_pass_runs_once(steps):
    steps.run(3)
    loss = steps.loss_of(steps.compiled, steps.batch())
    with pytest.raises(RuntimeError, match="donated"):
        loss.backward(retain_graph=True)
    steps.network.zero_grad()
    loss = steps.loss_of(steps.compiled, steps.batch())
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def gradients_of_gradients_are_refused(steps):
    steps.run(3)
    weight = steps.network.second.weight
    with pytest.raises(RuntimeError):
        (first,) = torch.autograd.grad(steps.loss_of(steps.compiled, steps.batch()), weight, create_graph=True)
        first.sum().backward()


def threads_take_turns(steps):
    steps.run(3)
    inputs = [steps.batch() for _ in range(12)]
    weight = steps.network.second.weight

    def gradient(x):
        (found,) = torch.autograd.grad(steps.loss_of(steps.compiled, x), weight)
        return found.clone()

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(gradient, inputs))
    for x, found in zip(inputs, together, strict=True):
        (exact,) = torch.autograd.grad(steps.loss_of(steps.exact, x), steps.exact.second.weight)
        assert relative_error(found, exact) < 1e-5


def statistics_have_another_version_after_each_step(steps):
    for _ in range(5):
        before = {name: buffer._version for name, buffer in steps.network.named_buffers()}
        steps.step()
        assert all(buffer._version > before[name] for name, buffer in steps.network.named_buffers())


def saved_tensors_are_moved(steps):
    passes_of_several_steps_interleave(steps, torch.autograd.graph.save_on_cpu)


def forward_passes_are_checkpointed(steps):
    steps.run(3)
    for _ in range(3):
        steps.zero_grad()
        x, other = steps.batch().requires_grad_(), steps.batch().requires_grad_()
        losses = [checkpoint(steps.loss_of, steps.compiled, one, use_reentrant=False) for one in (x, other)]
        for loss in losses:
            loss.backward()
        for one in (x, other):
            steps.loss_of(steps.exact, one.detach()).backward()
        if not isinstance(steps.network, Normed):  # whose statistics the recomputation changes again
            steps.check()


def parameters_have_hooks(steps):
    steps.step()
    parameter, seen = next(steps.network.parameters()), []
    for register in (parameter.register_hook, parameter.register_post_accumulate_grad_hook):
        hook = register(lambda _: seen.append(1))
        for _ in range(4):
            steps.step()
        hook.remove()
    assert len(seen) == 8


def a_parameter_is_used_beside_the_step(steps):
    for _ in range(4):
        x = steps.batch()
        for model, call in steps.both():
            model.zero_grad()
            (steps.loss_of(call, x) + model.second.weight.square().sum()).backward()
        steps.check()


def gradients_by_other_tensors_store_none(steps):
    steps.run(3)
    scale = torch.ones(3, 1, 1, requires_grad=True, device=steps.device)
    for ask in (
        lambda loss: torch.autograd.grad(loss, scale),
        lambda loss: loss.backward(inputs=[scale]),
        lambda loss: torch.autograd.grad(loss, scale),
    ):
        steps.network.zero_grad()
        scale.grad = None
        ask(steps.loss_of(steps.compiled, steps.batch() * scale))
        assert all(one.grad is None for one in steps.network.parameters())


def stored_gradients_have_any_form(steps):
    steps.run(3)
    steps.zero_grad()
    steps.network.shift.grad = torch.zeros_like(steps.network.shift).to_sparse()
    steps.network.head.weight.grad = torch.zeros_like(steps.network.head.weight)
    x = steps.batch()
    for call in (steps.compiled, steps.exact):
        steps.loss_of(call, x).backward()
    steps.check()


def equal_gradients_are_two_tensors(steps):
    for _ in range(4):
        steps.step()
        one, other = steps.network.shift.grad, steps.network.other_shift.grad
        before = other.clone()
        one.mul_(3.0)
        assert torch.equal(other, before)


def the_input_has_a_gradient(steps):
    for _ in range(4):
        x = steps.batch().requires_grad_()
        exact = x.detach().double().requires_grad_()
        for model, call, one in ((steps.network, steps.compiled, x), (steps.exact, steps.exact, exact)):
            model.zero_grad()
            y, features = call(one)
            (y.square().sum() + features.sum()).backward()
        assert relative_error(x.grad, exact.grad) < 1e-5
        steps.check()


SITUATIONS = [
    steps_are_replayed,
    gradients_that_are_held_stay,
    results_that_are_held_stay,
    gradients_accumulate,
    passes_of_several_steps_interleave,
    a_forward_pass_without_a_backward_pass_does_not_matter,
    parameters_move,
    losses_are_kept,
    one_result_alone_is_used,
    a_parameter_that_changes_before_the_backward_pass_does_not_pass_unnoticed,
    a_backward_pass_runs_once,
    gradients_of_gradients_are_refused,
    threads_take_turns,
    statistics_have_another_version_after_each_step,
    saved_tensors_are_moved,
    forward_passes_are_checkpointed,
    parameters_have_hooks,
    a_parameter_is_used_beside_the_step,
    gradients_by_other_tensors_store_none,
    stored_gradients_have_any_form,
    equal_gradients_are_two_tensors,
    the_input_has_a_gradient,
]
OF_AUTOGRADS_FUNCTIONS = [gradients_of_gradients_are_refused, threads_take_turns]
"""Those that call torch.autograd.grad."""
