"""The scripts as users run them: what they print, their exit codes, and what they say of mistakes."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import optuna
import psutil
import pytest
import trace_events
from databases import CONV, alter, rows
from processes import HANG, TUNE, TUNED_BATCH, assert_error, process, script
from repository import ROOT, SCRIPTS

from autotune.codegen import toolchain
from autotune.core import ToolchainError
from autotune.ir import parse
from autotune.tuner import pareto_candidates
from tuning_db import Store

WORKER = "autotune.measure.worker_main"
GONE = 60.0
"""Seconds within which the processes of a run that has ended must be gone, on a busy machine."""

DONE = (optuna.trial.TrialState.COMPLETE,)
TWO_OBJECTIVES = ("--objective", "time", "--objective", "time-workspace")

# -- tune.py -----------------------------------------------------------------------------------------------------------


def test_a_second_run_resumes(tuned_db, tmp_path):
    path = tmp_path / "again.db"
    shutil.copy(tuned_db, path)
    compiled = "SELECT family, config, epilogue, source FROM kernel WHERE library_id IS NOT NULL ORDER BY id"
    measured = "SELECT id, kernel_id, median_us, final FROM measurement ORDER BY id"
    kernels, measurements = rows(path, compiled), rows(path, measured)
    done = script("tune", *TUNE, "--db", path)
    assert done.returncode == 0, done.stderr
    assert rows(path, compiled) == kernels and kernels
    after = rows(path, measured)
    assert after[: len(measurements)] == measurements
    assert all(final for *_, final in after[len(measurements) :])
    for layer in ("stem.0", "layers.0.0.conv1", "layers.3.0.se"):
        assert layer in done.stdout
    lines = done.stdout.splitlines()
    outcome = lines.index(f"database {path}")
    assert lines[outcome + 1] == f'FusedResNet(tuning_db="{path}")'
    assert "faster than" in " ".join(lines[outcome - 3 : outcome])
    assert any(line.startswith("sum ") for line in lines[outcome:]) and not any("preparation" in line for line in lines)
    assert "no kernels for the alternatives" not in done.stdout and max(map(len, lines)) <= 80 + len(str(path))


def test_details_are_told_if_asked_for(tuned_db, tmp_path):
    path = shutil.copy(tuned_db, tmp_path / "again.db")
    done = script("tune", *TUNE, "--verbose", "--db", path)
    assert done.returncode == 0, done.stderr
    for words in ("no kernels for the alternatives", "cpu_conv2d block_k", "preparation", "timing the finalists"):
        assert words in done.stdout


@pytest.mark.compile
def test_batch_sizes_are_tuned_together(tmp_path):
    path, batches = tmp_path / "two.db", (3, 2)
    model = ("--model", f"{ROOT / 'tests' / 'support' / 'door_networks.py'}:tailed", "--input", "8,9,9")
    limits = ("--arch", "cpu", "--trials", 1, "--budget", "20m", "--from-db", "none")
    done = script("tune", *model, "--batch", ",".join(map(str, batches)), *limits, "--db", path)
    assert done.returncode == 0, done.stderr
    titles = [done.stdout.find(f"batch {n}, f32") for n in batches]
    assert -1 < titles[0] < titles[1] and done.stdout.count("\ndatabase ") == done.stdout.count("  searching") == 1
    of = (
        "SELECT text FROM problem JOIN measurement ON problem_id = problem.id "
        "WHERE text LIKE '% n={} %' AND text NOT LIKE 'torch %' AND final"
    )
    tuned = [{text.replace(f" n={n} ", " ") for (text,) in rows(path, of.format(n))} for n in batches]
    assert tuned[0] == tuned[1] and len(tuned[0]) >= 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "sm42"], ["sm42", "sm80", "cpu"]),
        (["--arch", "sm70", "--dtype", "bf16"], ["bf16", "sm70", "f16"]),
        (["--arch", "cpu", "--sampler", "tpf"], ["tpf", "tpe", "module:Class"]),
        (["--arch", "cpu", "--sampler", "cmaes", *TWO_OBJECTIVES], ["cmaes supports one objective only", "transfer"]),
        (["--arch", "cpu", "--sampler", "optuna.samplers:Tpe"], ["optuna.samplers:Tpe", "no attribute 'Tpe'"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) and value[0].startswith("--") else "",
)
def test_names_that_do_not_exist_list_those_that_do(arguments, words, tmp_path):
    done = script("tune", *arguments, "--db", tmp_path / "x.db")
    assert_error(done, *words)
    assert not (tmp_path / "x.db").exists()


def test_numbers_that_are_none_are_refused():
    done = script("tune", "--arch", "cpu", "--budget", "soon")
    assert done.returncode == 2 and "'soon' is not a time: write 90s, 5m or 1h" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_a_budget_of_nothing_is_not_the_default(tmp_path):
    arguments = ("--arch", "cpu", "--problem", CONV.format(n=2), "--from-db", "none", "--db", tmp_path / "x.db")
    done = script("tune", *arguments, "--budget", "0s")
    assert "The budget ended before the measuring process had started: give a longer --budget" in " ".join(
        done.stdout.split()
    )


@pytest.mark.process
def test_a_foreign_database_is_left_alone(tmp_path):
    foreign = tmp_path / "photos.db"
    alter(foreign, "CREATE TABLE photo (id INTEGER)")
    before = foreign.read_bytes()
    assert_error(script("tune", "--arch", "cpu", "--db", foreign), str(foreign), "not a tuning database")
    assert foreign.read_bytes() == before


@pytest.mark.process
def test_no_compiler_is_told_in_a_line(tmp_path):
    arguments = ("--arch", "cpu", "--trials", 1, "--budget", "1s", "--db", tmp_path / "x.db")
    done = process("tune", *arguments, env={**os.environ, "CXX": "/nonexistent"})
    assert_error(done, "/nonexistent", "install g++ or set CXX")


@pytest.mark.compile
@pytest.mark.parametrize("sampler", ["transfer", "optuna.samplers:NSGAIISampler"])
def test_several_objectives_end_with_the_pareto_front_of_optuna(sampler, tmp_path):
    path, exported = tmp_path / "front.db", tmp_path / "studies.sqlite3"
    problem = CONV.format(n=2)
    limits = ("--trials", 8, "--gain", "0%", "--budget", "5m", "--inductor", "off", "--from-db", "none")
    done = script(
        "tune", "--arch", "cpu", "--problem", problem, *TWO_OBJECTIVES, "--sampler", sampler, *limits, "--db", path
    )
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("trade-offs: time, time-workspace")[2]
    assert "us MiB" in table
    with Store.open(path) as store:
        [device] = store.devices()
        front = pareto_candidates(store, device, parse(problem), ("time", "time-workspace"))
        tried = [row for row in store.measurements(device, problem) if row.kernel.family.startswith("cpu_")]
    assert len({row.kernel_id for row in tried}) >= 8
    assert front and all(f"{us:.4g}" in table and f"{product:.4g}" in table for _, (us, product) in front)
    assert script("db", "export", "--optuna", *TWO_OBJECTIVES, path, exported).returncode == 0
    together = optuna.create_study(directions=["minimize", "minimize"])
    for name in optuna.get_all_study_names(f"sqlite:///{exported}"):
        study = optuna.load_study(study_name=name, storage=f"sqlite:///{exported}")
        assert study.metric_names == ["time", "time-workspace"] and study.user_attrs["unit"] == "us, us MiB"
        together.add_trials([optuna.trial.create_trial(values=trial.values) for trial in study.get_trials(states=DONE)])
    assert {tuple(trial.values) for trial in together.best_trials} == {values for _, values in front}


@pytest.mark.compile
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there may be a GPU")
def test_without_a_gpu_kernels_are_compiled_and_nothing_is_timed(tmp_path):
    try:
        toolchain.for_target("sm_80")
    except ToolchainError as error:
        pytest.skip(str(error))
    path = tmp_path / "compiled.db"
    ours = ("cuda_avg_pool2d", "cuda_patch_conv2d", "cuda_se_tail", "cuda_space_to_depth")  # the quickly compiled
    only = [word for family in ours for word in ("--only", family)]
    done = script("tune", "--arch", "sm80", "--trials", 1, *only, "--db", path)
    assert done.returncode == 0, done.stderr
    assert "Nothing was timed" in done.stdout and "compiled for sm_80, 0 would not compile" in done.stdout
    assert "--only names no family that supports it" in " ".join(done.stdout.split())
    assert rows(path, "SELECT count(*) FROM measurement") == rows(path, "SELECT count(*) FROM device") == [(0,)]
    families = {family for (family,) in rows(path, "SELECT family FROM kernel WHERE library_id IS NOT NULL")}
    assert families == set(ours)
    assert {kind for (kind,) in rows(path, "SELECT DISTINCT kind FROM library")} == {"device_image"}
    with Store.open(path) as store:
        for kernel in store.kernels("sm_80"):
            assert kernel.symbol.encode() + b"_prepare" in store.binary(kernel.library)
    listed = script("db", "best", path)
    assert listed.returncode == 0 and "Nothing was timed" in listed.stdout


def start_tuning(path, **variables):
    """tune.py in a session of its own, as a terminal would run it."""
    python_with_sigint = ["env", "--default-signal=INT", sys.executable]  # a background job's children ignore it
    command = [*python_with_sigint, str(SCRIPTS / "tune.py"), "--arch", "cpu", "--problem", CONV.format(n=2)]
    command += ["--gain", "0%", "--budget", "5m", "--db", str(path), "--trace", str(path.with_suffix(".json"))]
    environment = {**os.environ, "TUNE": str(path), **variables}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment
    )


def wait_for(condition, process):
    end = time.monotonic() + HANG
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.1)


def processes_of(path):
    """Process id -> command line of all that the tuning run with a database has started, in whatever session."""
    found = {}
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.environ().get("TUNE") == str(path) and one.status() != psutil.STATUS_ZOMBIE:
                found[one.pid] = one.cmdline()
    return found


def assert_none_outlives(path):
    """Check that no process of a run is left; compilers that sleep and a worker at work would stay for long."""
    end = time.monotonic() + GONE
    while (left := processes_of(path)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def count(path, query):
    try:
        return rows(path, query)[0][0]
    except sqlite3.Error:
        return 0


def signal_to(process, number):
    """Send a signal to a run's process group, as a terminal does, and return its output once it has ended."""
    try:
        os.killpg(process.pid, number)
        return process.communicate(timeout=HANG / 5)  # less than the deadline of the measuring process's start
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.daily(1)
@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_was_done(number, tmp_path):
    path = tmp_path / "stopped.db"
    reached = "SELECT count(*) FROM measurement m JOIN kernel k ON k.id = kernel_id AND library_id"
    process = start_tuning(path)
    wait_for(lambda: path.exists() and count(path, reached), process)
    stdout, stderr = signal_to(process, number)
    assert_none_outlives(path)
    assert process.returncode == 128 + number
    assert "Traceback" not in stderr and "Interrupted. Every finished trial is kept" in stdout
    with Store.open(path) as store:
        assert len(store.problems()) == 1
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert rows(path, reached)[0][0]
    lanes = trace_events.lanes(trace_events.read(path.with_suffix(".json")), "tune")
    assert [one["name"] for one in lanes["phases"]][:2] == ["preparation", "search"]
    trials = [one for one in lanes["device"] if "status" in one["args"]]
    assert len(trials) >= rows(path, "SELECT count(*) FROM measurement WHERE NOT final")[0][0]


