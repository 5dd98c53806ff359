"""`autotune db`: its commands and errors."""

import copy
import hashlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from signal import SIGINT, SIGTERM

import optuna
import pytest
import torch
import trial_database
from databases import alter, rows, told
from processes import HANG, TUNED_BATCH, assert_error, script
from repository import ROOT, SCRIPTS

from fused_resnet import FusedResNet
from fused_resnet.networks import se_resnet9_fixup
from tuning_db import DatabaseError, Store
from tuning_db.trust import signature

DATABASES = ROOT / "docs" / "guide" / "databases.md"


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


def test_list_shows_the_registers_of_kernels_for_a_gpu():
    done = script("db", "list", ROOT / "tuning_db" / "resnets_h200.db", "--most", 20, COLUMNS="240")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if " us  " in line]
    assert any(re.search(r"sm90_conv2d .*  \d+ registers, \d+ B of spills ", line) for line in lines)
    assert not any("registers" in line for line in lines if "us  torch" in line or "us  cuDNN" in line)


def test_a_file_that_is_not_there_is_told_in_a_line(tmp_path):
    assert_error(script("db", "info", tmp_path / "absent.db"), "absent.db", "autotune tune")


def test_output_into_a_closed_pipe_is_no_error(tuned_db):
    command = f"{sys.executable} {SCRIPTS / 'db.py'} list {tuned_db} --most 100 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_trials_open_as_studies_of_optuna(tuned_db, tmp_path):
    path = tmp_path / "studies.sqlite3"
    done = script("db", "export", "--optuna", tuned_db, path)
    assert done.returncode == 0, done.stderr
    studies = [optuna.load_study(study_name=name, storage=f"sqlite:///{path}") for name in names_of(path)]
    with Store.open(tuned_db) as store:
        [device] = store.devices()
        measured = {problem.text: store.measurements(device, problem.text) for problem in store.problems()}
    assert sum(len(timed_or_refused(study)) for study in studies) == sum(map(len, measured.values()))
    for study in studies:
        known = [
            row for row in measured[study.user_attrs["problem"]] if row.kernel.family == study.user_attrs["family"]
        ]
        exact = [row for row in known if row.status == "ok" and (row.final or len(row.samples_us) > 2)]
        if not exact:  # all are far slower than another family
            assert all(trial.state != optuna.trial.TrialState.COMPLETE for trial in study.trials)
        else:
            best = min(exact, key=lambda row: row.median_us)
            assert study.best_value == best.median_us
            assert json.loads(best.kernel.config).items() | best.launch.items() >= study.best_params.items()
        spent = [sum(row.details.get("seconds", {}).get(one, 0) for one in ("load", "verify", "time")) for row in known]
        durations = [trial.duration.total_seconds() for trial in timed_or_refused(study)]
        assert sorted(durations) == pytest.approx(sorted(spent), abs=1e-5) and max(durations) > 0
    conv = next(study for study in studies if study.user_attrs["family"] == "cpu_conv2d")
    choices = conv.trials[0].distributions["block_k"].choices
    assert all(trial.distributions["block_k"].choices == choices for trial in conv.trials) and len(choices) > 1
    assert any(trial.state == optuna.trial.TrialState.COMPLETE for study in studies for trial in study.trials)
    assert_error(script("db", "export", "--optuna", tuned_db, path), "exists")


