"""The wheel in an environment of its own, outside of the checkout: the `autotune` command, and a network it tuned."""

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from processes import HANG
from repository import ROOT

pytestmark = pytest.mark.process

MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
"""
RUN = """
import sys
import torch
import autotune, autotune_cli, fused_resnet, tuning_db
from fused_resnet import FusedResNet
from mine import make

for package in (autotune, autotune_cli, fused_resnet, tuning_db):
    assert package.__file__.startswith(sys.prefix), package.__file__
plain, x = make().eval(), torch.randn(2, 8, 9, 7, generator=torch.Generator().manual_seed(1))
fused = FusedResNet.from_model(plain, "mine.db").eval()
with torch.inference_mode():
    error = (fused(x) - plain(x)).norm() / plain(x).norm()
kernels = [(row.source, row.kernel) for row in fused.explain(x)]
print(float(error), kernels)
assert error < 1e-5 and ("tuned", True) in [(source, name.startswith("cpu_")) for source, name in kernels]
"""
SOURCES = ("autotune", "autotune_cli", "fused_resnet", "tuning_db")


def run(*command, folder, **variables):
    """Run a command outside of the checkout, none of whose folders are importable."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AUTOTUNE_FAMILIES")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=2 * HANG,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the tracked files, so that the checkout stays as it is."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    run(sys.executable, "-c", build, folder=copy)
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel alone; what it depends on comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    [packages] = (folder / "lib").glob("python*/site-packages")
    # A line of a .pth file is added to sys.path, but the .pth files of that folder, such as the one that makes the
    # checkout importable, are not read.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    run(*pip, "--ignore-installed", "--disable-pip-version-check", wheel, folder=folder)
    return folder


@pytest.mark.process
def test_the_wheel_has_templates_and_no_database(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    templates = [path.relative_to(ROOT) for path in (ROOT / "templates").rglob("*") if path.is_file()]
    assert templates and {f"autotune/{path}" for path in templates} <= set(names)
    assert "autotune_cli/profiles/page.html.j2" in names and "autotune_cli/layers/sets/resnet.txt" in names
    assert {f"autotune/report/page/{name}" for name in ("report.html.j2", "report.css", "layer.js")} <= set(names)
    assert not [name for name in names if name.endswith(".db")]
    assert not [name for name in names if name.split("/")[0] not in SOURCES and ".dist-info/" not in name]


def test_the_installed_command_tunes_a_network_that_then_runs(environment, tmp_path):
    command, python = environment / "bin" / "autotune", environment / "bin" / "python"
    assert "tune a network's layers" in run(command, "--help", folder=tmp_path)
    version = run(command, "--version", folder=tmp_path).split()
    assert version[0] == "autotune" and version[1] != "unknown"
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "run.py").write_text(RUN)
    words = ["--model", "mine.py:make", "--input", "8,9,7", "--arch", "cpu", "--batch", 2, "--trials", 1]
    places = {"AUTOTUNE_GENERATED": str(tmp_path / "generated"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    told = run(command, "tune", *words, "--budget", "20m", "--db", "mine.db", folder=tmp_path, **places)
    assert "database mine.db" in told and Path(tmp_path / "mine.db").is_file()
    assert "cpu_conv2d" in run(command, "db", "best", "mine.db", folder=tmp_path)
    run(python, "run.py", folder=tmp_path, **places)
    layers = run(command, "bench-layers", "--help", folder=tmp_path)
    assert "awkward, resnet" in layers
