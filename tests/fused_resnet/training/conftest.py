"""Databases of training steps, and the problems that kernels of ours solve."""

import pytest
import torch
from databases import slow_down
from step_databases import tuned_step
from training_networks import Normed, Small, images

from fused_resnet.training import step_problems
from fused_resnet.training.kernels import bound_problem


@pytest.fixture(scope="session")
def step_db(made_once):
    """Return a database of `Small` at batch 2 with one config for each problem; torch's times are made long.

    So are those of gradients with sums, which are about as fast as both kernels alone, so that no step uses them.
    """

    def make(path):
        tuned_step(path, step_problems(Small(), [images().requires_grad_()]).to_tune())
        slow_down(path, 1000, "kernel_id IN (SELECT id FROM kernel WHERE family = 'aten')")
        slow_down(path, 1000, "problem_id IN (SELECT id FROM problem WHERE text LIKE 'conv2d_gradient_sums %')")

    return str(made_once("step.db", make))


@pytest.fixture(scope="session")
def normed_db(made_once):
    """Return a database of `Normed` at batch 2 with one config for each problem."""
    return made_once("normed.db", lambda path: tuned_step(path, step_problems(Normed(), [images()]).to_tune()))


@pytest.fixture(autouse=True)
def fresh():
    """Begin and end without compiled code."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def solved(monkeypatch):
    """Return the texts of the problems that kernels of ours have solved."""
    found, run = [], bound_problem.BoundProblem.run

    def noted(bound, operands):
        found.append(bound._step.name)
        return run(bound, operands)

    monkeypatch.setattr(bound_problem.BoundProblem, "run", noted)
    return found
