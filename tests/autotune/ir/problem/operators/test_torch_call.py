"""Calls of torch's operators: what stays in memory while they run."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fused_resnet.capture import capture


class MostAlive(TorchDispatchMode):
    """Counts the results that are alive whenever an operator is called; `most` is the largest number."""

    def __init__(self):
        super().__init__()
        self.results, self.most = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.most = max(self.most, sum(one() is not None for one in self.results))
        result = function(*args, **(kwargs or {}))
        self.results.append(weakref.ref(result))
        return result


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).sigmoid()
        return x


def test_a_result_is_freed_after_the_last_call_that_reads_it():
    model = Residual().eval()
    problem = capture(model, (2, 4, 6, 6), "f32").whole.layers[0].problem
    assert len(problem.calls) == 24
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 6, 6, generator=generator)
    tensors = {operand.name: torch.randn(operand.shape, generator=generator) for operand in problem.inputs}
    weights = [name for name, tensor in tensors.items() if tensor.shape != x.shape]
    tensors |= dict(zip(weights, model.parameters(), strict=True))
    tensors |= {name: x for name, tensor in tensors.items() if tensor.shape == x.shape}
    with torch.no_grad(), MostAlive() as alive:
        y = problem.reference(tensors, ())
    torch.testing.assert_close(y.permute(0, 3, 1, 2), model(x))
    assert alive.most <= 3  # the identity, the convolution and its sigmoid
