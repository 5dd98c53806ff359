"""autotune verify: wrong kernels are found, named, left out from then on; drift; what cannot be verified is said."""

import sqlite3
from contextlib import closing

import pytest
import torch
from databases import alter, put_cpu, put_device, renew_digests, rows, with_wrong_kernel
from half_wrong import network, put_plan, write_family
from processes import TUNED_BATCH, assert_error, script
from seed_network import assert_right, fused, images
from tamper import add_plan

from autotune import families
from autotune.ir import network_text
from autotune.runtime import NetworkPlan, rankings
from autotune_cli import models
from tuning_db import Store, evidence, open_reader
from tuning_db.share.pack import pack

pytestmark = [pytest.mark.compile, pytest.mark.filterwarnings("ignore:.*is not tuned")]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user") / "families"
    write_family(folder)
    return folder


@pytest.fixture
def made(folder, tmp_path, monkeypatch):
    """The path of a database with a wrong kernel; evidence is kept beside it."""
    monkeypatch.setenv("AUTOTUNE_EVIDENCE", str(tmp_path / "evidence.db"))
    monkeypatch.setenv("AUTOTUNE_FAMILIES", str(folder))
    families.use([])
    put_plan(tmp_path / "a.db")
    yield tmp_path / "a.db"
    monkeypatch.delenv("AUTOTUNE_FAMILIES")
    families.use([])


@pytest.fixture
def tuned(tuned_db, tmp_path, monkeypatch):
    """A copy of the tuned database with a wrong kernel, and with a plan."""
    monkeypatch.setenv("AUTOTUNE_EVIDENCE", str(tmp_path / "evidence.db"))
    path, _, _ = with_wrong_kernel(tuned_db, tmp_path)
    add_plan(path)
    return path


def verify(path, *options):
    return script("verify", path, "--rounds", 3, "--device", "cpu", *options)


def bound(path):
    with open_reader(path) as store:
        return {item.layer.name: item.choice for item in NetworkPlan(network(), {}, store, CPU, graph=False).bound}


def test_a_kernel_that_is_wrong_beyond_a_size_is_found_and_avoided(made):
    before = bound(made)
    done = verify(made)
    assert done.returncode == 1, done.stdout + done.stderr
    [line] = done.stdout.splitlines()
    assert line.startswith(f"{network().key}: WRONG; large, half_wrong skipped=1: y holds values that are not finite")
    [problem] = evidence.quarantined()
    assert "c=50" in problem
    after = bound(made)
    assert after["small"] == before["small"], "it is right there"
    assert before["large"].candidate.config == '{"skipped": 1}' and after["large"].candidate.config == '{"skipped": 0}'
    assert after["large"].candidate.family == "half_wrong" and after["large"].source == "tuned"
    with open_reader(made) as store:
        [ranking] = rankings(store, network().layers[1].problem, CPU)
    assert [row.kernel.config for row in ranking.timed] == ['{"skipped": 0}'] and ranking.best_us == 2.0
    assert line.endswith("; on the next candidates of these layers it is right")
    again = verify(made)
    assert again.returncode == 0 and ": right; error " in again.stdout, again.stdout + again.stderr
    assert "1 layers run otherwise than planned, large first" in again.stdout
    assert evidence_of(made) == ["wrong", "right", "right"]


def test_a_damaged_evidence_file_changes_nothing(made):
    before = bound(made)
    verify(made)
    (made.parent / "evidence.db").write_bytes(b"no database, and longer than a header of SQLite")
    assert bound(made) == before
    done = verify(made)
    assert done.returncode == 1 and "WRONG; large" in done.stdout and "not kept for later runs" in done.stderr


def test_a_plan_that_takes_longer_than_recorded_has_drifted(made):
    verify(made)  # the wrong kernel is left out
    with Store.create(made) as store, store.writing() as session:
        plan = session.merge(store.plans()[0])
        plan.median_us = 1e-3
    renew_digests(made)
    done = verify(made)
    assert done.returncode == 3 and ": slower; error" in done.stdout and "tune again" in done.stdout, done.stdout
    assert evidence_of(made)[-1] == "slower"
    with Store.create(made) as store, store.writing() as session:
        plan = session.merge(store.plans()[0])
        plan.details = {**plan.details, "throttled": 3}
    done = verify(made)
    assert done.returncode == 0 and "not comparable: the device was slowed down when" in done.stdout, done.stdout


def evidence_of(path):
    return [status for (status,) in rows(path.parent / "evidence.db", "SELECT status FROM plan_check")]


def test_the_network_is_packed_merged_and_exported_with_the_plan(made, tmp_path):
    pack([made], tmp_path / "packed.db", 1)
    script("db", "export", tmp_path / "packed.db", tmp_path / "a.json")
    script("db", "import", tmp_path / "a.json", tmp_path / "b.db")
    script("db", "merge", tmp_path / "b.db", made, "-o", tmp_path / "c.db")
    for name in ("packed.db", "b.db", "c.db"):
        assert rows(tmp_path / name, "SELECT key, digest FROM network") == rows(made, "SELECT key, digest FROM network")
    assert verify(tmp_path / "c.db").returncode == 1


