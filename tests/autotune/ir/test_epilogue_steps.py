"""Custom steps: what a definition must be, that its text is its identity, and what tuning makes of bad ones."""

import io
import json
import pickle
import re

import pytest
import torch
from repository import ROOT
from rich.console import Console

from autotune.codegen import rendering
from autotune.core import ProblemError, device_name
from autotune.ir import Epilogue, parse
from autotune.ir.epilogue_steps import STEPS, define_step
from autotune.libraries import aten
from autotune.runtime.selection import choices
from autotune.tuner import Progress, Tuner, TunerOptions
from autotune_cli.commands import db
from tuning_db import Store

CONV = "conv2d n=1 h=4 w=4 c=8 k=16 r=1 s=1 stride=1,1 pad=0,0 dilation=1,1 groups=1 dtype=f32 epilogue="


def test_a_step_is_known_by_its_name_and_written_with_its_digest():
    step = define_step("cube", cuda="x * x * x", torch="x ** 3")
    assert re.fullmatch(r"cube@[0-9a-f]{8}", step)
    for text in ("bias,cube", f"bias,{step}"):
        assert str(Epilogue.parse(text)) == f"bias,{step}"
    problem = parse(CONV + "bias,cube")
    assert str(problem) == f"{CONV}bias,{step}" and parse(str(problem)) == problem


def test_parameters_come_in_the_order_of_the_definition():
    define_step("line", cuda="a * x + b", torch="a * x + b", params={"b": "channel", "a": "scalar"})
    b = torch.randn(5)
    y, _ = Epilogue.parse("add_scalar,line").apply(torch.ones(2, 5), {"b.0": b}, (1.0, 3.0))
    torch.testing.assert_close(y, 6 + b.expand(2, 5))


def test_another_definition_is_another_identity(cpu_kernel):
    config = {"block_k": 16, "block_pixels": 4, "unroll_c": 1}
    texts, symbols, sources = set(), set(), set()
    base = {"cuda": "x + a", "torch": "x + a", "params": {"a": "scalar"}}
    variants = [{}, {"cuda": "a + x"}, {"torch": "a + x"}, {"params": {"a": "channel"}}]
    for variant in variants:
        define_step("shifted", **{**base, **variant})
        kernel = cpu_kernel("cpu_conv2d", config, "shifted")
        texts.add(str(parse(CONV + "shifted")))
        symbols.add(rendering.symbol(kernel))
        sources.add(rendering.source_digest(kernel))
    assert len(texts) == len(symbols) == len(sources) == len(variants)
    first = define_step("shifted", **base)
    assert str(Epilogue.parse("shifted")) == first, "the newest is meant"
    assert all(parse(text) for text in texts), "the others keep their full names"


def test_a_pickled_problem_takes_its_definitions_along(monkeypatch):
    """To a process that has not got them, as the measuring one, which the tuning below needs."""
    step = define_step("far", cuda="x - d", torch="x - d", params={"d": "scalar"})
    pickled = pickle.dumps(parse(CONV + "bias,far"))
    monkeypatch.delitem(STEPS, step)
    with pytest.raises(ProblemError):
        parse(CONV + step)
    problem = pickle.loads(pickled)
    assert str(problem) == f"{CONV}bias,{step}"
    assert problem.epilogue.apply(torch.zeros(3), {"bias0": torch.ones(3)}, (3.0,))[0].tolist() == [-2.0] * 3


GOOD = {"cuda": "x * a", "torch": "x * a", "params": {"a": "scalar"}}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("relu", {}, "'relu'"),
        ("none", {}, "'none'"),
        ("my step", {}, "'my step'"),
        ("mine@12345678", {}, "identifier"),
        ("mine", {"params": {"x": "scalar"}}, "step 'mine'.*'x'"),
        ("mine", {"params": {"torch": "scalar"}}, "step 'mine'.*'torch'"),
        ("mine", {"params": {"2a": "scalar"}}, "step 'mine'.*'2a'"),
        ("mine", {"params": {"lambda": "scalar"}}, "step 'mine'.*'lambda'"),
        ("mine", {"params": {"β": "scalar"}}, "step 'mine'.*'β'"),
        ("mine", {"params": {"a": "vector"}}, "parameter a must be 'scalar' or 'channel', not 'vector'"),
        ("mine", {"cuda": " "}, "step 'mine'.*cuda text is empty"),
        ("mine", {"torch": "x * * a"}, r"step 'mine'.*'x \* \* a' is no Python expression"),
        ("mine", {"torch": "y = x"}, "step 'mine'.*'y = x' is no Python expression"),
        ("mine", {"torch": ""}, "step 'mine'.*no Python expression"),
        ("mine", {"torch": "x * b"}, "step 'mine'.*'x \\* b' does not evaluate: NameError: name 'b'"),
        ("mine", {"torch": "torch.swish(x)"}, "step 'mine'.*'torch.swish.*AttributeError"),
        ("mine", {"torch": "x.mean(-1)"}, r"step 'mine'.*'x.mean.*shape \(2, 3, 4\)"),
        ("mine", {"torch": "x.movedim(-1, 1)"}, r"shape \(2, 5, 3, 4\)"),
        ("mine", {"torch": "x > a"}, "step 'mine'.*torch.bool"),
        ("mine", {"torch": "a"}, "step 'mine'.*float, not a tensor"),
        ("mine", {"torch": "x.mul_(a)"}, "step 'mine'.*in place"),
    ],
)
def test_a_bad_definition_is_refused_in_words(name, change, said):
    with pytest.raises(ProblemError, match=said):
        define_step(name, **{**GOOD, **change})
    with pytest.raises(ProblemError, match="unknown epilogue step 'mine'"):
        Epilogue.parse("mine")


