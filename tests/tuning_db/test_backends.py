"""A database in a file and one on a PostgreSQL server behave the same; several processes share either."""

import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa
from databases import CONV, LIBRARY, fill, identity, put_time, told
from kill_tuner import tuner
from processes import HANG
from repository import ROOT

from tuning_db import DatabaseError, Store, open_reader, postgres_backend
from tuning_db import store as store_module
from tuning_db.share import json_export


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.process)])
def where(request, tmp_path):
    """Where a database may be made."""
    if request.param == "file":
        return tmp_path / "tuning.db"
    return request.getfixturevalue("new_address")


@contextmanager
def closing_engine(address, **options):
    engine = sa.create_engine(address, **options)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def plain(where):
    """A connection that shares no code with tuning_db."""
    if isinstance(where, str):
        with closing_engine(where) as connection:
            yield connection.exec_driver_sql
    else:
        with closing(sqlite3.connect(where)) as connection:
            yield connection.execute


def test_what_was_written_is_there_after_reopening(where, tmp_path):
    with Store.create(where) as store:
        fill(store, 3)
        json_export.export(store, tmp_path / "here.json")
    with Store.create(tmp_path / "file.db") as store:
        json_export.import_(tmp_path / "here.json", store)
        json_export.export(store, tmp_path / "there.json")
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    with Store.create(tmp_path / "direct.db") as store:
        fill(store, 3)
    query = "SELECT config, {}, median_us FROM measurement JOIN kernel ON kernel.id = kernel_id"
    with plain(where) as sql:
        launch = "launch::text" if isinstance(where, str) else "launch"
        rows = sql(query.format(launch)).fetchall()
    with closing(sqlite3.connect(tmp_path / "direct.db")) as sql:
        expected = sql.execute(query.format("launch")).fetchall()
    assert sorted(map(tuple, rows), key=str) == sorted(expected, key=str)
    assert told(tmp_path / "file.db")["problem"] == told(tmp_path / "direct.db")["problem"]


def test_reading_is_only_reading(where):
    with Store.create(where) as store:
        fill(store, 1)
    with Store.open(where) as store:
        ranking = store.ranking(store.device("d"), store.problems()[0].text)
        with open_reader(where) as database:
            found = database.ranking(database.device("d"), database.problem_texts()[0])
        assert ranking and [row.kernel_id for row in found] == [row.kernel_id for row in ranking]
        with pytest.raises(DatabaseError, match=r"readonly.*writable"):
            store.put_problem("conv2d other")


def test_opening_what_is_not_there(where):
    with pytest.raises(DatabaseError, match=r"no tuning database at .*make one with `autotune tune"):
        Store.open(where)


def test_newer_schema(where):
    Store.create(where).close()
    with plain(where) as sql:
        sql("UPDATE autotune_schema SET version = 99" if isinstance(where, str) else "PRAGMA user_version = 99")
        if isinstance(where, str):
            sql("COMMIT")
    for opened in (Store.open, Store.create):
        with pytest.raises(DatabaseError, match=r"schema 99.*upgrade"):
            opened(where)


@pytest.mark.process
def test_a_writer_on_a_server_says_that_it_waits(new_address, monkeypatch, caplog):
    monkeypatch.setattr(postgres_backend, "NOTICE_SECONDS", 0.1)
    with Store.create(new_address) as store, Store.create(new_address) as other, ThreadPoolExecutor() as pool:
        with store.writing():
            waiting = pool.submit(other.put_problem, CONV.format(n=1))
            wait([waiting], timeout=1)
        waiting.result()
    name = postgres_backend.name_of(new_address)
    assert [record.getMessage() for record in caplog.records] == [f"{name}: waiting for another process to write"]


def one(store):
    """A device, a problem's text and a kernel."""
    device = store.put_device("d", "sm_90", flops_per_us=1.0, bytes_per_us=1.0)
    return device, store.put_problem(CONV.format(n=1)).text, store.put_kernel(identity("{}"), symbol="s")


CLAIMER = f"""
import sys
from tuning_db import Store
store = Store.create(sys.argv[1])
device = store.put_device("d", "sm_90", flops_per_us=1.0, bytes_per_us=1.0)
kernel = store.put_kernel({identity("{}")}, symbol="s")
print(store.claim(device, {CONV.format(n=1)!r}, kernel, [{{"z": 0}}, {{"z": 1}}]), flush=True)
sys.stdin.readline()
store.close()
"""