def test_what_failed_is_a_failed_trial_and_what_was_too_slow_for_all_samples_a_pruned_one(tuned_db, tmp_path):
    changed, path = shutil.copy(tuned_db, tmp_path / "changed.db"), tmp_path / "studies.sqlite3"
    alter(
        changed,
        "UPDATE measurement SET final = 0, samples_us = '[7.0, 7.5, 8.0]'",
        "UPDATE measurement SET samples_us = '[9.0, 9.5]' WHERE id IN (2, 3)",
        "UPDATE measurement SET final = 1 WHERE id = 3",
        "UPDATE measurement SET status = 'wrong', error = 'y is 0', median_us = NULL WHERE id = 1",
        "UPDATE kernel SET error = 'no such register' WHERE id = (SELECT max(id) FROM kernel WHERE library_id > 0)",
    )
    assert script("db", "export", "--optuna", changed, path).returncode == 0
    studies = [optuna.load_study(study_name=name, storage=f"sqlite:///{path}") for name in names_of(path)]
    trials = [trial for study in studies for trial in study.trials]
    failed = [trial for trial in trials if trial.state == optuna.trial.TrialState.FAIL]
    errors = {trial.user_attrs["error"]: trial.user_attrs["status"] for trial in failed}
    assert errors == {"y is 0": "wrong", "no such register": "does not compile"}
    assert all(trial.value is None and trial.params for trial in failed)
    pruned = [trial.value for trial in trials if trial.state == optuna.trial.TrialState.PRUNED]
    assert [(value,) for value in pruned] == rows(changed, "SELECT median_us FROM measurement WHERE id = 2")


