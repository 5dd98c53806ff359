"""Networks from ONNX files."""

import sys

import pytest
import torch
from torch import nn

from autotune.core import AutotuneError
from autotune.ir.operators import TorchCall
from autotune_cli import models

VERSION = torch.__version__.partition("+")[0]


class Residual(nn.Module):
    """A small network with a residual block, pools and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(x + self.block(x))
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


@pytest.fixture(scope="module")
def onnx():
    pytest.importorskip("onnx2torch")
    pytest.importorskip("onnxscript")  # torch's exporter needs it
    return pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def exported(onnx, tmp_path_factory):
    """Return a network with random statistics, and the ONNX file that torch exports of it."""
    torch.manual_seed(0)
    model = Residual().eval()
    for norm in (part for part in model.modules() if isinstance(part, nn.BatchNorm2d)):
        for tensor in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
            tensor.uniform_(0.5, 1.5)
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    torch.onnx.export(model, (torch.rand(1, 3, 16, 12),), path, verbose=False)
    return model, path


def test_an_exported_network_computes_what_the_original_does(exported, empty_db):
    original, path = exported
    model = models.load(str(path), None, None)
    assert (model.name, model.shape, model.module.training) == ("small_onnx", (3, 16, 12), False)
    for batch in (1, 4):  # it was exported with one image
        x = torch.rand(batch, 3, 16, 12)
        with torch.no_grad():
            expected = original(x)
            assert torch.allclose(model.call(x), expected, atol=1e-5)
            assert torch.allclose(model.fused(str(empty_db))(x), expected, atol=1e-5)


def test_its_layers_are_those_of_the_original(exported):
    original, path = exported
    ours = models.load(str(path), None, None).network(1, "f32")
    theirs = models.Model("small", (3, 16, 12), original).network(1, "f32")
    assert not any(isinstance(layer.problem, TorchCall) for layer in ours.layers)
    assert [str(layer.problem) for layer in ours.layers] == [str(layer.problem) for layer in theirs.layers]


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "some.onnx"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(AutotuneError, match=rf"onnx2torch: pip install 'autotune-cutlass\[onnx\]' torch=={VERSION}$"):
        models.load(str(path), None, None)


def test_a_missing_file_is_named():
    with pytest.raises(AutotuneError, match=r"there is no file 'nowhere\.onnx'"):
        models.load("nowhere.onnx", None, None)


def test_a_file_that_is_no_model_is_refused(onnx, tmp_path):
    path = tmp_path / "text.onnx"
    path.write_text("no model")
    with pytest.raises(AutotuneError, match="is not an ONNX model"):
        models.load(str(path), None, None)


def graph_file(onnx, path, operator, inputs, shape):
    """Write a model of one node."""
    tensors = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in (*inputs, "y")]
    node = onnx.helper.make_node(operator, list(inputs), ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", tensors[:-1], tensors[-1:])), path)
    return str(path)


def test_an_operator_that_onnx2torch_does_not_know_is_named(onnx, tmp_path):
    with pytest.raises(AutotuneError, match=r"onnx2torch cannot convert .*Det"):
        models.load(graph_file(onnx, tmp_path / "det.onnx", "Det", ["x"], [1, 3, 8, 8]), None, None)


def test_several_inputs_are_refused(onnx, tmp_path):
    with pytest.raises(AutotuneError, match=r"has 2 inputs \(a, b\)"):
        models.load(graph_file(onnx, tmp_path / "add.onnx", "Add", ["a", "b"], [1, 3, 8, 8]), None, None)


def test_an_open_size_needs_the_option(onnx, tmp_path):
    path = graph_file(onnx, tmp_path / "open.onnx", "Relu", ["x"], ["n", 3, "h", "w"])
    with pytest.raises(AutotuneError, match="give --input C,H,W"):
        models.load(path, None, None)
    assert models.load(path, (3, 8, 6), None).shape == (3, 8, 6)
