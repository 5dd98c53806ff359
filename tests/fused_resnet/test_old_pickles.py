"""Modules that earlier versions pickled are still read."""

import copy
import pickle
from importlib import import_module
from pathlib import Path

import pytest
import torch
from seed_network import fused, images

from fused_resnet import old_pickles
from fused_resnet.model_source import Captured, Named
from fused_resnet.networks import se_resnet9_fixup

OLD = Path(__file__).parents[1] / "data" / "fused_resnet_old.pickle"
"""A captured module that has run: {"network", "x", "y"}. It was written before the packages were laid out anew."""


@pytest.mark.filterwarnings("ignore:.*is not tuned")
def test_a_pickle_of_an_earlier_version_runs(empty_db):
    saved = pickle.loads(OLD.read_bytes())
    network = saved["network"]
    network.tuning_db = str(empty_db)
    torch.testing.assert_close(network(saved["x"]), saved["y"])
    assert all(row.source == "untuned" for row in network.explain(saved["x"]))
    again = pickle.loads(pickle.dumps(network))
    torch.testing.assert_close(again(saved["x"]), saved["y"])


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("fused_resnet.source", "Named", Named),
        ("fused_resnet.source", "Captured", Captured),
        *(
            ("fused_resnet.reference", name, getattr(se_resnet9_fixup, name))
            for name in ("SEResNet9Fixup", "FixupBlock", "SqueezeExcite", "SpaceToDepth")
        ),
    ],
)
def test_classes_are_found_by_their_old_paths(module, name, now):
    assert getattr(import_module(module), name) is now


def test_an_unknown_name_at_an_old_path_is_an_error():
    with pytest.raises(AttributeError, match="Nothing"):
        _ = import_module("fused_resnet.source").Nothing
    with pytest.raises(ModuleNotFoundError):
        import_module("fused_resnet.nothing")


def test_moved_modules_exist():
    for path in old_pickles.MOVED.values():
        import_module(path)


@pytest.mark.filterwarnings("ignore:.*is not tuned")
def test_pickles_hold_no_captured_networks_and_deep_copies_do(empty_db):
    """A captured network is a cache of classes that may be renamed; within one process it saves seconds."""
    saved = pickle.loads(OLD.read_bytes())
    network = saved["network"]
    network.tuning_db = str(empty_db)
    network(saved["x"])
    (captures,) = network._source._captures
    assert captures.modules and not pickle.loads(pickle.dumps(network))._source._captures
    copied = copy.deepcopy(network)
    assert copied._source._captures[0].modules == captures.modules
    assert copied._source.module is not network._source.module
    torch.testing.assert_close(copied(saved["x"]), saved["y"])


def test_a_pickle_names_only_classes_whose_paths_are_kept(tuned_db):
    """A class in this list that is renamed or moved needs its old path in old_pickles.py."""

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
        "fused_resnet.model_source.Named",
        "fused_resnet.module.FusedResNet",
        "fused_resnet.module._rebind",
        *(
            f"fused_resnet.networks.se_resnet9_fixup.{name}"
            for name in ("SEResNet9Fixup", "FixupBlock", "SqueezeExcite", "SpaceToDepth")
        ),
    }
