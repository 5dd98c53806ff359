"""Replays of a training step as CUDA graphs."""

import pytest
import replayed_steps
import torch

from fused_resnet.training.replay.recording import record_cuda_graph

pytestmark = [pytest.mark.gpu, pytest.mark.compile]


@pytest.mark.parametrize("situation", replayed_steps.SITUATIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", replayed_steps.NETWORKS)
@pytest.mark.parametrize("direct", [False, True])
def test_a_replay_changes_nothing_that_is_held(kind, situation, direct, monkeypatch):
    if direct and situation in replayed_steps.OF_AUTOGRADS_FUNCTIONS:
        pytest.skip("a step that stores gradients itself has none for torch.autograd.grad")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    situation(replayed_steps.Steps(torch.device("cuda"), record_cuda_graph, kind, direct=direct))
