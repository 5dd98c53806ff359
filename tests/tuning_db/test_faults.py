"""A database whose writer is killed, whose disk is full, or whose file is read-only or locked."""

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from databases import CONV, LIBRARY, fill, identity
from kill_tuner import check, kill, trial_rows, tuner
from processes import HANG
from repository import ROOT

from tuning_db import DatabaseError, Store, location
from tuning_db.store import is_alive, own_id

NOBODY = 65534


@pytest.mark.daily(2, "whole runs")
@pytest.mark.process
def test_a_tuner_killed_at_random_moments_loses_nothing_and_goes_on(tmp_path, folders):
    path = tmp_path / "tuning.db"
    rng = random.Random()
    for _ in range(2):
        kill(path, rng, 3.0, trials=24)
    before = trial_rows(check(path)) if path.exists() else []
    last = tuner(path, trials=2)
    said = sum(map(int, last.communicate(timeout=HANG)[0].split()))
    assert last.returncode == 0
    found = check(path)
    assert len(trial_rows(found)) == len(before) + said
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_creation_that_was_killed_is_no_obstacle(tmp_path):
    path = tmp_path / "begun.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # the first thing that happens to a new file
    assert path.stat().st_size
    with pytest.raises(DatabaseError, match=r"is empty.*run `autotune tune"):
        Store.open(path)
    with Store.create(path) as store:
        store.put_problem(CONV.format(n=1))
    with Store.open(path) as store:
        assert store.counts()["problem"] == 1


# -- no room ---------------------------------------------------------------------------------------------------------

FILLER = f"""
import os, resource, sys
from tuning_db import DatabaseError, Store
path, limit = sys.argv[1], int(sys.argv[2])
store = Store.create(path)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    while True:
        library = store.put_library(os.urandom(20000), compiler="c", **{LIBRARY})
        print(library.digest, flush=True)
except DatabaseError as error:
    print(error, file=sys.stderr)
    store.close()
    sys.exit(2)
"""


