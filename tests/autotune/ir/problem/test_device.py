"""The computation of every operator stays on the device of its operands, so that a CUDA graph can hold it."""

import pytest
import torch
from kernels import random_inputs
from problems import TEXTS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.ir import compute, parse


class Devices(TorchDispatchMode):
    """Notes the devices of all results."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen |= {one.device.type for one in tree_leaves(result) if isinstance(one, torch.Tensor)}
        return result


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.split()[0])
def test_nothing_is_computed_on_another_device(text):
    problem = parse(text)
    tensors, scalars = random_inputs(problem)
    elsewhere = {name: one.to("meta") for name, one in tensors.items()}  # any device but the default one
    with Devices() as devices:
        compute(problem, elsewhere, scalars)
    assert devices.seen == {"meta"}
