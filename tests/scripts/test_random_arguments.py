"""Random arguments of commands and programs: one sentence and exit code 2, or 0; no traceback. Nothing is measured."""

import argparse
import contextlib
import importlib
import io
import sys

import pytest
import torch
from databases import fill
from fuzzing import ODD_WORDS, command_lines, fuzz
from hypothesis import given
from hypothesis import strategies as st
from repository import CAMPAIGNS, ROOT

from autotune import families
from autotune_cli import main
from tuning_db import Store

WORDS = [
    *(word for word in ODD_WORDS if "\x00" not in word),
    *("1", "8", "3,8,8", "1,2", "90s", "1.5h", "1%", "101%", "64M", "1e9", "auto", "cpu", "cuda", "sm80", "sm999"),
    *(
        "f32",
        "half",
        "tf32",
        "int8",
        "fp8",
        "se_resnet9_fixup",
        "torchvision:nope",
        "torchvision:",
        "os:system",
        "cpu_conv2d",
    ),
    *("model.py:make", "model.py:fails", "model.py:none", "model.py:absent", "model.py:", "syntax.py:f", "no.py:f"),
    *("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f32", "cast n=1 h=8 w=8 c=24 result=s8 dtype=f32", "gemm m=1 n=1 k=1 dtype=s8"),
    *(
        "problems.txt",
        "wrong.txt",
        "binary.txt",
        "empty.txt",
        "text.db",
        "rows.db",
        "rows.json",
        "absent",
        ".",
        "/",
        "(",
    ),
]

# Arguments that end a command before it compiles or measures anything; they come last, so they count.
ENDS = {
    "tune": ["--db", "text.db"],
    "report": ["-o", "page.html"],
    "memory": ["--batch", "1"],
    "verify": ["--model", "no.py:f"],
    "bench": ["--only", "fused", "--db", "absent", "--show", ""],
    "bench-layers": ["--db", "text.db"],
    "accuracy": ["--model", "no.py:f"],
    "profile": ["--from", "text.db"],
    "algorithms": [],
    "figures": ["--only", "nofigure"],
}

PROGRAMS = {
    "doors": ["--model", "no.py:f"],
    "legality": ["--arch", "sm80", "--family", "nofamily"],
    "restamp": ["text.db"],
    "compare_checkouts": ["--case", "no case"],
    "random_graphs": ["--db", "text.db", "--graphs", "1"],
    "other_sizes": ["--db", "text.db"],
    "any_size": ["--db", "text.db", "--tuned", "8x8"],
    "random_plans": ["--db", "text.db"],
    "replan": ["--db", "text.db"],
    "kill_campaign": ["--target", "nothing"],
    "stress": ["--db", "text.db"],
    "tamper": ["--db", "text.db"],
    "timing_mistakes": [],
    "timm_networks": ["--db", "text.db"],
    "bench_networks": ["--show", "absent"],
    "bench_host": ["--db", "text.db", "--loads", "0"],
    "bench_tuning": ["--against", "text.db"],
    "bench_transfer": ["no.py:f", "no.py:f"],
    "train": ["--show", "absent"],
    "replay": [],
}

MODEL = """
import torch
def make(): return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
def fails(): raise RuntimeError("as a user's code may")
def none(): return 3
"""

pytestmark = [
    pytest.mark.process,  # matplotlib looks for fonts with fc-list
    pytest.mark.skipif(torch.cuda.is_available(), reason="some commands would measure the GPU"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with files of all kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_FAMILIES", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # for --pause
    for name, text in {
        "model.py": MODEL,
        "syntax.py": "def f(:",
        "problems.txt": "# ours\nconv2d n=1 h=4 w=4 c=8 k=8 dtype=f32\n",
        "wrong.txt": "conv2d n=1 h=4 w=4 c=8 k=8 dtype=f32\nno problem\n",
        "empty.txt": "",
        "text.db": "no database",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with Store.create("rows.db") as store:
        fill(store, 0, count=3)
    yield tmp_path
    monkeypatch.setenv("AUTOTUNE_FAMILIES", "")  # to which a command has added its folders
    families.use([])


def run(name, words):
    """Run a command or a program; return its exit code and standard error."""
    silent, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(said), pytest.MonkeyPatch.context() as on:
        try:
            if name in main.NAMES:
                code = main.run_command(name, words, f"autotune {name}")
            else:
                module = importlib.import_module(name)
                on.setattr(sys, "argv", [f"{name}.py", *words])
                main.run_program(module.__doc__, module.add_arguments, module.main)
        except SystemExit as end:
            code = end.code
    return code, said.getvalue()


def assert_clear(name, words):
    code, said = run(name, words)
    lines = said.strip().splitlines()
    if code == 2:
        program = f"autotune {name}" if name in main.NAMES else f"python {name}.py"
        assert lines and lines[-1].startswith(("error: ", f"{program}: error: ", f"{program} ")), said
        assert ": error: " in lines[-1] or len(lines) == 1, said
    else:
        assert code == 0, (code, said)


def parser_of(name):
    parser = argparse.ArgumentParser()
    importlib.import_module(main.options_module(name) if name in main.NAMES else name).add_arguments(parser)
    return parser


@pytest.mark.parametrize("name", [*ENDS, *PROGRAMS])
def test_random_options(name, folder):
    @fuzz(25)
    @given(command_lines(parser_of(name), WORDS))
    def check(words):
        assert_clear(name, [*words, *(ENDS | PROGRAMS)[name]])

    check()


SUBCOMMANDS = {
    "db": ["info", "best", "list", "diff", "pack", "merge", "export", "import", "nope"],
    "replay": ["record", "compare"],
}


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_random_subcommands(name, folder):
    word = st.sampled_from([*WORDS, "rows.db", "rows.json", "rows.db", "-o", "--out", "--most"])

    @fuzz(40)
    @given(st.sampled_from(SUBCOMMANDS[name]), st.lists(word, max_size=4))
    def check(subcommand, words):
        assert_clear(name, [subcommand, *words])

    check()


def test_every_command_is_tested_here():
    assert {*ENDS, "db"} == set(main.NAMES)
    files = [*CAMPAIGNS.glob("*.py"), *(ROOT / "benchmarks" / "programs").glob("*.py")]
    assert set(PROGRAMS) == {path.stem for path in files if "run_program(" in path.read_text()}