def fill_up(path, limit=0):
    """Write until there is no room; returns the digests that were said to be in the file."""
    command = [sys.executable, "-c", FILLER, str(path), str(limit)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 2, done.stderr
    assert str(path) in done.stderr and "what was committed is safe" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stdout.split()


def binaries(path):
    with Store.open(path) as store, store.reading() as session:
        rows = session.connection().exec_driver_sql("SELECT digest FROM library ORDER BY id").fetchall()
    check(path)
    return [digest for (digest,) in rows]


def goes_on(path, said):
    assert said and binaries(path) == said
    with Store.create(path) as store:
        store.put_library(b"more", compiler="c", **LIBRARY)
    assert binaries(path)[:-1] == said


@pytest.mark.process
def test_a_file_at_its_limit_keeps_what_was_committed(tmp_path):
    goes_on(tmp_path / "tuning.db", fill_up(tmp_path / "tuning.db", 2**20))


@pytest.mark.process
def test_a_full_disk_keeps_what_was_committed(tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)]
    if subprocess.run(mounted, check=False, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        ballast = tmp_path / "ballast"
        ballast.write_bytes(os.urandom(2_200_000))
        said = fill_up(tmp_path / "tuning.db")
        ballast.unlink()  # room again, also to move what the log holds into the file
        goes_on(tmp_path / "tuning.db", said)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# -- no right --------------------------------------------------------------------------------------------------------


def as_somebody(code, path):
    """Run code as a user whom permissions bind, which root is not."""
    command = [sys.executable, "-c", BECOME + code, str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


BECOME = f"""
import os, sys, tempfile
from tuning_db import DatabaseError, Store
with tempfile.TemporaryDirectory() as folder:  # all that may be imported is: that user may not read it
    Store.create(folder + "/tuning.db").close()
    Store.open(folder + "/tuning.db").close()
if os.geteuid() == 0:
    os.setgid({NOBODY})
    os.setuid({NOBODY})
"""
READ = """
with Store.open(sys.argv[1]) as store:
    device = store.devices()[0]
    print(sum(len(store.ranking(device, row.text)) for row in store.problems()))
"""
WRITE = """
try:
    with Store.create(sys.argv[1]) as store:
        store.put_problem("conv2d other")
except DatabaseError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def public():
    """A folder that another user may look into."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.chmod(name, 0o755)


@pytest.fixture(params=["closed", "left by a killed tuner"])
def anyones(request, public):
    """A database that another user may read."""
    path = public / "tuning.db"
    with Store.create(path) as store:
        fill(store, 1)
    if request.param == "left by a killed tuner":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    path.chmod(0o444)
    return path


@pytest.mark.process
def test_a_read_only_folder_is_read_and_never_written(anyones):
    anyones.parent.chmod(0o555)
    before = anyones.read_bytes()
    read, written = as_somebody(READ, anyones), as_somebody(WRITE, anyones)
    assert read.returncode == 0 and int(read.stdout) > 5, read.stderr
    assert written.returncode == 1 and "Traceback" not in written.stderr
    assert str(anyones) in written.stderr and "writable" in written.stderr
    assert anyones.read_bytes() == before


@pytest.mark.process
def test_a_folder_in_which_nothing_can_be_made(public):
    public.chmod(0o555)
    written = as_somebody(WRITE, public / "new.db")
    assert written.returncode == 1 and "Traceback" not in written.stderr
    assert str(public / "new.db") in written.stderr and "writable" in written.stderr


# -- no turn, no clock -------------------------------------------------------------------------------------------------


def test_a_file_that_stays_locked(tmp_path, monkeypatch):
    path = tmp_path / "tuning.db"
    monkeypatch.setattr(location, "LOCK_SECONDS", 0.3)
    with Store.create(path) as store:
        store.put_problem(CONV.format(n=1))
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseError, match=r"tuning\.db: database is locked; another process holds it"):
                store.put_problem(CONV.format(n=2))
            assert [row.text for row in store.problems()] == [CONV.format(n=1)], "reading does not wait"
        store.put_problem(CONV.format(n=2))
        assert store.counts()["problem"] == 2


WAIT = """
import sys
from tuning_db import DatabaseError, Store, location, open_reader
location.LOCK_SECONDS, location.NOTICE_SECONDS = 1.5, 0.2
for opened in (open_reader, Store.open, Store.create):
    try:
        opened(sys.argv[1])
    except DatabaseError as error:
        print(error, flush=True)
"""


@pytest.mark.process
def test_a_process_that_waits_says_at_once_for_whom(tmp_path):
    path = tmp_path / "tuning.db"
    Store.create(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        done = subprocess.run(
            [sys.executable, "-c", WAIT, str(path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG
        )
    notices, errors = done.stderr.splitlines(), done.stdout.splitlines()
    assert len(notices) == len(errors) == 3
    for notice, error in zip(notices, errors, strict=True):
        assert notice.startswith(f"{path} is locked by process {os.getpid()} (") and notice.endswith("for up to 2 s")
        assert error == f"{path}: database is locked; another process holds it: wait for that process to end"


def test_a_wait_for_a_connection_of_the_same_process_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(location, "NOTICE_SECONDS", 0.1)
    monkeypatch.setattr(location, "LOCK_SECONDS", 0.3)
    with Store.create(tmp_path / "tuning.db") as store, Store.create(tmp_path / "tuning.db") as other:
        with store.writing(), pytest.raises(DatabaseError, match="database is locked"):
            other.put_problem(CONV.format(n=1))
        other.put_problem(CONV.format(n=1))
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"{tmp_path / 'tuning.db'} is locked by another connection of this process"
    ]


@pytest.mark.process
@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps_changes_no_order_and_no_claim(tmp_path, monkeypatch, jump):
    path = tmp_path / "tuning.db"
    with Store.create(path) as store:
        device = store.put_device("d", "sm_90", flops_per_us=1.0, bytes_per_us=1.0)
        kernel = store.put_kernel(identity("{}"), symbol="s")
        problem = store.put_problem(CONV.format(n=1))
        for median in (2.0, 1.0):  # the newer plan counts, whatever its time of recording says
            plan = store.put_plan(device_id=device.id, network="n", median_us=median, spread_us=0.0, choices=[])
            now = time.time()
            monkeypatch.setattr(time, "gmtime", lambda now=now, of=time.gmtime: of(now + jump))
            monkeypatch.setattr(time, "time", lambda now=now: now + jump)
        assert store.plan(device, "n").id == plan.id
        assert is_alive(own_id(), 0.0) and store.claim(device, problem.text, kernel, [{}]) == [{}]
        gone = subprocess.run(
            [sys.executable, "-c", "from tuning_db.store import own_id; print(own_id())"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        assert not is_alive(gone, time.time())
