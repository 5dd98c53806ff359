"""An untuned network on a GPU: compiled by Inductor, and replayed as one CUDA graph."""

import copy

import pytest
import torch
from architectures import ARCHITECTURES, images, random_model
from comparison import relative_error

from autotune.runtime.engine import Graph
from fused_resnet import FusedResNet

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*is not tuned")]


@pytest.mark.parametrize("inductor", [True, False])
@torch.no_grad()
def test_an_untuned_network_is_right_in_each_memory_format(empty_db, inductor):
    plain, x = random_model(ARCHITECTURES["senet"](), size=16), images(2, 16)
    expected = copy.deepcopy(plain).double()(x.double())
    network = FusedResNet.from_model(plain.cuda().half(), empty_db, compile=inductor)
    for layout in (torch.contiguous_format, torch.channels_last):
        given = x.cuda().half().contiguous(memory_format=layout)
        _, context, _ = network._bound(given)
        if inductor:
            assert isinstance(context.direct, Graph)
        for scale in (1, 2):  # the second replay reads another input
            assert relative_error(network(given * scale / scale).cpu(), expected) < 5e-3
        other = copy.deepcopy(plain).cpu().double()(2 * x.double())
        assert relative_error(network(2 * given).cpu(), other) < 5e-3
