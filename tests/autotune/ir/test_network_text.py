"""Networks as text: captured networks come back equal, at their own and at other batch sizes."""

import json
from dataclasses import replace

import pytest
import seed_network
from architectures import ARCHITECTURES, Of, ResNet
from two_layer_network import NETWORK, torch_relu

from autotune.core import ProblemError
from autotune.ir import S8, Layer, network_text
from fused_resnet.capture import capture
from fused_resnet.networks.unet import UNet
from fused_resnet.quantization import capture_bytes

MODELS = {**ARCHITECTURES, "unet": lambda: UNet(3)}


class Ones(dict):
    """Scales of 1 for all activations."""

    def __missing__(self, name):
        return 1.0


def captured(name, n=2, dtype="f32"):
    return capture(MODELS[name]().eval(), (n, 3, 32, 32), dtype)


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_network_comes_back(name):
    network = captured(name)
    assert network_text.read(network_text.write(network)) == network.without_whole
    assert network.alternatives


def test_so_do_the_network_of_the_project_and_one_in_bytes():
    network = seed_network.network(2)
    assert network_text.read(network_text.write(network)) == network
    in_bytes = capture_bytes(ResNet("basic").eval(), (2, 3, 32, 32), "f32", Ones(), S8)
    assert network_text.read(network_text.write(in_bytes)) == in_bytes.without_whole
    assert any(layer.problem.dtype == "s8" for layer in in_bytes.layers)


@pytest.mark.parametrize("name", ["basic", "senet", "mobilenet_v3"])
def test_the_text_of_one_batch_size_serves_others(name):
    texts = [(one.key, network_text.write(one)) for one in (captured("vgg"), captured(name))]
    other = captured(name, 5)
    found = network_text.find(texts, other.key)
    assert found.key == other.key and found.layers == other.layers
    assert (found.inputs, found.results) == (other.inputs, other.results)
    assert network_text.find(texts, str(other.identity.precompiled)) == found
    assert network_text.find(texts, captured("densenet").key) is None


def test_a_layer_on_torchs_operators_needs_the_model():
    network = capture(Of(lambda net, x: x.sort(1).values).eval(), (2, 3, 8, 8), "f32")
    assert any(layer.problem.operator == "torch" for layer in network.layers)
    with pytest.raises(ProblemError, match="calls torch's operators"):
        network_text.read(network_text.write(network))
    single = replace(NETWORK, layers=(Layer("relu", torch_relu((2, 8)), {"x": "input", "y": "output"}),))
    with pytest.raises(ProblemError, match="layer relu calls"):
        network_text.read(network_text.write(single))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key": 3}', "null"])
def test_other_texts_are_refused(text):
    with pytest.raises(ProblemError, match="is not the text of a network"):
        network_text.read(text)
    value = json.loads(network_text.write(NETWORK))
    for name in value:
        with pytest.raises(ProblemError):
            network_text.read(json.dumps({**value, name: 5}))
