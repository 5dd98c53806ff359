"""The doors of a tune: `autotune tune`, fused_resnet.tune and torch.compile(backend="autotune").

All search the same problems, and a database that one of them tuned is complete for the others. Only one module starts
runs. tests/campaigns/doors.py compares the doors' times.
"""

import ast
import warnings

import pytest
import torch
from door_verdicts import EAGER, PEER, Outcome, rivals, shortfalls
from repository import ROOT
from tune_arguments import requested
from tuning_doors import DOORS, Subject

from autotune.measure import THROTTLED
from autotune.tuner import Searched, TuningTarget, missing
from autotune_cli import models
from autotune_cli.baselines import BaselineInput, flat
from autotune_cli.commands.bench import reference
from fused_resnet import FusedResNet
from fused_resnet.compile_backend import CompiledGraph
from fused_resnet.compile_options import CompileOptions
from fused_resnet.dynamo_graph import unlift
from tuning_db import Store

NETWORKS = "tests/support/door_networks.py"
SECOND = {"cli": "tune", "tune": "backend", "backend": "tune"}
"""Door -> another one that is opened on its database. The command line is none: it always searches on."""
BATCH = 2
BUDGET = 1200.0
"""Seconds of a tune: the search ends earlier by itself, also on a busy machine."""

# -- a tune through each door ------------------------------------------------------------------------------------------


def subject(name):
    text = f"{ROOT / NETWORKS}:{name}"
    torch.manual_seed(0)
    model = models.load(text, (8, 8, 8), None)
    x = torch.randn(BATCH, *model.shape)
    return Subject(text, BaselineInput(model, "", None, x, reference(model.module, x)), BUDGET)


def best_times(path):
    """Return for each problem of a database the shortest time by family, and the families of its finalists."""
    with Store.open(path) as store:
        [device] = store.devices()
        best, finalists = {}, {}
        for text in store.problem_texts():
            for one in store.measurements(device, text, "ok"):
                times = best.setdefault(text, {})
                times[one.kernel.family] = min(one.median_us, times.get(one.kernel.family, one.median_us))
                if one.final:
                    finalists.setdefault(text, set()).add(one.kernel.family)
        return best, finalists, store.planned(device)


def was_slowed(path):
    """Return whether some final time of a database was taken while other processes slowed the device down."""
    with Store.open(path) as store:
        [device] = store.devices()
        finals = [one for text in store.problem_texts() for one in store.measurements(device, text, "ok") if one.final]
        return any(one.details.get(THROTTLED) for one in (*finals, *store.plans()))


def counts(path):
    with Store.open(path) as store:
        return store.counts()


@pytest.mark.compile
@pytest.mark.process
@pytest.mark.daily(1)
@pytest.mark.parametrize(("name", "inductor"), [("residual", "0"), ("tailed", "1")])
def test_all_doors_find_the_same_and_leave_nothing_to_each_other(name, inductor, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AUTOTUNE_INDUCTOR", inductor)
    what, databases = subject(name), {door: tmp_path / f"{door}.db" for door in DOORS}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # none says that a layer is not tuned
        for door, path in databases.items():
            torch.compiler.reset()
            with what.case.context():
                torch.testing.assert_close(flat(DOORS[door](what, path).forward()), what.case.expected)
    found = {door: best_times(path) for door, path in databases.items()}
    [problems] = {frozenset(best) for best, *_ in found.values()}
    [_] = {tuple(planned) for *_, planned in found.values()}
    for _, finalists, planned in found.values():
        assert len(planned) == 1 and finalists.keys() == problems
    for text in problems:
        times = [best[text] for best, *_ in found.values()]
        winners = {min(one, key=one.get) for one in times}
        # Searches differ by noise, which makes no family win that is far behind elsewhere.
        assert all(one[family] <= 5 * min(one.values()) for one in times for family in winners), (text, times)
    for door, other in SECOND.items():
        path = databases[door]
        if was_slowed(path):
            continue  # a later run takes these times again
        before = counts(path)
        capsys.readouterr()
        torch.compiler.reset()
        DOORS[other](what, path)
        assert counts(path) == before, f"{other} starts a run on the database of {door}"
        assert "tuning" not in capsys.readouterr().err


# -- what each door requests -------------------------------------------------------------------------------------------


def backends_network(model, x, database):
    """Return the layers that the backend of torch.compile finds in a model."""
    seen = []

    def backend(graph, examples):
        compiled = CompiledGraph(unlift(graph, examples), CompileOptions(tuning_db=database))
        seen.append(compiled.network([x.to("meta")]))
        return graph.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=False)(x)
    [network] = seen
    return network


