"""Pickles and copies of a FusedResNet."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from seed_network import fused, images
from torch import nn

from fused_resnet import FusedResNet


@pytest.mark.filterwarnings("ignore:.*is not tuned")
def test_pickles_hold_no_captured_networks_and_deep_copies_do(empty_db):
    """A captured network is a cache of classes that may be renamed; within one process it saves seconds."""
    network = FusedResNet.from_model(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), tuning_db=empty_db)
    x = torch.randn(2, 3, 8, 8)
    y = network(x)
    (captures,) = network._source._captures
    again = pickle.loads(pickle.dumps(network))
    assert captures.modules and not again._source._captures
    torch.testing.assert_close(again(x), y)
    copied = copy.deepcopy(network)
    assert copied._source._captures[0].modules == captures.modules
    assert copied._source.module is not network._source.module
    torch.testing.assert_close(copied(x), y)


def test_a_pickle_names_only_classes_whose_paths_are_kept(tuned_db):
    """A class in this list that is renamed or moved makes pickles of users unreadable."""

    class Recorder(pickle.Unpickler):
        def find_class(self, module, name):
            found.add(f"{module}.{name}")
            return super().find_class(module, name)

    network, found = fused(tuned_db), set()
    network(images(1))
    path = Path(tuned_db).parent / "named.pickle"
    path.write_bytes(pickle.dumps(network))
    with path.open("rb") as file:
        Recorder(file).load()
    assert {name for name in found if name.split(".")[0] in ("autotune", "fused_resnet", "tuning_db")} == {
        "fused_resnet.model_source.Captured",
        "fused_resnet.module.FusedResNet",
        "fused_resnet.module._rebind",
        *(
            f"fused_resnet.networks.se_resnet9_fixup.{name}"
            for name in ("SEResNet9Fixup", "FixupBlock", "SqueezeExcite", "SpaceToDepth")
        ),
    }