def test_another_batch_size_is_verified_with_the_same_text(made):
    with closing(sqlite3.connect(made)) as connection:
        assert connection.execute("SELECT count(*) FROM network").fetchone() == (1,)
    other = network(5)
    with Store.create(made) as store:
        plan = store.plans()[0]
        values = {name: getattr(plan, name) for name in ("device_id", "median_us", "spread_us", "choices", "details")}
        store.put_plan(network=network().with_batch(5).key, **values)
    assert other.layers == network().with_batch(5).layers
    done = verify(made, "--batch", "5")
    [line] = done.stdout.splitlines()
    assert "relus n=5" in line and "WRONG; large" in line, done.stdout


def test_what_cannot_be_verified_is_said(made, tmp_path):
    assert_error(verify(made, "--batch", "7"), "no such plan", network().key)
    assert_error(verify(made, "--plan", "no such text"), "--batch and --plan choose")
    assert_error(verify(tmp_path / "absent.db"), "no tuning database")
    assert_error(verify(made, "--write"), "give --model")
    assert_error(verify(made, "--model", "unet", "--input", "3,32,32"), "unet is the model of none of these plans")
    put_plan(tmp_path / "old.db", keeps_network=False)
    alter(tmp_path / "old.db", "DROP TABLE network")
    before = (tmp_path / "old.db").read_bytes()
    done = verify(tmp_path / "old.db")
    assert done.returncode == 2 and "not checked; a plan of an older version" in done.stdout, done.stderr
    assert "give --model" in done.stdout and (tmp_path / "old.db").read_bytes() == before
    with Store.create(tmp_path / "far.db") as store:
        far = put_device(store, "another GPU")
        store.put_plan(device_id=far.id, network="net n=1", median_us=1.0, spread_us=0.1, choices=[])
    assert_error(verify(tmp_path / "far.db"), "its plans are for another GPU")


def test_a_wrong_kernel_of_a_tuned_network_is_named_with_and_without_its_model(tuned):
    path = tuned
    for options in ((), ("--model", "se_resnet9_fixup")):
        (path.parent / "evidence.db").unlink(missing_ok=True)
        done = verify(path, *options)
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"n={TUNED_BATCH} " in done.stdout and "WRONG; " in done.stdout and "cpu_conv2d" in done.stdout
        assert evidence.quarantined()
    net = fused(path)
    assert_right(net, images(TUNED_BATCH))
    assert "never verified" not in str(net.explain(images(TUNED_BATCH)))
    again = verify(path, "--model", "se_resnet9_fixup")
    assert again.returncode in (0, 3) and "error " in again.stdout, again.stdout
    assert "verified on this driver and torch on 2" in str(net.explain(images(TUNED_BATCH)))
    assert "with this driver, torch and cuDNN: 1 of 1" in script("db", "info", path).stdout


def test_a_model_brings_the_network_of_an_older_plan(tuned, tmp_path):
    path = tuned
    alter(path, "DROP TABLE network")
    assert "give --model" in verify(path).stdout
    assert "WRONG" in verify(path, "--model", "se_resnet9_fixup", "--write").stdout
    assert "error " in verify(path).stdout
    script("db", "keygen", tmp_path / "key")
    assert script("db", "sign", "--key", tmp_path / "key", path).returncode == 0
    assert_error(verify(path, "--model", "se_resnet9_fixup", "--write"), "is signed")
    assert script("db", "verify", "--key", tmp_path / "key.pub", path).returncode == 0
    alter(path, "UPDATE network SET key = replace(key, 'n=', 'n=1')")
    assert_error(script("db", "verify", "--key", tmp_path / "key.pub", path), "table 'network' is damaged")


@pytest.mark.parametrize(
    ("dtype", "precision"), [("f32", None), ("bf16", None), ("f32", "tf32"), ("f32", "int8"), ("f16", "fp8")]
)
def test_plans_in_every_precision_are_verified_with_their_model(dtype, precision, tmp_path, monkeypatch):
    """They run on torch's operators: the plan chooses no kernel."""
    monkeypatch.setenv("AUTOTUNE_EVIDENCE", str(tmp_path / "evidence.db"))
    file, path = tmp_path / "model.py", tmp_path / "a.db"
    file.write_text("from architectures import ResNet, random_model\nmake = lambda: random_model(ResNet('basic'))\n")
    made = models.load(f"{file}:make", (3, 32, 32), None).network(2, dtype, precision)
    with Store.create(path) as store:
        values = {"device_id": put_cpu(store).id, "median_us": 1e9, "spread_us": 0.1, "choices": []}
        store.put_plan(network=made.key, **values)
        store.put_network(made.key, network_text.write(made))
    done = verify(path, "--model", f"{file}:make", "--input", "3,32,32")
    assert done.returncode == 0 and done.stdout.startswith(f"{made.key}: right; error "), done.stdout + done.stderr
    assert ("8-bit layers need" if "+" in made.key else "right; error") in verify(path).stdout
