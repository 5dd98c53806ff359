"""tests/campaigns/timm_networks.py on the CPU: what it finds in networks of our own, and which networks it chooses."""

import sys
from types import SimpleNamespace

import pytest
import torch
from architectures import Function
from processes import script
from timm_networks import Outcome, chosen, main, outcome, with_random_statistics
from torch import nn

from autotune.core import AutotuneError

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")
CPU = torch.device("cpu")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def branching(m, x):
    y = m.conv(x)
    return y if y.sum() > 0 else -y


def shifted(m, x):
    """Return other values while torch.compile traces it."""
    return m.conv(x) + (0.01 if torch.compiler.is_compiling() else 0.0)


def found(model, empty_db, *shapes):
    return outcome(Outcome("mine", "own"), model.eval(), shapes or [(3, 9, 9)], empty_db, CPU)


def test_a_network_is_compared_at_both_doors(empty_db):
    model = with_random_statistics(network())
    assert model[1].running_mean.std() > 0.01 and model[1].running_var.min() > 0.5
    one = found(model, empty_db)
    assert one.is_right and len(one.errors) == 4 and one.layers == 3 and one.shape == (3, 9, 9)


def test_a_network_has_the_first_size_that_it_takes(empty_db):
    fixed = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    one = found(fixed, empty_db, (3, 4, 4), (3, 8, 8))
    assert one.is_right and one.shape == (3, 8, 8)
    none = found(fixed, empty_db, (3, 4, 4))
    assert not none.is_right and none.failure == "torch itself does not run it for (3, 4, 4)"


def test_what_is_wrong_or_not_captured_is_found(empty_db):
    wrong = found(Function(shifted, conv=nn.Conv2d(3, 8, 1)), empty_db)
    assert not wrong.is_right and not wrong.failure and max(wrong.errors) > wrong.allowed
    refused = found(Function(branching, conv=nn.Conv2d(3, 8, 1)), empty_db)
    assert not refused.is_right and "CaptureError" in refused.failure


def test_the_shortest_name_of_each_family_is_chosen():
    kinds = {"net_large": ("net", 9), "net": ("net", 5), "wide": ("wide", 99), "wide_small": ("wide", 7)}
    entries = {name: SimpleNamespace(__module__=f"timm.models.{family}") for name, (family, _) in kinds.items()}
    timm = SimpleNamespace(
        list_models=lambda: list(kinds),
        create_model=lambda name: nn.Linear(kinds[name][1], 1, bias=False),
        models=SimpleNamespace(model_entrypoint=entries.__getitem__),
    )
    assert [(one.name, one.family) for one in chosen(timm, [], 50)] == [("net", "net"), ("wide_small", "wide")]
    assert [one.name for one in chosen(timm, ["net*"], 50)] == ["net", "net_large"]
    assert [timm.create_model(one.name).in_features for one in chosen(timm, ["wide*"], 200)] == [99, 7]


def test_without_timm_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(AutotuneError, match="timm is not installed: pip install timm"):
        main(SimpleNamespace())


@pytest.mark.process
def test_the_command_says_what_it_does():
    assert "one of each family of timm" in script("tests/campaigns/timm_networks.py", "--help").stdout