def test_a_definition_that_is_not_here_is_asked_for():
    with pytest.raises(
        ProblemError, match=r"'gone@12345678' is not defined: call autotune.ir.epilogue_steps.define_step"
    ):
        Epilogue.parse("bias,gone@12345678")
    here = define_step("changed", **GOOD)
    with pytest.raises(ProblemError, match=f"'changed@12345678'.*with the same texts; here 'changed' means {here}"):
        Epilogue.parse("changed@12345678")


def test_a_database_with_unknown_steps_can_be_read(tmp_path):
    path, device = tmp_path / "other.db", torch.device("cpu")
    problem = parse(CONV + "relu")
    with Store.create(path) as store:
        row = store.put_device(device_name(device), "x86-64", flops_per_us=1.0, bytes_per_us=1.0, details={})
        config = json.dumps(aten.configs(problem)[0])
        kernel = {"family": "aten", "config": config, "dtype": "f32", "target": "x86-64", "source": ""}
        for text in (CONV + "gone@12345678", str(problem)):
            known = store.put_kernel({**kernel, "epilogue": text.split("=")[-1]}, symbol="")
            result = {"status": "ok", "median_us": 1.0, "spread_us": 0.1, "samples_us": [1.0], "final": False}
            put = {"device_id": row.id, "problem_id": store.put_problem(text).id, "kernel_id": known.id, "launch": {}}
            store.put_measurement(**put, **result, details={})
    with Store.open(path) as store:
        assert [choice.source for choice in choices(store, problem, device)] == ["tuned", "untuned"]
        for show, says in ((db.best, "define_step"), (lambda *to: db.listing(*to, 10), "gone@12345678")):
            show(store, Console(file=(said := io.StringIO()), width=500))
            assert says in said.getvalue() and "1x1/1 8>16 @4x4" in said.getvalue()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, worker, cpu, cpu_target):
    """A database in which two custom steps were tuned: one that does not compile, one that lies."""
    path = tmp_path_factory.mktemp("steps") / "steps.db"
    define_step("broken", cuda="x * unheard_of(2.f)", torch="x * 2")
    define_step("lying", cuda="x * 2.f", torch="x * 2.01")
    texts = [CONV + name for name in ("broken", "lying")]
    options = TunerOptions(cpu, cpu_target, trials=1, jobs=2)
    with Store.create(path) as store:
        Tuner(store, map(parse, texts), options, [worker], Progress()).run()
    return path


def ranked(path, name):
    """(families in the ranking, all measurements) of one custom step's problem."""
    with Store.open(path) as store:
        [device] = store.devices()
        text = str(parse(CONV + name))
        ranking = store.ranking(device, text)
        return [row.kernel.family for row in ranking], store.measurements(device, text)


@pytest.mark.compile
def test_the_documents_example_tunes_its_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "reference" / "epilogues.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    families = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert families == {"cpu_conv2d", "aten"}
    with Store.open(tmp_path / "swish.db") as store:
        [problem], [device] = store.problems(), store.devices()
        assert f"`{problem.text.rpartition(',')[2]}`" in page
        assert {row.status for row in store.measurements(device, problem.text)} == {"ok"}


def test_the_documents_list_every_step():
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "reference" / "epilogues.md").read_text(), re.MULTILINE)
    assert listed == [name for name, kind in STEPS.items() if not kind.custom]


def test_cuda_text_that_does_not_compile_is_recorded_with_the_compilers_words(tuned, cpu_target):
    families, _ = ranked(tuned, "broken")
    assert set(families) == {"aten"}
    with Store.open(tuned) as store:
        errors = {row.epilogue: row.error for row in store.kernels(cpu_target) if row.error}
    assert list(errors) == [str(Epilogue.parse("broken"))]
    assert "unheard_of" in errors[str(Epilogue.parse("broken"))]


def test_texts_that_disagree_are_wrong_and_never_win(tuned):
    families, measurements = ranked(tuned, "lying")
    assert set(families) == {"aten"}
    wrong = [row for row in measurements if row.kernel.family == "cpu_conv2d"]
    assert wrong and {row.status for row in wrong} == {"wrong"}
    assert all("relative error" in row.error for row in wrong)
