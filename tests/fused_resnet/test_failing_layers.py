"""A call never fails where the model itself runs: a layer whose candidate fails gives way, at worst to torch."""

import pytest
import torch
from architectures import Function
from torch import nn

from autotune.ir.problem.base import as_nchw
from fused_resnet import FusedResNet
from tuning_db import Store


@torch.library.custom_op("autotune_tests::contiguous_only", mutates_args=())
def contiguous_only(x: torch.Tensor) -> torch.Tensor:
    """Negate a tensor; refuse other strides than those of a new one, as attention on a GPU refuses some."""
    if not x.is_contiguous():
        raise RuntimeError("no kernel found to launch")
    return -x


@contiguous_only.register_fake
def _(x):
    return torch.empty_like(x)


def picky():
    """Return a convolution whose result, channels last in the network, an operator takes only as torch stores it."""
    return Function(lambda m, x: torch.relu(contiguous_only(m.conv(x))), conv=nn.Conv2d(3, 8, 3))


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", "0")
    Store.create(tmp_path / "empty.db").close()
    return str(tmp_path / "empty.db")


def compiled(model, database):
    return torch.compile(model, backend="autotune", options={"tuning_db": database})


@pytest.mark.parametrize("door", [FusedResNet.from_model, compiled], ids=["from_model", "compile"])
def test_a_call_runs_as_torch_runs_the_model_where_a_layer_fails(database, door):
    model, x = picky().eval(), torch.rand(2, 3, 8, 8)
    net = door(model, database)
    with torch.no_grad():
        want = model(x)
        for _ in range(2):
            with pytest.warns(
                UserWarning, match=r"the call runs as torch runs the model, because the layer '.*' fails"
            ):
                torch.testing.assert_close(net(x), want)


def test_the_message_names_the_candidate_that_failed(database):
    net = FusedResNet.from_model(picky().eval(), database)
    with torch.no_grad(), pytest.warns(UserWarning) as told:
        net(torch.rand(2, 3, 8, 8))
    said = [str(one.message) for one in told]
    assert any("it ran as 'aten" in one and "its next candidate is taken" in one for one in said)
    assert any("no kernel found to launch" in one for one in said)


@pytest.mark.parametrize("shape", [(2, 5, 6, 1), (2, 5, 6, 4), (1, 1, 1, 1)], ids=str)
def test_an_image_of_one_channel_has_the_strides_of_a_new_tensor(shape):
    x = torch.rand(shape)
    view = as_nchw(x)
    assert torch.equal(view, x.movedim(3, 1)) and view.data_ptr() == x.data_ptr()
    assert shape[3] != 1 or view.stride() == torch.empty(view.shape).stride()
