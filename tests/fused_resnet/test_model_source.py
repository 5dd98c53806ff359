"""Networks of a model in a precision of problems."""

import pytest
import torch
from architectures import ResNet, images, random_model
from comparison import relative_error

from fused_resnet import FusedResNet, InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def test_tf32_is_a_dtype_of_problems_alone(empty_db):
    model, x = random_model(ResNet("basic")), images(2)
    network = FusedResNet.from_model(model, empty_db, precision="tf32")
    assert {layer.problem.dtype for layer in network._network(x).all_layers} == {"tf32"}
    assert relative_error(network(x), model(x)) < 1e-5  # a CPU rounds no products
    ours = FusedResNet(empty_db, precision="tf32")
    assert {layer.problem.dtype for layer in ours._network(torch.zeros(1, 3, 64, 64)).layers} == {"tf32"}
    with pytest.raises(InputError, match=r"precision='tf32' is for float32.*f16.*\.float\(\)"):
        network.half()(x.half())
