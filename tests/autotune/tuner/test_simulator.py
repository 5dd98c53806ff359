"""Recordings and replays: a tune's facts come back as they were, and a replay's clock is one that can be added up."""

import gzip
import json
import math
import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from databases import LIBRARY, put_time

from autotune.core import AutotuneError, architecture
from autotune.families import Kernel, families
from autotune.ir import parse
from autotune.search import DEFAULT_SAMPLER, ConfigTrace, Space, SpaceTrace, TuneTrace, trace_of
from autotune.tuner import MIN_CONFIGS, replay
from autotune.tuner.kernel_builder import identity
from tuning_db import Store

SM90 = architecture("sm90")
AXES = {"a": (1, 2, 4, 8, 16), "b": ("x", "y", "z"), "c": (0, 1, 2, 3, 4)}
COMPILE, TRIAL = 2.0, 0.25
SAMPLERS = ("transfer", "tpe", "random", "cost-model", "brute-force")  # gp takes minutes, cmaes needs a package


def made(problems=3, seed=0, epilogues=("none",)):
    """A trace of random effects, most of them shared by its problems; the prior knows half of them."""
    shared, traces = random.Random(seed), []
    table = {(name, v): shared.gauss(0, 0.2) for name, values in AXES.items() for v in values}
    seen = {at: effect for at, effect in table.items() if shared.random() < 0.5}
    configs = [{"a": a, "b": b, "c": c} for a in AXES["a"] for b in AXES["b"] for c in AXES["c"]]
    for i in range(problems):
        own = random.Random(seed * 100 + i)
        problem = parse(f"gemm m={64 << i} n=64 k=64 dtype=f16 epilogue={epilogues[i % len(epilogues)]}")
        space = Space.ranked(
            problem, "f", configs, [math.exp(sum(seen.get(at, 0) for at in config.items())) for config in configs]
        )
        results = []
        for config in space.configs:
            us = round(10 * math.exp(sum(table[at] for at in config.items()) + own.gauss(0, 0.02)), 3)
            results.append(ConfigTrace(COMPILE, TRIAL, (((0,), "wrong"), ((1,), us))))
        results[own.randrange(len(results))] = ConfigTrace(COMPILE, TRIAL, (((0,), "crashed"),))
        traces.append(SpaceTrace(space, tuple(results)))
    return TuneTrace("a device", "sm_90", tuple(traces))


@pytest.fixture(scope="module")
def trace():
    return made()


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_recording_comes_back_as_it_was(trace, tmp_path):
    path = tmp_path / "folder" / "one.json.gz"
    trace.save(path)
    again = TuneTrace.load(path)
    assert (again.device, again.target) == (trace.device, trace.target)
    for mine, theirs in zip(trace.spaces, again.spaces, strict=True):
        assert mine.results == theirs.results
        assert (mine.space.problem, mine.space.family) == (theirs.space.problem, theirs.space.family)
        assert mine.space.configs == theirs.space.configs
        assert mine.space.costs == pytest.approx(theirs.space.costs, rel=1e-4)
    before = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a gzip file", "cannot read"),
        (gzip.compress(b"{ not json"), "not a recording"),
        (gzip.compress(b'{"format": 99}'), "make it again"),
        (gzip.compress(b"[1]"), "make it again"),
        (gzip.compress(json.dumps({"format": 1}).encode())[:-9], "damaged"),
    ],
    ids=["no gzip", "no JSON", "another format", "no record", "cut off"],  # compressed bytes hold the time
)
def test_what_is_no_recording_is_told_in_a_sentence(content, words, tmp_path):
    path = tmp_path / "bad.json.gz"
    path.write_bytes(content)
    with pytest.raises(AutotuneError, match=words):
        TuneTrace.load(path)
    with pytest.raises(AutotuneError, match="No such file"):
        TuneTrace.load(tmp_path / "missing")


