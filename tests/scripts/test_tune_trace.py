"""`autotune tune --trace` on a CPU: the trace against the database of the same run."""

import json

import pytest
import trace_events
from databases import CONV, rows
from processes import script

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return what a run has printed, its database and its trace."""
    folder = tmp_path_factory.mktemp("traced")
    path, trace = folder / "traced.db", folder / "trace.json.gz"
    problems = [word for n in (1, 2) for word in ("--problem", CONV.format(n=n))]
    words = ["--arch", "cpu", "--trials", 8, "--budget", "20m", "--from-db", "none", "--db", path, "--trace", trace]
    done = script("tune", *problems, *words, AUTOTUNE_GENERATED=str(folder / "generated"))
    assert done.returncode == 0, done.stderr
    return done.stdout, path, trace_events.read(trace)


@pytest.fixture(scope="module")
def lanes(run):
    return trace_events.lanes(run[2], "tune")


def in_lane(lanes, name):
    """Return the slices of all rows of a lane."""
    return [one for lane, slices in lanes.items() if lane.split(" ")[0] == name for one in slices]


def as_text(problem, family, config, launch):
    return problem, family, json.dumps(config), json.dumps(launch)


def trials_of(lanes):
    return [one["args"] for one in in_lane(lanes, "device") if "family" in one["args"]]


def test_phases_and_stages_are_those_that_were_printed(run, lanes):
    printed, *_ = run
    assert [one["name"] for one in lanes["phases"]] == ["preparation", "search", "finals"]
    stages = [one["name"] for one in lanes["stages"]]
    assert stages[0] == "reading the database" and {"searching", "timing the finalists"} <= set(stages)
    assert all(f"  {stage}\n" in printed for stage in stages)


def test_every_kernel_of_the_database_was_compiled_once(run, lanes):
    _, path, _ = run
    compiled = [kernel for one in in_lane(lanes, "compiler") for kernel in one["args"]["kernels"]]
    stored = rows(path, "SELECT family, config FROM kernel WHERE library_id IS NOT NULL")
    texts = [" ".join([family, *(f"{k}={v}" for k, v in json.loads(config).items())]) for family, config in stored]
    assert stored and sorted(kernel.partition(" f32 [")[0] for kernel in compiled) == sorted(texts)


def test_every_measurement_of_the_database_is_a_slice_of_the_device(run, lanes):
    _, path, _ = run
    query = """SELECT text, family, config, launch FROM measurement
               JOIN kernel ON kernel.id = kernel_id JOIN problem ON problem.id = problem_id WHERE NOT final"""
    measured = [as_text(text, name, *map(json.loads, texts)) for text, name, *texts in rows(path, query)]
    tried = [as_text(*(args[key] for key in ("problem", "family", "config", "launch"))) for args in trials_of(lanes)]
    assert measured and sorted(tried) == sorted(measured)
    steps = [one["name"] for one in in_lane(lanes, "device") if one["name"] in ("load", "verify", "time")]
    assert steps == ["load", "verify", "time"] * len(tried)


def test_the_finals_have_the_times_that_decide(run, lanes):
    _, path, _ = run
    query = (
        "SELECT text, min(median_us) FROM measurement JOIN problem ON problem.id = problem_id WHERE final GROUP BY 1"
    )
    finals = [one["args"] for one in in_lane(lanes, "device") if one["name"].startswith("finals: ")]
    assert {args["problem"]: min(args["us"]) for args in finals} == dict(rows(path, query))


def test_what_was_chosen_was_tried_and_the_counters_end_with_the_result(run, lanes):
    _, _, trace = run
    search = in_lane(lanes, "search")
    assert {one["name"].partition(": ")[0] for one in search} >= {"enumerate", "choose"}
    ours = {as_text(*(args[key] for key in ("problem", "family", "config")), None)
            for args in trials_of(lanes) if args["family"] != "aten"}  # fmt: skip
    assert sum(one["args"].get("configs", 0) for one in search if "sampler" in one["args"]) >= len(ours) > 0
    tried = [e["args"]["value"] for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "candidates tried"]
    assert tried == sorted(tried) and tried[-1] == len(trials_of(lanes))
    assert {"emit", "load", "record", "time"} <= {one["name"] for one in in_lane(lanes, "tuner")}