@pytest.mark.parametrize("text", ["not JSON", '{"format": "autotune tuning database", "schema": 4}'])
def test_a_failed_import_leaves_no_database(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    assert_error(script("db", "import", tmp_path / "a.json", tmp_path / "a.db"), "a.json")
    assert_error(script("db", "import", tmp_path / "absent.json", tmp_path / "a.db"), "absent.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_an_import_makes_a_database_or_adds_to_one(two, tmp_path):
    for source in two:
        assert script("db", "export", source, source.with_suffix(".json")).returncode == 0
    for source in two:
        done = script("db", "import", source.with_suffix(".json"), tmp_path / "both.db")
        assert done.returncode == 0 and f"database {tmp_path / 'both.db'}" in done.stdout.replace("\n", "")
    assert script("db", "merge", *two, "-o", tmp_path / "merged.db").returncode == 0
    assert told(tmp_path / "both.db") == told(tmp_path / "merged.db")


def test_the_guides_example_prints_each_study_that_has_a_best_trial(tmp_path, monkeypatch, capsys):
    trial_database.make(tmp_path / "trials.db")
    with closing(sqlite3.connect(tmp_path / "trials.db")) as connection:
        pruned = "UPDATE measurement SET samples_us = '[9.0, 9.5]' WHERE kernel_id IN "
        connection.execute(f"{pruned} (SELECT id FROM kernel WHERE family = 'cudnn')")
        connection.commit()
    assert script("db", "export", "--optuna", tmp_path / "trials.db", tmp_path / "studies.sqlite3").returncode == 0
    [example] = re.findall(r"```python\n(import optuna\n.*?)```", DATABASES.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    families = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(families) == ["aten", "tiled", "tiled"]
    assert "cudnn" in [name.split(" | ")[0] for name in names_of(tmp_path / "studies.sqlite3")]


def test_an_objective_that_was_not_measured_is_a_failed_trial_and_json_has_no_objectives(tuned_db, tmp_path):
    small, path = shutil.copy(tuned_db, tmp_path / "small.db"), tmp_path / "studies.sqlite3"
    alter(small, "DELETE FROM measurement WHERE problem_id > 3")
    assert_error(script("db", "export", "--objective", "energy", small, path), "--objective is an option of")
    assert script("db", "export", "--optuna", "--objective", "energy", small, path).returncode == 0
    [name, *_] = names_of(path)
    study = optuna.load_study(study_name=name, storage=f"sqlite:///{path}")
    assert study.trials and all(trial.state == optuna.trial.TrialState.FAIL for trial in study.trials)
    assert {trial.user_attrs["error"] for trial in study.trials} == {"an objective was not measured"}


def names_of(path):
    return optuna.get_all_study_names(f"sqlite:///{path}")


def timed_or_refused(study):
    return [trial for trial in study.trials if trial.user_attrs["status"] != "does not compile"]


def test_a_packed_database_runs_the_network_on_the_same_kernels(tuned_db, tmp_path):
    settled, packed = shutil.copy(tuned_db, tmp_path / "settled.db"), tmp_path / "packed.db"
    alter(settled, "DELETE FROM measurement WHERE NOT final")  # a finalist that was faster in its trial is chance
    done = script("db", "pack", settled, "--out", packed)
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
    assert_error(script("db", "pack", settled, "--out", packed), str(packed), "exists")


def test_the_commands(two, tmp_path):
    for arguments, words in [
        (("merge", *two, "-o", tmp_path / "m.db"), "added"),
        (("export", tmp_path / "m.db", tmp_path / "m.json"), "m.json"),
        (("import", tmp_path / "m.json", tmp_path / "i.db"), "added"),
        (("diff", tmp_path / "m.db", tmp_path / "i.db"), "in both"),
        (("info", tmp_path / "i.db"), "measured with: torch 2.0"),
    ]:
        done = script("db", *arguments)
        assert done.returncode == 0 and words in done.stdout, done.stderr
    assert told(tmp_path / "i.db") == told(tmp_path / "m.db")
    for arguments, words in [
        (("merge", *two, "-o", tmp_path / "m.db"), "m.db exists"),
        (("merge", two[0], tmp_path / "absent.db", "-o", tmp_path / "n.db"), "absent.db"),
        (("export", tmp_path / "m.db", tmp_path / "m.json"), "m.json exists"),
        (("import", two[0], tmp_path / "n.db"), "a.db"),
    ]:
        done = script("db", *arguments)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_signing_and_verifying(tuned_db, tmp_path):
    key, public, path = tmp_path / "key", tmp_path / "key.pub", tmp_path / "ship.db"
    shutil.copy(tuned_db, path)
    done = script("db", "keygen", key)
    assert done.returncode == 0 and signature.public_key(public) in done.stdout, done.stderr
    done = script("db", "verify", path)
    assert done.returncode == 0 and "no signature was checked" in done.stdout, done.stderr
    assert_error(script("db", "verify", "--key", public, path), "ship.db", "nobody signed it")
    assert script("db", "sign", "--key", key, path).returncode == 0
    for words, variables in ((("--key", public), {}), ((), {"AUTOTUNE_TRUSTED_KEYS": str(public)})):
        done = script("db", "verify", *words, path, **variables)
        assert done.returncode == 0 and "signed by a key that you trust" in done.stdout, done.stderr

    x = torch.randn(TUNED_BATCH, 3, 64, 64)
    network = FusedResNet(path, trusted_keys=[public])
    assert any(row.kernel.startswith("cpu_") for row in network.explain(x))
    assert copy.deepcopy(network).trusted_keys == network.trusted_keys == (signature.public_key(public),)
    model = se_resnet9_fixup.build()
    assert FusedResNet.from_model(model, path, trusted_keys=[public]).trusted_keys == network.trusted_keys
    for make in (FusedResNet, lambda *a, **k: FusedResNet.from_model(model, *a, **k)):
        with pytest.raises(DatabaseError, match="no valid signature by a key that you trust"):
            make(tuned_db, trusted_keys=[public])

    alter(path, "UPDATE library SET blob = zeroblob(9) WHERE id = (SELECT max(library_id) FROM kernel)")
    assert_error(script("db", "verify", path), "ship.db", "binary", "is damaged")
    assert_error(script("db", "sign", "--key", key, path), "is damaged")
    assert_error(script("db", "sign", "--key", public, path), "not a private Ed25519 key")
    assert_error(script("db", "sign", "--key", key, tmp_path / "absent.db"), "no tuning database")


def test_one_pass_keeps_two_databases_in_step(two, tmp_path):
    done = script("db", "sync", *two, "--once")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    counts = re.search(r"(\d+) rows to (\S+a\.db), (\d+) rows to (\S+b\.db) \(\d+\.\d s\)", line)
    assert counts and int(counts[1]) > 20 and int(counts[3]) > 20, line
    assert script("db", "sync", *two, "--once").stdout == ""
    done = script("db", "diff", *two)
    for row in ("device", "environment", "problem", "kernel", "measurement", "plan"):
        assert re.search(rf"{row} +0 +\d+ +0", done.stdout), done.stdout
    assert_error(script("db", "sync", two[0], two[0], "--once"), "a.db is named twice")
    assert_error(script("db", "sync", tmp_path / "x.db", tmp_path / "y.db", "--once"), "neither", "x.db", "y.db")
    (tmp_path / "text").write_text("no database, and longer than a header")
    assert_error(script("db", "sync", two[0], tmp_path / "text", "--once"), "not an SQLite file")


@pytest.mark.process
@pytest.mark.parametrize(("number", "code", "words"), [(SIGINT, 130, "interrupted"), (SIGTERM, 143, "SIGTERM")])
def test_passes_go_on_until_a_signal(two, tmp_path, number, code, words):
    late = tmp_path / "late.db"
    late.write_text("no database, and longer than a header")
    python_with_sigint = ["env", "--default-signal=INT", sys.executable]  # a background job's children ignore it
    command = [*python_with_sigint, str(SCRIPTS / "db.py"), "sync", str(two[0]), str(late), "--every", "0.1s"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "not an SQLite file; tried again every 0.1 s" in running.stdout.readline()
        shutil.copy(two[1], tmp_path / "whole.db")
        (tmp_path / "whole.db").rename(late)
        assert re.search(r"\d+ rows to \S+a\.db, \d+ rows to \S+late\.db", running.stdout.readline())
        with Store.create(late) as store:
            store.put_problem("conv2d later")
        assert "1 row to " in (line := running.stdout.readline()) and ", 0 rows to " in line
        running.send_signal(number)
        out, err = running.communicate(timeout=HANG)
    finally:
        running.kill()
    assert running.returncode == code and out == "" and words in err and len(err.splitlines()) == 1, (out, err)
    with Store.open(two[0]) as store:
        assert "conv2d later" in store.problem_texts()


def test_a_url_is_read_and_not_written(two, tmp_path):
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    url = f"{two[0].as_uri()}#sha256={hashlib.sha256(two[0].read_bytes()).hexdigest()}"
    for arguments, words in [
        (("info", url), f"{two[0].as_uri()}: schema"),
        (("verify", url), f"{two[0].as_uri()}: all rows are as they were stored"),
        (("merge", url, two[1], "-o", tmp_path / "m.db"), "added"),
        (("diff", url, tmp_path / "m.db"), "only in the second"),
    ]:
        done = script("db", *arguments, COLUMNS="200", **variables)
        assert done.returncode == 0 and words in done.stdout, done.stderr
    key = tmp_path / "key"
    signature.generate(key)
    script("db", "export", two[1], tmp_path / "b.json")
    for arguments in (("sign", "--key", key, url), ("import", tmp_path / "b.json", url), ("sync", url, two[1])):
        assert_error(script("db", *arguments, **variables), "a.db is a URL, which is only read")
    assert_error(script("db", "info", two[0].as_uri(), **variables), "append #sha256=DIGEST", "sha256sum")


def test_texts_of_a_database_are_no_markup(tuned_db, tmp_path):
    path = shutil.copy(tuned_db, tmp_path)
    with Store.create(path) as store:
        known = store.measurements(store.devices()[0], store.problems()[0].text)[0]
        which = {"device_id": known.device_id, "problem_id": known.problem_id, "kernel_id": known.kernel_id}
        result = {"status": "crashed", "error": "[/tmp/x.so] [enforce fail]", "relative_error": None, "median_us": None}
        details = {"spread_us": None, "samples_us": [], "final": False, "details": {}}
        store.put_measurement(**which, launch={"walk": 77}, **result, **details)
    done = script("db", "list", path, "--most", 100, COLUMNS="240")
    assert done.returncode == 0 and "[/tmp/x.so] [enforce fail]" in done.stdout, done.stderr


def test_kernels_of_a_server_are_refused_without_its_password():
    address = "postgresql+psycopg://me:secret@host/db"
    done = script("tune", "--arch", "cpu", "--problem", "gemm m=4 n=8 k=8 dtype=f32", "--from-db", address)
    assert_error(done, "is on a server", "me:***@host")
    assert "secret" not in done.stderr