@pytest.mark.parametrize("name", ["residual", "tailed", "image", "normed", "sequential"])
def test_all_doors_request_the_same(name, empty_db):
    text, shape = f"{ROOT / NETWORKS}:{name}", (3 if name == "image" else 8, 8, 8)
    [by_command] = requested("--model", text, "--input", ",".join(map(str, shape)), "--batch", str(BATCH))
    model, x = models.load_model(text), torch.randn(BATCH, *shape)
    captured = {
        "tune": FusedResNet.from_model(model, empty_db)._network(x),
        "backend": backends_network(model, x, empty_db),
    }
    with Store.create(empty_db) as store:
        target = TuningTarget.of_device(x.device)
        requests = {door: missing(store, target, one, Searched()) for door, one in captured.items()}
    for request in requests.values():
        assert request.network.key == by_command.network.key
        assert set(map(str, request.problems)) == set(map(str, by_command.problems))


# -- one place that starts runs ----------------------------------------------------------------------------------------

STARTED = {"Tuner", "TunerOptions"}
STARTS = {
    "fused_resnet/runs.py",
    "benchmarks/programs/bench_tuning.py",  # a benchmark of the search
}
"""The modules that make a Tuner."""


def constructed(path):
    """Return the names of classes that a module calls, however it imported them."""
    tree = ast.parse(path.read_text())
    imported = [one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names]
    real = {one.asname: one.name for one in imported if one.asname}
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls]
    return {real.get(name, name) for name in named}


def test_one_module_starts_runs():
    sources = [
        path
        for folder in ("autotune", "fused_resnet", "scripts", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    found = {str(path.relative_to(ROOT)) for path in sources if STARTED & constructed(path)}
    assert found == STARTS


# -- verdicts ----------------------------------------------------------------------------------------------------------

ROUNDS = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0]


def outcomes(**doors):
    return {EAGER: Outcome(us=[500.0] * 7, error=1e-3), PEER: Outcome(us=ROUNDS, error=1e-3), **doors}


def door(factor=1.0, error=1e-3, seconds=50.0):
    return Outcome(us=[factor * us for us in ROUNDS], error=error, tune_seconds=seconds)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (door(), []),
        (door(1.02, 1.4e-3, 65.0), []),
        (door(1.06), ["1.06 times the time of torch.compile (1.06-1.06)"]),
        (door(error=1.6e-3), ["error 1.6e-03, eager's 1.0e-03"]),
        (door(error=float("nan")), ["error nan, eager's 1.0e-03"]),
        (door(seconds=67.0), ["the tune took 67.0 s of 60.0 s"]),
        (Outcome("RuntimeError: no memory"), ["failed: RuntimeError: no memory"]),
    ],
)
def test_a_door_falls_short_of_what_is_asked(own, words):
    assert shortfalls(outcomes(own=own), "own", 60.0) == words


def test_a_door_is_compared_with_the_fastest_other_door_that_ran():
    found = outcomes(own=door(), fast=door(0.5), slow=door(0.9), failed=Outcome("it did not run"))
    assert set(rivals(found, "own")) == {"fast", PEER} and set(rivals(found, "fast")) == {"slow", PEER}
    assert shortfalls(found, "own", 60.0) == ["2.00 times the time of fast (2.00-2.00)"]
    assert not shortfalls(found, "fast", 60.0)


def test_a_time_that_may_be_noise_is_not_held_against_a_door():
    noisy = Outcome(us=[99.0, *(1.1 * us for us in ROUNDS[1:])], error=1e-3, tune_seconds=50.0)
    assert not shortfalls(outcomes(own=noisy), "own", 60.0)
