"""The problems of a training step, without running it."""

import pytest
import torch
from torch import nn
from training_networks import Small, images

from autotune.core import CaptureError
from fused_resnet.training import step_problems


def test_all_passes_are_found_by_the_names_of_their_layers():
    found = step_problems(Small(), [images()])
    assert found.others == 0
    names = {"stem", "shared", "shared (2)", "down", "grouped", "skip"}
    by_weight = {f"{name} by weight" for name in ("stem", "shared", "down", "grouped", "skip")} | {
        "shared by weight (2)"
    }
    by_input = {f"{name} by input" for name in ("shared", "down", "grouped", "skip")} | {"shared by input (2)"}
    assert set(found.named) == names | by_weight | by_input
    assert found.named["grouped by weight"].groups == 3 and found.named["down by input"].stride == (2, 2)
    assert {problem.n for problem in found.named.values()} == {2}


def test_gradients_by_the_input_of_stride_1_are_tuned_as_convolutions_too():
    found = step_problems(Small(), [images()])
    more = {
        name: problem
        for name, problem in found.to_tune().items()
        if name not in {**found.named, **found.norms, **found.with_norms, **found.with_relus}
    }
    assert set(more) == {
        f"{name} (a convolution)" for name in ("shared by input", "shared by input (2)", "grouped by input")
    }
    grouped, forward = more["grouped by input (a convolution)"], found.named["grouped"]
    assert grouped == forward, "as many channels in as out, and a window of 3 with padding of 1"


def test_the_gradient_by_the_input_counts_if_it_is_wanted():
    assert "stem by input" in step_problems(Small(), [images().requires_grad_()]).named


def test_frozen_parameters_have_no_gradients():
    network = Small()
    network.stem.requires_grad_(False)
    network.norm.requires_grad_(False)
    found = step_problems(network, [images()]).named
    assert "stem by weight" not in found and "shared by weight" in found


def test_autocast_changes_the_dtype():
    found = step_problems(Small(), [images()], autocast=torch.bfloat16)
    assert {problem.dtype for problem in found.named.values()} == {"bf16"}


def test_nothing_is_changed():
    network, x = Small().train(), images()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    step_problems(network, [x])
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters()) and x.grad is None
    network(x).sum().backward()  # the hooks are gone


def test_other_convolutions_are_counted():
    network = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.Conv2d(4, 4, 1))
    found = step_problems(network, [images()])
    assert found.others == 2 and list(found.named) == ["1", "1 by input", "1 by weight"]


class Reading(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * float(x.sum())


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Small().requires_grad_(False), "no result has a gradient"),
        (Reading(3, 3, 1), "the training step cannot be traced"),
    ],
)
def test_what_cannot_be_traced(network, words):
    with pytest.raises(CaptureError, match=words):
        step_problems(network, [images()])
