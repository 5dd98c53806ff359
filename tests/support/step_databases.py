"""Databases of training steps, tuned on the CPU."""

import torch

from fused_resnet.tuning import TuneLimits, create, tune_step


def tuned_step(path, problems, name="a step"):
    """Make a database with one config for each problem, and return its path."""
    create(str(path))
    assert tune_step(name, problems, torch.device("cpu"), str(path), TuneLimits(trials=1, budget="10m"))
    return str(path)