def claimer(where):
    command = [sys.executable, "-c", CLAIMER, str(where)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.process
def test_a_trial_is_one_processs_until_it_is_recorded_or_the_process_ends(where):
    launches = [{"z": 0}, {"z": 1}]
    with Store.create(where) as store:
        device, problem, kernel = one(store)
        other = claimer(where)
        assert other.stdout.readline().strip() == str(launches)
        assert store.claim(device, problem, kernel, launches) is None
        other.kill()
        other.communicate()
        assert store.claim(device, problem, kernel, launches) == launches
        second = claimer(where)
        assert second.stdout.readline().strip() == "None"
        put_time(store, device, problem, kernel.id, None, launch={"z": 0}, status="wrong")
        assert store.claim(device, problem, kernel, launches) == [{"z": 1}]
        assert store.claim(device, problem, kernel, launches[:1]) == []
        second.communicate("\n")
    with plain(where) as sql:
        assert sql("SELECT count(*) FROM claim").fetchone()[0] == 0


@pytest.mark.process
def test_another_machines_claim_ends_with_its_lease(where, monkeypatch):
    with Store.create(where) as store:
        device, problem, kernel = one(store)
        monkeypatch.setattr(store_module, "_machine", lambda: "another/1")
        with Store.create(where) as there:
            assert there.claim(device, problem, kernel, [{}]) == [{}]
            monkeypatch.undo()
            assert store.claim(device, problem, kernel, [{}]) is None
            now = time.time()
            assert store.remove_abandoned_claims() == 0
            monkeypatch.setattr(time, "time", lambda: now + store_module.LEASE + 1)
            assert store.claim(device, problem, kernel, [{}]) == [{}]


def test_claims_of_dead_processes_are_counted_once(where, monkeypatch):
    with Store.create(where) as store:
        device, problem, kernel = one(store)
        monkeypatch.setattr(store_module, "own_id", lambda: f"{store_module._machine()} 1 another-start")
        assert store.claim(device, problem, kernel, [{}]) == [{}]
        monkeypatch.undo()
        assert (store.remove_abandoned_claims(), store.remove_abandoned_claims()) == (1, 0)


WRITER = f"""
import sys
from tuning_db import Store
where, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.create(where) as store:
    device = store.put_device("d", "sm_90", flops_per_us=1.0, bytes_per_us=1.0)
    for i in range(count):
        library = store.put_library(f"shared {{i}}".encode(), compiler="c", **{LIBRARY})
        identity = {{**{identity("")}, "config": str(i)}}
        kernel = store.put_kernel(identity, symbol="s", library_id=library.id)
        problem = store.put_problem(f"conv2d {{i % 7}}")
        ids = {{"device_id": device.id, "problem_id": problem.id, "kernel_id": kernel.id}}
        if store.claim(device, problem.text, kernel, [{{}}]):
            store.put_measurement(**ids, status="ok", median_us=1.0, error=name)
"""


@pytest.mark.process
def test_writers_at_once_do_each_trial_once_and_lose_nothing(where):
    count = 60
    commands = [[sys.executable, "-c", WRITER, str(where), name, str(count)] for name in ("one", "two", "three")]
    writers = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    assert [process.wait(HANG) for process in writers] == [0, 0, 0]
    with plain(where) as sql:
        assert sql("SELECT count(*) FROM measurement").fetchone()[0] == count
        assert sql("SELECT count(DISTINCT kernel_id) FROM measurement").fetchone()[0] == count
        assert sql("SELECT count(*) FROM kernel").fetchone()[0] == count
        assert sql("SELECT count(*) FROM library").fetchone()[0] == count
        assert sql("SELECT count(*) FROM problem").fetchone()[0] == 7


@pytest.mark.daily(1)
@pytest.mark.process
def test_two_tuners_at_once_share_the_work(where, folders):
    processes = [tuner(where, 2) for _ in range(2)]
    said = [sum(map(int, process.communicate(timeout=HANG)[0].split())) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    with plain(where) as sql:
        trials = sql("SELECT count(*) FROM measurement WHERE NOT final").fetchone()[0]
        key = "device_id, problem_id, kernel_id, CAST(launch AS TEXT)"
        distinct = sql(f"SELECT count(*) FROM (SELECT DISTINCT {key} FROM measurement WHERE NOT final) AS t")
        assert trials == distinct.fetchone()[0] == sum(said) > 0
        assert sql("SELECT count(DISTINCT problem_id) FROM measurement WHERE final").fetchone()[0] == 3


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:1/x", "check that the server runs"),
        ("mysql://me:secret@h/x", "name a file, or a server as postgresql"),
        ("postgresql+psycopg://:::", "not the address of a database"),
    ],
)
def test_addresses_that_lead_nowhere(address, words):
    pytest.importorskip("psycopg")
    for opened in (Store.open, Store.create):
        with pytest.raises(DatabaseError) as error:
            opened(address)
        assert words in str(error.value) and "secret" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.process
def test_a_database_that_the_server_does_not_have(server):
    with pytest.raises(DatabaseError, match=r"does not exist; make it on the server"):
        Store.create(server.format("absent"))


@pytest.mark.process
def test_a_lost_connection_is_made_anew(server):
    with closing_engine(server.format("postgres"), isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CREATE DATABASE lost")
        with Store.create(server.format("lost")) as store:
            store.put_problem(CONV.format(n=1))
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'lost'"
            assert connection.exec_driver_sql(ended).fetchall() == [(True,)]
            store.put_problem(CONV.format(n=2))
            assert len(store.problems()) == 2