def test_a_tuned_database_is_recorded_whole(tuned_db, tmp_path):
    with Store.open(tuned_db) as store:
        [device] = store.devices()
        found = trace_of(store, device)
    with closing(sqlite3.connect(tuned_db)) as connection:
        rows = connection.execute("""
            SELECT text, family, config, median_us, status, measurement.details FROM measurement
            JOIN kernel ON kernel.id = kernel_id JOIN problem ON problem.id = problem_id
            WHERE family != 'aten' AND NOT final""").fetchall()
    truth, spent = {}, {}
    for text, family, config, us, status, details in rows:
        at = (text, family, config)
        truth.setdefault(at, []).append(status if us is None else us)
        seconds = json.loads(details)["seconds"]
        spent[at] = spent.get(at, 0.0) + sum(seconds.get(step, 0.0) for step in ("load", "verify", "time"))
    assert rows and sum(len(traced.results) for traced in found.spaces) == len(truth)
    for traced in found.spaces:
        assert list(traced.space.costs) == sorted(traced.space.costs)
        for config, result in zip(traced.space.configs, traced.results, strict=True):
            at = (str(traced.space.problem), traced.space.family, json.dumps(config))
            assert sorted(came for _, came in result.launches) == pytest.approx(sorted(truth[at]), rel=1e-4)
            assert result.device_seconds == pytest.approx(spent[at], abs=1e-3) and result.compile_seconds > 0.1


def test_the_prior_is_that_of_the_gpu_itself(tmp_path):
    """Of parts of one architecture: sm90's own count, one of fewer multiprocessors, and one that did not say."""
    problem, found = parse("avg_pool2d n=4 h=8 w=8 c=64 r=3 s=3 stride=1 dtype=f16"), families()["cuda_avg_pool2d"]
    config = found.configs_for(problem, SM90)[0]
    costs = []
    for name, details in (("large", {"processors": 132}), ("small", {"processors": 20}), ("silent", {})):
        with Store.create(tmp_path / f"{name}.db") as store:
            device = store.put_device(name, "sm_90", flops_per_us=1.0, bytes_per_us=1.0, details=details)
            kernel = Kernel.of(found.name, config, "f16", problem.epilogue, "sm_90")
            library = store.put_library(b"x", compiler="c", **LIBRARY)
            row = store.put_kernel(identity(kernel, "0"), symbol="s", library_id=library.id)
            put_time(store, device, problem, row.id, launch={}, samples_us=[1.0], final=False)
            [traced] = trace_of(store, device).spaces
        costs += traced.space.costs
    expected = [found.cost(problem, config, replace(SM90, processors=count)) for count in (132, 20, 132)]
    assert costs == pytest.approx(expected) and expected[0] != expected[1]


# -- the simulation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_ends_at_the_best_of_all(trace, name):
    one = replay(trace, name, seed=1, cores=4)
    for problem, points in one.curves.items():
        assert len(points) == one.totals[problem] == 75
        assert points[-1].best_us == trace.best_us()[problem] == one.best_us[problem]
        assert one.excess_after(problem, 1.0) == 0.0
        bests = [point.best_us for point in points]
        assert bests == sorted(bests, reverse=True)
        assert [point.seconds for point in points] == sorted(point.seconds for point in points)
    assert one.excess_at(one.seconds) == 0.0 and one.tried == 1.0


def test_the_clock_is_what_compiling_and_measuring_take(trace):
    """75 kernels, each compiled once for three problems."""
    for cores in (1, 4, 16):
        seconds = replay(trace, "cost-model", seed=0, cores=cores).seconds
        compiling, measuring = 75 * COMPILE / cores, 3 * 75 * TRIAL
        assert max(compiling, measuring) < seconds < compiling + measuring + 3 * COMPILE
    quick = replay(trace, "cost-model", seed=0, cores=64).seconds
    assert quick < 3 * 75 * TRIAL + 3 * COMPILE, "measuring waits for compilers though something is ready"


def test_kernels_of_other_chains_are_compiled_for_themselves():
    apart = made(epilogues=("none", "relu", "bias"))
    one, shared = (replay(r, "cost-model", seed=0, cores=1).seconds for r in (apart, made()))
    assert one > 3 * 75 * COMPILE > shared


