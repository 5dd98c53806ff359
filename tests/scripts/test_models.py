"""Models by their names on the command line."""

import sys

import pytest
import torch
from processes import script

from autotune.core import AutotuneError, UnknownNameError
from autotune_cli import models


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from torch import nn\nmake = lambda: nn.Conv2d(2, 4, 3)\nnumber = lambda: 3\n")
    return path


def test_a_function_in_a_file(file):
    model = models.load(f"{file}:make", (2, 9, 8), None)
    assert (model.name, model.shape, model.module.training) == ("make", (2, 9, 8), False)
    network = model.network(5, "bf16")
    assert str(network.layers[-1].problem).startswith("conv2d n=5 h=9 w=8 c=2 k=4 r=3")
    assert {layer.problem.dtype for layer in network.all_layers} == {"bf16"}


def test_a_file_imports_modules_beside_it_also_late(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "channels_beside.py").write_text("OUT = 5\n")
    (tmp_path / "stride_beside.py").write_text("STRIDE = 2\n")
    (tmp_path / "net.py").write_text(
        "import channels_beside\nfrom torch import nn\n"
        "def make():\n    import stride_beside\n"
        "    return nn.Conv2d(2, channels_beside.OUT, 1, stride_beside.STRIDE)\n"
    )
    monkeypatch.chdir(tmp_path)
    module = models.load("net.py:make", (2, 8, 8), None).module
    assert module(torch.rand(1, 2, 8, 8)).shape == (1, 5, 4, 4)


def test_a_network_of_ours():
    model = models.load("se_resnet9_fixup", None, 1)
    assert model.shape == (1, 64, 64)
    assert model.network(2, "f32").layers[0].problem.c == 1
    assert model.module(torch.rand(2, 1, 64, 64)).shape == (2, 512, 2, 2)


@pytest.mark.parametrize(
    ("name", "shape", "channels", "said"),
    [
        ("resnet50", None, None, "unknown model 'resnet50': give se_resnet9_fixup"),
        ("torchvision:resnet50", None, 3, "give --input C,H,W"),
        ("nowhere.py:make", None, None, "there is no file 'nowhere.py'"),
        ("hub:resnet50", None, None, "unknown model 'hub:resnet50'"),
    ],
)
def test_what_is_no_model(name, shape, channels, said):
    with pytest.raises(AutotuneError, match=said):
        models.load(name, shape, channels)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise RuntimeError('operator torchvision::nms does not exist')", "does not fit torch .*nms does not exist"),
        ("raise ImportError('undefined symbol')", "does not fit torch .*undefined symbol"),
        ("import absent_part_of_torchvision", "needs absent_part_of_torchvision: "),
    ],
)
def test_a_torchvision_that_cannot_be_imported(tmp_path, monkeypatch, line, said):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(f"{line}\n")
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    minor = int(torch.__version__.split(".")[1]) + 15
    with pytest.raises(AutotuneError, match=f"^torchvision:resnet18.*{said}.*pip install 'torchvision==0.{minor}"):
        models.load("torchvision:resnet18", None, None)


def test_what_a_file_lacks(file):
    with pytest.raises(UnknownNameError, match="no function 'made'"):
        models.load(f"{file}:made", None, None)
    with pytest.raises(AutotuneError, match="returned a int: it must return"):
        models.load(f"{file}:number", None, None)


def test_the_script_names_the_mistake():
    done = script("tune", "--model", "hub:resnet50", "--arch", "cpu")
    assert done.returncode == 2 and done.stderr.startswith("error: unknown model 'hub:resnet50'")


def test_the_u_net_is_captured():
    model = models.load("unet", (1, 32, 48), None)
    assert model.shape == (1, 32, 48)
    assert models.load("unet", None, 2).shape == (2, 256, 256)
    layers = model.network(2, "f16").layers
    assert [layer.problem.operator for layer in layers if "up." in layer.name] == ["conv2d_dgrad"] * 4
    assert layers[-1].problem.output_shape == (2, 32, 48, 2)
    with pytest.raises(AutotuneError, match="give --input C,H,W"):
        models.load("unet", (1, 32, 48), 2)
