"""Profiles on a GPU: kernels of every module, times that add up, the library that torch was told to use."""

import json

import pytest
from processes import process
from repository import ROOT

pytestmark = pytest.mark.gpu

DATABASE = ROOT / "tuning_db" / "se_resnet9_fixup_h200.db"


def profiles(tmp_path, *words):
    path = tmp_path / "profile.json"
    done = process("profile", *words, "--json", path)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())["profiles"]


def libraries(profile):
    return {library["name"] for library in profile["libraries"]}


def walk(node):
    yield node
    for child in node["children"]:
        yield from walk(child)


def assert_adds_up(profile):
    totals = profile["totals"]
    assert totals["unattributed_us"] == 0
    assert totals["total_us"] == pytest.approx(totals["profiled_us"], rel=0.03)
    assert abs(totals["difference"]) < 0.05  # the profiler lengthens the gaps between small kernels


def test_eager_and_fused_side_by_side(tmp_path):
    before, after = profiles(tmp_path, "--batch", 128, "--db", DATABASE)
    assert_adds_up(before)
    assert_adds_up(after)
    assert {"cuDNN", "ATen"} <= libraries(before) and "ours" not in libraries(before)
    kernels = [node for node in walk(after["tree"]) if node["kind"] == "kernel"]
    symbols = {layer["symbol"] for layer in after["layers"].values() if "template" in layer}
    assert symbols and symbols <= {kernel["text"] for kernel in kernels}
    assert after["totals"]["as_used_us"] < before["totals"]["measured_us"]


def test_without_cudnn_none_of_its_kernels_runs(tmp_path):
    [profile] = profiles(tmp_path, "--batch", 16, "--cudnn", "off")
    assert "cuDNN" not in libraries(profile)
    assert not any("cudnn" in text for node in walk(profile["tree"]) for text in node.get("chain", ()))


def test_resnet50_of_torchvision(tmp_path):
    pytest.importorskip("torchvision")
    [profile] = profiles(tmp_path, "--model", "torchvision:resnet50", "--batch", 32)
    assert_adds_up(profile)
    assert "unknown" not in libraries(profile)
    convolutions = [n for n in walk(profile["tree"]) if n["kind"] == "module" and n.get("text") == "Conv2d"]
    assert len(convolutions) == 53 and all(node["us"] > 0 and node["limit"] > 0 for node in convolutions)


def test_compiled_kernels_are_the_whole_networks(tmp_path):
    [profile] = profiles(tmp_path, "--batch", 16, "--compile")
    assert profile["totals"]["unattributed_us"] == 0
    assert "Triton" in libraries(profile)
    assert all(node.get("path", "") == "" for node in walk(profile["tree"]))