def test_the_same_seed_searches_the_same(trace):
    assert replay(trace, "tpe", 3, 4, 0.3) == replay(trace, "tpe", 3, 4, 0.3)
    assert replay(trace, DEFAULT_SAMPLER, 3, 4, 0.3) == replay(trace, DEFAULT_SAMPLER, 3, 4, 0.3)
    assert replay(trace, "random", 3, 4, 0.3) != replay(trace, "random", 4, 4, 0.3)


def test_budget_and_share_end_a_search(trace):
    short = replay(trace, "cost-model", 0, cores=4, budget=15.0)
    assert 10.0 < short.seconds < 15.0 + 4 * 3 * TRIAL
    some = replay(trace, "cost-model", 0, cores=4, share=0.2)
    assert all(len(points) == 15 for points in some.curves.values()) and some.tried == 0.2
    assert {len(points) for points in replay(trace, "cost-model", 0, 4, share=0.01).curves.values()} == {MIN_CONFIGS}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_share_is_of_all_families_of_a_problem(name, trace):
    """The second family has the same configs, and takes three times as long whatever its config."""
    traced = trace.spaces[0]
    other = Space(traced.space.problem, "g", traced.space.configs, traced.space.costs)
    slow = [
        ConfigTrace(COMPILE, TRIAL, (((0,), 3 * result.best_us if result.best_us else "crashed"),))
        for result in traced.results
    ]
    both = TuneTrace("a device", "sm_90", (traced, SpaceTrace(other, tuple(slow))))
    [points] = replay(both, name, seed=0, cores=4, share=0.2).curves.values()
    assert len(points) == 0.2 * 150


def test_a_kernel_is_measured_only_where_its_study_wants_it(trace):
    """The kernels of all three problems are the same; by chance they are asked for in different orders."""
    curves = replay(trace, "random", seed=0, cores=4, share=0.2).curves
    assert {len(of_one) for of_one in curves.values()} == {15}


def test_excess_counts_what_was_tried_by_then(trace):
    one = replay(trace, "random", seed=2, cores=4)
    problem, points = next(iter(one.curves.items()))
    at = 30
    assert one.excess_after(problem, at / 75) == points[at - 1].best_us / one.best_us[problem] - 1
    moment = points[at].seconds
    total = sum(next(s.best_us for s in reversed(other) if s.seconds <= moment) for other in one.curves.values())
    assert one.excess_at(moment) == pytest.approx(total / sum(one.best_us.values()) - 1)
    assert one.excess_at(0.0) == math.inf


def test_a_short_run_ends_with_something_for_every_problem():
    """Twelve chains, so no kernel serves two problems: on four cores four kernels of each would take 24 seconds."""
    ends = ("none", "relu", "gelu", "silu", "tanh", "sigmoid")
    chains = [*ends, *(f"bias,{end}" for end in ends[1:]), "bias"]
    one = replay(made(12, epilogues=chains), DEFAULT_SAMPLER, 0, cores=4, budget=16.0)
    assert all(one.curves.values())


def test_the_default_beats_the_others_where_layers_are_alike():
    """Mean excess over the best after 30 % of the configs, on recordings that nothing was chosen on."""
    seeds = range(4)
    mean = {}
    for name in ("random", "cost-model", "tpe", DEFAULT_SAMPLER):
        runs = [replay(made(4, seed=90 + seed), name, seed, 8, 0.3) for seed in seeds]
        found = [one.excess_after(problem, 0.3) for one in runs for problem in one.best_us]
        mean[name] = sum(found) / len(found)
    assert mean[DEFAULT_SAMPLER] <= 0.01 and mean[DEFAULT_SAMPLER] < min(
        mean["random"], mean["cost-model"], mean["tpe"]
    ), mean


# -- the script --------------------------------------------------------------------------------------------------------


def test_a_kernel_is_the_same_in_every_space_of_its_chain(trace):
    first, second, _ = trace.spaces
    config = first.space.configs[0]
    assert first.space.kernel(config, "sm_90") == second.space.kernel(config, "sm_90")
    assert isinstance(first.space.kernel(config, "sm_90"), Kernel)
