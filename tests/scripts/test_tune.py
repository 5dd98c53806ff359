"""The scripts as users run them: what they print, their exit codes, and what they say of mistakes."""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
import torch
from processes import HANG, TUNE, TUNED_BATCH, process, script
from repository import ROOT, SCRIPTS

from autotune.codegen import toolchain
from autotune.core import ToolchainError
from autotune_cli import command_line
from fused_resnet import FusedResNet
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import Store


def rows(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def assert_error(done, *words):
    """Exit code 2 and a single line that names what was wrong."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for word in words:
        assert word in lines[0]


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
    assert "sum" in done.stdout and str(path) in done.stdout.replace("\n", "")


def test_batch_sizes_are_tuned_one_after_the_other(tuned_db, tmp_path):
    path = shutil.copy(tuned_db, tmp_path / "two.db")
    other = TUNED_BATCH - 1
    words = [f"{TUNED_BATCH},{other}" if word == TUNED_BATCH else word for word in TUNE]
    done = script("tune", *words, "--db", path)
    assert done.returncode == 0, done.stderr
    titles = [done.stdout.find(f"batch {n}, f32") for n in (TUNED_BATCH, other)]
    assert -1 < titles[0] < titles[1] and done.stdout.count("database ") == 2
    of = "SELECT text FROM problem JOIN measurement ON problem_id = problem.id WHERE text LIKE '% n={} %' AND final"
    tuned = [{text.replace(f" n={n} ", " ") for (text,) in rows(path, of.format(n))} for n in (TUNED_BATCH, other)]
    assert tuned[0] == tuned[1] and len(tuned[0]) >= 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "sm42"], ["sm42", "sm80", "cpu"]),
        (["--arch", "sm70", "--dtype", "bf16"], ["bf16", "sm70", "f16"]),
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


def test_times_and_sizes_are_read_from_text():
    assert [command_line.seconds(text) for text in ("90s", "5m", "1h", "2.5", "0.5m")] == [90, 300, 3600, 2.5, 30]
    assert [command_line.positive(text) for text in ("1", "128")] == [1, 128]
    refused = {
        command_line.seconds: ("", "-5s", "5d", "s", "1e3", "nan"),
        command_line.positive: ("0", "-1", "x", "1.5", ""),
    }
    for function, texts in refused.items():
        for text in texts:
            with pytest.raises(argparse.ArgumentTypeError) as error:
                function(text)
            assert repr(text) in str(error.value)


def test_a_foreign_database_is_left_alone(tmp_path):
    foreign = tmp_path / "photos.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE photo (id INTEGER)")
        connection.commit()
    before = foreign.read_bytes()
    assert_error(script("tune", "--arch", "cpu", "--db", foreign), str(foreign), "not a tuning database")
    assert foreign.read_bytes() == before


def test_no_compiler_is_told_in_a_line(tmp_path):
    arguments = ("--arch", "cpu", "--trials", 1, "--budget", "1s", "--db", tmp_path / "x.db")
    done = process("tune", *arguments, env={**os.environ, "CXX": "/nonexistent"})
    assert_error(done, "/nonexistent", "install g++ or set CXX")


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


def start_tuning(path):
    """tune.py in a session of its own, as a terminal would run it."""
    python_with_sigint = ["env", "--default-signal=INT", sys.executable]  # a background job's children ignore it
    command = [*python_with_sigint, str(SCRIPTS / "tune.py"), "--arch", "cpu", "--batch", "2", "--trials", "30"]
    command += ["--budget", "5m", "--db", str(path)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def wait_for(condition, process):
    end = time.monotonic() + HANG
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.1)


def alive(group):
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def count(path, query):
    try:
        return rows(path, query)[0][0]
    except sqlite3.Error:
        return 0


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param("SELECT count(*) > 12 FROM problem", id="while the worker starts"),
        pytest.param("SELECT count(*) FROM measurement m JOIN kernel k ON k.id = kernel_id AND library_id", id="amid"),
    ],
)
def test_ctrl_c_keeps_what_was_done(reached, tmp_path):
    path = tmp_path / "stopped.db"
    process = start_tuning(path)
    try:
        wait_for(lambda: path.exists() and count(path, reached), process)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=HANG)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "Traceback" not in stderr and "Interrupted" in stdout + stderr
    with Store.open(path) as store:
        assert len(store.problems()) > 10
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert rows(path, reached)[0][0]
    end = time.monotonic() + HANG
    while alive(process.pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(process.pid), "a process outlives it"


# -- db.py -------------------------------------------------------------------------------------------------------------


def test_info_tells_devices_and_counts(tuned_db):
    done = script("db", "info", tuned_db)
    assert done.returncode == 0, done.stderr
    with Store.open(tuned_db) as store:
        [device] = store.devices()
        counts = store.counts()
    text = " ".join(done.stdout.split())
    assert device.name in text and device.target in text and "schema" in text
    for name, number in counts.items():
        assert f"{name} {number}" in text


def test_best_lists_every_problems_winner(tuned_db):
    done = script("db", "best", tuned_db, COLUMNS="160")
    assert done.returncode == 0, done.stderr
    for word in ("cpu_conv2d", "cpu_se_tail", "3x3/1 64>64 @16x16", "s2d 4x4 3 @64x64"):
        assert word in done.stdout


def test_list_shows_candidates_fastest_first(tuned_db):
    done = script("db", "list", tuned_db, "--most", 100, COLUMNS="240")
    assert done.returncode == 0, done.stderr
    assert "final" in done.stdout and "torch channels_last" in done.stdout and "se_tail n=3" in done.stdout
    times: list[float] = []
    groups = 0
    for line in done.stdout.splitlines():
        if line.startswith("  "):
            times.append(float(line.split()[0]))
        else:
            groups += 1
            assert times == sorted(times)
            times = []
    assert groups >= 15


def test_a_file_that_is_not_there_is_told_in_a_line(tmp_path):
    assert_error(script("db", "info", tmp_path / "absent.db"), "absent.db", "scripts/tune.py")


def test_output_into_a_closed_pipe_is_no_error(tuned_db):
    command = f"{sys.executable} {SCRIPTS / 'db.py'} list {tuned_db} --most 100 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout and "Traceback" not in done.stderr and "Exception" not in done.stderr


# -- db.py pack, bench.py ----------------------------------------------------------------------------------------------


def test_a_packed_database_runs_the_network_on_the_same_kernels(tuned_db, tmp_path):
    settled, packed = shutil.copy(tuned_db, tmp_path / "settled.db"), tmp_path / "packed.db"
    with closing(sqlite3.connect(settled)) as connection:  # a finalist that was faster in its trial is chance
        connection.execute("DELETE FROM measurement WHERE NOT final")
        connection.commit()
    done = script("db", "pack", settled, "--to", packed)
    assert done.returncode == 0, done.stderr
    assert packed.stat().st_size < settled.stat().st_size
    assert rows(packed, "SELECT count(*) FROM measurement")[0] < rows(settled, "SELECT count(*) FROM measurement")[0]
    unused = "SELECT count(*) FROM library WHERE id NOT IN (SELECT library_id FROM kernel WHERE library_id NOT NULL)"
    assert rows(packed, unused) == [(0,)]

    x = torch.randn(TUNED_BATCH, 3, 64, 64, generator=torch.Generator().manual_seed(5))
    plain = se_resnet9_fixup.randomize(se_resnet9_fixup.build(), seed=5)
    chosen, results = [], []
    for path in (settled, packed):
        net = FusedResNet(path)
        net.load_state_dict(plain.state_dict())
        chosen.append([(row.layer, row.kernel, row.source) for row in net.explain(x)])
        results.append(net(x))
    assert chosen[0] == chosen[1]
    assert torch.equal(*results)
    assert_error(script("db", "pack", settled, "--to", packed), str(packed), "exists")


def test_bench_records_and_draws_what_it_timed(tuned_db, tmp_path):
    words = ["--db", tuned_db, "--device", "cpu", "--batch", TUNED_BATCH, "--only", "fused", "--seconds", "0.2"]
    done = script("bench", *words, "--out", tmp_path, "--name", "tiny")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "tiny.json").read_text())
    variants = record["batches"][0]["variants"]
    assert {name: variant["status"] for name, variant in variants.items()} == {"fused": "ok"}
    for variant in variants.values():
        assert 0 <= variant["error"] < 1e-5
        assert 0 < variant["stream"]["low"] <= variant["stream"]["median"] <= variant["stream"]["high"]
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    assert "fused" in done.stdout
    assert_error(script("bench", "--device", "cpu", "--only", "nonsense"), "nonsense", "eager")


def test_bench_compares_databases_in_one_run(tuned_db, tmp_path):
    other = shutil.copy(tuned_db, tmp_path / "before.db")
    words = ["--db", tuned_db, "--device", "cpu", "--batch", TUNED_BATCH, "--only", "fused", "--seconds", "0.2"]
    done = script("bench", *words, "--against", other, "--out", tmp_path, "--name", "two")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "two.json").read_text())
    variants = record["batches"][0]["variants"]
    assert {name: variant["status"] for name, variant in variants.items()} == {"fused": "ok", "fused from before": "ok"}
    assert variants["fused from before"]["stream_ratio"]["rounds"] > 0
    assert [entry["file"] for entry in record["against"]] == ["before.db"]
    assert_error(script("bench", *words, "--against", other, "--against", other), "two have the same name")
    assert_error(script("bench", *words, "--against", tmp_path / "none.db"), "no tuning database", "none.db")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_mistakes_of_timing_are_shown_on_a_gpu_only():
    done = script("checks/timing_mistakes")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: torch sees no NVIDIA GPU: these mistakes occur on a GPU only\n"


def test_times_that_were_taken_in_another_way_are_not_mixed(tuned_db, tmp_path):
    path = shutil.copy(tuned_db, tmp_path / "resident.db")
    done = script("tune", "--arch", "cpu", "--batch", TUNED_BATCH, "--db", path, "--buffers", "rotating")
    assert done.returncode == 2
    held = f"{path} holds times measured with --buffers resident"
    assert done.stderr == f"error: {held}: give the same option, or another --db\n"
