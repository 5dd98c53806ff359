"""Databases of training steps, tuned on the CPU."""

import torch

from fused_resnet.tuning import TuneLimits, create, tune_step


def tuned_step(path, problems, name="a step", trials=1):
    """Make a database with `trials` configs for each problem, and return its path."""
    create(str(path))
    assert tune_step(name, problems, torch.device("cpu"), str(path), TuneLimits(trials=trials, budget="10m"))
    return str(path)
