"""What imports what: the runtime stands without the tuner and its tools, and nothing knows the scripts."""

import ast
import os
import sys
import tomllib

import pytest
from helpers import ROOT, python

TOOLS = ("jinja2", "optuna", "cutlass_library", "ninja", "rich", "matplotlib")
TUNER = (
    "autotune.codegen.ninja_build",
    "autotune.codegen.rendering",
    "autotune.families",
    "autotune.search",
    "autotune.tuner.tuner",
    "autotune.measure.worker_client",
    "autotune.search.simulator",
)
RUNTIME = {
    "autotune": {"abi", "arch", "device", "epilogue", "errors", "problem", "reference", "steps", "vendor"},
    "fused_resnet": {"arena", "binding", "cache", "candidates", "derived", "engine", "frame", "graph", "layout"}
    | {"module", "operator", "plan", "reference", "rewrites", "rounding", "selection", "source"},
    "tuning_db": {"binary", "errors", "place", "reader", "ties"},
}
"""What running a network of graph.py from a file loads of each package: the first result waits for all of it."""
SHARED = {"errors", "problem", "epilogue", "steps", "abi", "arch", "device", "reference", "vendor"}


def imports(path):
    """Every module that a file imports, wherever in it; `from a import b` counts as a.b and as a."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources(package):
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


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
print([name for name in {TOOLS + TUNER} if name in sys.modules])
"""
    nothing = {"PATH": "/nonexistent", "CXX": "/nonexistent", "XDG_CACHE_HOME": "/dev/null"}
    done = python(code, env={**os.environ, **nothing})
    assert done.returncode == 0, done.stderr
    loaded, tools = done.stdout.splitlines()
    assert tools == "[]"
    parts = [name.split(".") for name in loaded.split()]
    foreign = {top for top, *_ in parts} - {*RUNTIME, *sys.stdlib_module_names}
    assert not foreign, f"running loads {foreign}"
    for package, allowed in RUNTIME.items():
        ours = {names[1] for names in parts if names[0] == package and len(names) > 1}
        assert ours <= allowed, f"running loads {ours - allowed} of {package}"
    assert "autotune.libraries.cudnn" not in loaded.split()


@pytest.mark.parametrize("package", ["fused_resnet", "tuning_db"])
def test_runtime_packages_import_the_shared_ground_alone(package):
    for path in sources(package):
        for name in imports(path):
            if name.split(".")[0] == "autotune":
                assert name.split(".")[1] in SHARED, f"{path.relative_to(ROOT)} imports {name}"


def test_the_shared_ground_imports_no_tuner():
    for path in sources("autotune"):
        if path.relative_to(ROOT / "autotune").parts[0].removesuffix(".py") in SHARED:
            for name in imports(path):
                if name.split(".")[0] == "autotune":
                    assert name.split(".")[1] in SHARED, f"{path.relative_to(ROOT)} imports {name}"
                assert name.split(".")[0] not in TOOLS


@pytest.mark.parametrize("package", ["autotune", "fused_resnet", "tuning_db"])
def test_packages_do_not_know_the_scripts(package):
    scripts = {path.stem for path in (ROOT / "scripts").glob("_*.py")}
    for path in sources(package):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & ({"scripts", "tests", "helpers"} | scripts), path


def test_the_database_knows_no_runtime():
    for path in sources("tuning_db"):
        assert not any(name.split(".")[0] in ("fused_resnet", "torch") for name in imports(path))


def test_every_package_is_part_of_a_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = [ROOT / name for name in ("autotune", "fused_resnet", "tuning_db")]
    found = {".".join(file.parent.relative_to(ROOT).parts) for top in tops for file in top.rglob("__init__.py")}
    assert found == set(listed) - {"autotune.templates"}
