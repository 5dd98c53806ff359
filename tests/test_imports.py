"""What imports what: the runtime stands without the tuner and its tools, and nothing knows the scripts."""

import os
import subprocess
import sys

import pytest
from processes import HANG, python

TOOLS = ("jinja2", "optuna", "cutlass_library", "ninja", "rich", "matplotlib")
RUNTIME = {
    "autotune": {"core", "ir", "libraries", "runtime"},
    "fused_resnet": {
        "call",
        "capture",
        "dynamo_graph",
        "guards",
        "inert_regions",
        "model_source",
        "module",
        "networks",
        "options",
        "planned_module",
        "plan_warnings",
        "precisions",
        "quantization",
        "torch_arguments",
        "torch_op",
        "weight_changes",
    },
    "tuning_db": {
        "errors",
        "evidence",
        "location",
        "opening",
        "ranking",
        "reader",
        "rows",
        "trust",
    },
}
"""What running SE-ResNet9-Fixup from a file loads of each package: the first result waits for all of it."""


@pytest.mark.process
def test_folders_of_the_user_do_not_hide_the_packages(tmp_path):
    packages = ("autotune", "fused_resnet", "tuning_db")
    for package in packages:
        (tmp_path / package).mkdir()
    named = ", ".join(packages)
    (tmp_path / "mine.py").write_text(f"import {named}\nprint(*(one.__file__ is not None for one in ({named})))\n")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in (["mine.py"], ["-m", "mine"], ["-c", "import mine"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=kept, capture_output=True, text=True, check=False, timeout=HANG
        )
        assert (done.returncode, done.stdout) == (0, "True True True\n"), done.stderr


def test_running_the_network_needs_no_tuner_no_compiler_and_no_cache_folder(tuned_db):
    code = f"""
import sys
import torch
torch.zeros(1) + 1
before = set(sys.modules)
from fused_resnet import FusedResNet
network = FusedResNet({str(tuned_db)!r})
x = torch.randn(3, 3, 64, 64)
assert network(x).shape == (3, 512, 2, 2)
print(*sorted(set(sys.modules) - before))
assert any(row.kernel.startswith("cpu_") for row in network.explain(x))
assert {{row.source for row in network.explain(x)}} == {{"tuned"}}
print([name for name in {TOOLS} if name in sys.modules])
"""
    nothing = {"PATH": "/nonexistent", "CXX": "/nonexistent", "XDG_CACHE_HOME": "/dev/null"}
    done = python(code, env={**os.environ, **nothing})
    assert done.returncode == 0, done.stderr
    loaded, tools = done.stdout.splitlines()
    assert tools == "[]"
    parts = [name.split(".") for name in loaded.split()]
    foreign = {top for top, *_ in parts} - {*RUNTIME, "einops", *sys.stdlib_module_names}
    assert not foreign, f"running loads {foreign}"
    for package, allowed in RUNTIME.items():
        ours = {names[1] for names in parts if names[0] == package and len(names) > 1}
        assert ours <= allowed, f"running loads {ours - allowed} of {package}"
    assert {"autotune.libraries.cudnn", "torch._dynamo", "torch._inductor", "sympy"}.isdisjoint(loaded.split())
    assert {name for name in loaded.split() if "quantization." in name} == {"fused_resnet.quantization.scales"}
