"""tune(): a model is tuned from Python, is right, and is not tuned twice."""

import warnings

import pytest
import torch
from torch import nn

from fused_resnet import FusedResNet, InputError, tune

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    ).eval()


@pytest.mark.compile
@pytest.mark.process
def test_a_model_is_tuned_and_right(tmp_path, capsys):
    plain, x, path = model(), torch.randn(2, 4, 8, 8), tmp_path / "below" / "new.db"
    fused = tune(plain, x, path, budget="20m", trials=1)
    assert isinstance(fused, FusedResNet)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-4, atol=1e-5)
    assert {row.source for row in fused.explain(x)} == {"tuned"}
    said = capsys.readouterr()
    assert not said.out and "timing the finalists" in said.err and str(path) in said.err and "\r" not in said.err
    tune(plain, (x,), path, budget=1200, trials=1)
    assert not capsys.readouterr().err


def test_inputs_that_are_no_tensors_and_budgets_that_are_no_times_are_refused(tmp_path):
    with pytest.raises(InputError, match="give a tensor or a tuple of tensors"):
        tune(model(), [], tmp_path / "x.db")
    with pytest.raises(InputError, match="give a tensor or a tuple of tensors"):
        tune(model(), ["x"], tmp_path / "x.db")
    with pytest.raises(InputError, match="'soon' is not a time"):
        tune(model(), torch.ones(1, 4, 8, 8), tmp_path / "x.db", budget="soon")
    for limit in ("trials", "jobs"):
        with pytest.raises(InputError, match=f"{limit} is 0, and must be at least 1"):
            tune(model(), torch.ones(1, 4, 8, 8), tmp_path / "x.db", **{limit: 0})
    assert not (tmp_path / "x.db").exists()


def test_a_database_that_must_be_signed_is_not_tuned(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_TRUSTED_KEYS", "A" * 43 + "=")
    with pytest.raises(InputError, match="has no signature"):
        tune(model(), torch.ones(1, 4, 8, 8), tmp_path / "x.db")
