"""The `autotune` command: its subcommands, their help, and the scripts that are entry points to them."""

import ast
import os
import pty
import subprocess

import pytest
from processes import process, python, script
from repository import SCRIPTS

from autotune import core, cudnn_algorithms, measure, search
from autotune.core import paths
from autotune.families import PERMISSIONS
from autotune.tuner import INDUCTOR_MODES, OBJECTIVES
from autotune_cli import command_line, main
from autotune_cli.arguments import accuracy as accuracy_options
from autotune_cli.arguments import algorithms as algorithms_options
from autotune_cli.arguments import bench as bench_options
from autotune_cli.arguments import db as db_options
from autotune_cli.arguments import tune as tune_options
from autotune_cli.baselines import VARIANTS
from autotune_cli.commands import accuracy
from autotune_cli.training_steps import STEPS
from fused_resnet.model_source import PRODUCTS
from fused_resnet.networks.se_resnet9_fixup import MODELS
from fused_resnet.precisions import PRECISIONS

ENTRY_POINTS = sorted(SCRIPTS.glob("*.py"))


@pytest.mark.process
def test_the_list_of_commands_needs_no_torch():
    done = python("import sys\nfrom autotune_cli.main import main\nmain(['--help'])", env={"PYTHONPATH": str(SCRIPTS)})
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in main.NAMES)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    loaded = python(
        "import sys\nimport autotune_cli.main\nprint({'torch', 'rich', 'numpy', 'autotune'} & sys.modules.keys())",
        env={"PYTHONPATH": str(SCRIPTS)},
    )
    assert loaded.stdout == "set()\n", loaded.stderr


@pytest.mark.process
def test_no_help_needs_torch():
    code = f"""
import contextlib, sys
from autotune_cli.main import main
for name in {main.NAMES}:
    with contextlib.suppress(SystemExit):
        main([name, "--help"])
print(sorted({{"torch", "numpy", "sqlalchemy", "rich", "autotune"}} & sys.modules.keys()))
"""
    done = python(code, env={"PYTHONPATH": str(SCRIPTS)})
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert done.stdout.count("usage: ") >= len(main.NAMES)


def test_options_list_what_exists():
    assert tuple(variant.name for variant in VARIANTS) == bench_options.VARIANTS
    assert tuple(variant.name for variant in STEPS) == bench_options.STEPS
    assert tuple(OBJECTIVES) == db_options.OBJECTIVES == tuple(tune_options.OBJECTIVES)
    assert tuple(accuracy.PRECISIONS) == accuracy_options.PRECISIONS
    assert set(PRECISIONS) == set(PRODUCTS)
    assert tuple(core.ARCHITECTURES) == tune_options.ARCHITECTURES
    assert tuple(search.SAMPLERS) == tuple(tune_options.SAMPLERS)
    assert (search.DEFAULT_SAMPLER, search.ANY_SAMPLER) == (tune_options.DEFAULT_SAMPLER, tune_options.ANY_SAMPLER)
    assert {name.replace("_", "-"): meaning for name, meaning in PERMISSIONS.items()} == tune_options.PERMISSIONS
    assert tuple(INDUCTOR_MODES) == tune_options.INDUCTOR_MODES
    assert (measure.BUFFERS, measure.TIMERS) == (tune_options.BUFFERS, tune_options.TIMERS)
    assert next(iter(MODELS)) == command_line.DEFAULT_MODEL
    assert cudnn_algorithms.DIRECTIONS == algorithms_options.DIRECTIONS
    assert cudnn_algorithms.KINDS == algorithms_options.KINDS
    assert tuple(cudnn_algorithms.ORDERS) == algorithms_options.ORDERS


@pytest.mark.parametrize("name", main.NAMES)
def test_help_names_the_program_and_fits_80_columns(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for program in (f"autotune {name}", f"python scripts/{name}.py"):
        with pytest.raises(SystemExit) as end:
            main.run_command(name, ["--help"], program)
        text = capsys.readouterr().out
        assert not end.value.code and text.startswith(f"usage: {program} ")
        assert all(len(line) <= 80 for line in text.splitlines())
        if not program.startswith("autotune"):
            assert f"autotune {name} " not in text


@pytest.mark.parametrize("name", ["tune", "bench", "profile"])
def test_commands_that_run_a_network_have_one_default_batch_size(name, capsys):
    with pytest.raises(SystemExit):
        main.main([name, "--help"])
    assert "(default 128, on a CPU 8" in " ".join(capsys.readouterr().out.split())
    assert (command_line.default_batch(True), command_line.default_batch(False)) == (128, 8)


@pytest.mark.parametrize("path", ENTRY_POINTS, ids=lambda path: path.stem)
def test_a_script_only_runs_its_command(path):
    tree = ast.parse(path.read_text())
    [call] = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    [name] = [argument.value for argument in call.args]
    assert name in main.NAMES and path.stem == name


def test_the_commands_are_few_and_three_have_a_script():
    assert len(main.NAMES) <= 14
    assert [path.stem for path in ENTRY_POINTS] == ["bench", "db", "tune"]


def test_the_version_is_the_packages(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"autotune {paths.version()}\n"


@pytest.mark.parametrize(
    ("words", "said"), [([], "a COMMAND is missing"), (["tunes"], "invalid choice: 'tunes'"), (["--v"], "--v")]
)
def test_a_wrong_command_is_refused(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        main.main(words)
    assert end.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.process
def test_a_terminal_that_was_closed_ends_a_command_as_its_signal_does(empty_db):
    terminal, output = pty.openpty()
    os.close(terminal)
    done = process("db", "info", empty_db, capture_output=False, stdout=output, stderr=subprocess.PIPE)
    os.close(output)
    assert (done.returncode, done.stderr) == (129, "")


def test_a_script_and_the_command_say_the_same(tmp_path, capsys):
    done = script("scripts/db.py", "info", tmp_path / "absent.db")
    assert main.main(["db", "info", str(tmp_path / "absent.db")]) == done.returncode == 2
    assert capsys.readouterr().err == done.stderr != ""