@pytest.mark.process
def test_a_signal_does_not_wait_for_the_start_of_the_measuring_process(tmp_path):
    path = tmp_path / "stopped.db"
    process = start_tuning(path)

    def workers():
        return [pid for pid, words in processes_of(path).items() if words[1:4] == ["-P", "-m", WORKER]]

    wait_for(workers, process)
    os.kill(workers()[0], signal.SIGSTOP)  # it takes minutes to start
    wait_for(lambda: path.exists() and count(path, "SELECT count(*) FROM problem"), process)
    stdout, stderr = signal_to(process, signal.SIGINT)
    assert_none_outlives(path)
    assert process.returncode == 130
    assert "Traceback" not in stderr and "Interrupted" in stdout + stderr
    lanes = trace_events.lanes(trace_events.read(path.with_suffix(".json")), "tune")
    assert lanes["stages"][0]["name"] == "reading the database"


@pytest.mark.process
def test_no_process_outlives_a_tuner_that_is_killed(tmp_path):
    path, compiler = tmp_path / "killed.db", tmp_path / "g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-dumpfullversion*) exec g++ "$@" ;; esac\nsleep 600\n')
    compiler.chmod(0o755)
    process = start_tuning(path, CXX=str(compiler), AUTOTUNE_GENERATED=str(tmp_path / "generated"))

    def all_at_work():
        lines = [words for words in processes_of(path).values() if words]
        return ["sleep", "600"] in lines and any(WORKER in words for words in lines)

    wait_for(all_at_work, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert_none_outlives(path)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_imports_is_told_in_a_line(number, tmp_path):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the starter of the tests ignores the signal, as nohup does, and so does the command")
    process = start_tuning(tmp_path / "none.db")

    def handles_signals():
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
        return caught >> (signal.SIGTERM - 1) & 1  # Python itself handles SIGINT alone

    while not handles_signals():
        assert process.poll() is None
    time.sleep(random.uniform(0, 0.3))
    stdout, stderr = signal_to(process, number)
    assert process.returncode == 128 + number
    assert (stdout, stderr) == ("", "interrupted\n" if number == signal.SIGINT else f"ended by {number.name}\n")


# -- db.py pack, bench.py ----------------------------------------------------------------------------------------------


def test_times_that_were_taken_in_another_way_are_not_mixed(tuned_db, tmp_path):
    path = shutil.copy(tuned_db, tmp_path / "resident.db")
    done = script("tune", "--arch", "cpu", "--batch", TUNED_BATCH, "--db", path, "--buffers", "rotating")
    assert done.returncode == 2
    held = f"{path} holds times measured with --buffers resident"
    assert done.stderr == f"error: {held}: give the same option, or another --db\n"
