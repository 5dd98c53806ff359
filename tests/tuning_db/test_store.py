"""The database: the rows it keeps, the ranking of candidates, and the errors for files that it cannot use."""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import closing, contextmanager
from threading import Thread

import pytest
import sqlalchemy as sa
from databases import put_device, put_time
from processes import HANG
from repository import ROOT

from tuning_db import DatabaseError, Store, open_reader, ranking
from tuning_db.location import APPLICATION_ID, SCHEMA_VERSION, SCHEMAS, has_tables
from tuning_db.schema import ProblemRow

CONV = "conv2d n=1 h=4 w=4 c=8 k=8 r=1 s=1 stride=1,1 pad=0,0 dilation=1,1 groups=1 dtype=f32 epilogue=none"
LIBRARY = {"kind": "shared_library", "target": "x86-64", "compiler": "c", "flags": "", "cutlass": "", "abi_version": 1}
KERNEL = {"family": "f", "config": "{}", "dtype": "f32", "epilogue": "none", "target": "x86-64", "source": "0"}


@contextmanager
def sql(path):
    """A plain connection, committed and closed at the end."""
    with closing(sqlite3.connect(path)) as connection:
        yield connection
        connection.commit()


def identity(**changed):
    return {**KERNEL, **changed}


def add(store, config, median_us, *, status="ok", final=False, launch=None, device="d", details=None):
    kernel = store.put_kernel(identity(config=config), symbol="s").id
    columns = {"launch": launch or {}, "status": status, "final": final, "details": details or {}}
    return put_time(store, put_device(store, device, "x86-64"), CONV, kernel, median_us, **columns)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "tuning.db"


@pytest.fixture
def filled(path):
    """A database with a binary and a few measurements."""
    with Store.create(path) as store:
        library = store.put_library(b"binary" * 1000, **LIBRARY)
        store.put_kernel(identity(config='{"a": 0}'), symbol="s0", library_id=library.id)
        add(store, '{"a": 1}', 5.0)
        add(store, '{"a": 2}', None, status="wrong")
    return path


def sentence(error):
    """The message, which must be one line that a user can act on."""
    text = str(error.value)
    assert "\n" not in text and "Traceback" not in text and "sqlalche" not in text.lower() and "SELECT" not in text
    return text


def assert_refused(action, *words):
    """Check that an action fails, and that the message has these words."""
    with pytest.raises(DatabaseError) as error:
        action()
    text = sentence(error)
    for word in words:
        assert word in text


# -- what it keeps -------------------------------------------------------------------


def test_what_was_written_is_there_after_reopening(filled):
    with Store.open(filled) as store:
        counts = store.counts()
        assert (counts["library"], counts["kernel"], counts["measurement"], counts["device"]) == (1, 3, 2, 1)
        assert counts["measurement: ok"] == counts["measurement: wrong"] == 1
        [kernel] = [row for row in store.kernels("x86-64") if row.library]
        assert store.binary(kernel.library) == b"binary" * 1000
        assert kernel.library.digest == hashlib.sha256(b"binary" * 1000).hexdigest()
        assert store.kernels("sm_80") == [] and store.device("other") is None
        assert store.device("d").flops_per_us == 1.0


def test_a_transaction_that_reads_sees_one_state(path):
    """Rows that a writer adds between two queries may refer to rows that the first query did not see."""
    with Store.create(path) as writer, Store.open(path) as reader:
        writer.put_problem("conv2d one")
        with reader.reading() as session:
            assert [row.text for row in session.scalars(sa.select(ProblemRow))] == ["conv2d one"]
            writer.put_problem("conv2d two")
            assert session.scalar(sa.select(sa.func.count()).select_from(ProblemRow)) == 1
        assert reader.problem_texts() == ["conv2d one", "conv2d two"]


def test_another_program_reads_it_as_sqlite(filled):
    with sql(filled) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("SELECT status, median_us FROM measurement ORDER BY id").fetchall() == [
            ("ok", 5.0),
            ("wrong", None),
        ]
        assert connection.execute("SELECT text, operator FROM problem").fetchall() == [(CONV, "conv2d")]


def test_closing_leaves_one_file(filled):
    assert [entry.name for entry in filled.parent.iterdir()] == [filled.name]


def test_the_same_row_is_found_and_not_added(path):
    with Store.create(path) as store:
        assert store.put_problem(CONV).id == store.put_problem(CONV).id
        assert store.put_library(b"x", **LIBRARY).id == store.put_library(b"x", **LIBRARY).id
        first = store.put_kernel(identity(), symbol="s")
        assert store.put_kernel(identity(), symbol="s").id == first.id
        assert store.put_kernel(identity(source="1"), symbol="s").id != first.id


def test_a_device_keeps_the_highest_rates_that_were_measured(path):
    for flops, moved in ((4.0, 2.0), (3.0, 5.0)):  # the first beside other work that took the memory
        with Store.create(path) as store:
            store.put_device("a CPU", "x86-64", flops_per_us=flops, bytes_per_us=moved)
    with Store.open(path) as store:
        assert [(one.flops_per_us, one.bytes_per_us) for one in store.devices()] == [(4.0, 5.0)]


def test_a_kernel_that_failed_to_compile_may_succeed_later(path):
    with Store.create(path) as store:
        failed = store.put_kernel(identity(), symbol="s", error="words")
        assert failed.error == "words" and failed.library is None
        library = store.put_library(b"x", **LIBRARY)
        store.put_kernel(identity(), symbol="s", library_id=library.id)
    with Store.open(path) as store:
        [row] = store.kernels("x86-64")
        assert row.error is None and store.binary(row.library) == b"x"


# -- whom it ranks first -------------------------------------------------------------------


def ranked(store):
    return [(row.kernel.config, row.median_us) for row in store.ranking(store.device("d"), CONV)]


def ranked_by_time(store):
    rows = ranking.ranked(store.measurements(store.device("d"), CONV, "ok"), finals_first=False)
    return [(row.kernel.config, row.median_us) for row in rows]


def test_ranking_is_by_time_of_the_right_ones_each_once(path):
    with Store.create(path) as store:
        for config, median in [("b", 3.0), ("a", 2.0), ("c", 4.0), ("a", 9.0), ("b", 2.5)]:
            add(store, config, median)
        add(store, "liar", None, status="wrong")
        add(store, "crash", None, status="crashed")
        add(store, "a", 0.1, device="another")
        assert ranked(store) == [("a", 2.0), ("b", 2.5), ("c", 4.0)]
        assert store.best_us(store.device("d"), CONV) == 2.0
        assert store.best_us(store.device("another"), CONV) == 0.1


def test_finals_come_before_trials_that_were_faster(path):
    with Store.create(path) as store:
        add(store, "lucky", 1.0)
        add(store, "a", 2.0)
        add(store, "b", 1.9)
        add(store, "a", 2.1, final=True)
        add(store, "b", 2.2, final=True)
        assert ranked(store) == [("a", 2.1), ("b", 2.2), ("lucky", 1.0)]
        assert ranked_by_time(store) == [("lucky", 1.0), ("b", 1.9), ("a", 2.0)]


def test_of_finalists_that_are_tied_the_smallest_workspace_is_chosen(path):
    finals = [  # config, median, interval, workspace
        ("fast", 2.00, (1.97, 2.04), 4096),
        ("tied", 2.015, (2.00, 2.05), 512),
        ("as_small", 2.01, (1.98, 2.06), 512),
        ("unknown", 2.018, (2.01, 2.09), None),
        ("clearly", 2.019, (2.05, 2.07), 0),
        ("slower", 2.03, (2.00, 2.09), 0),
    ]
    with Store.create(path) as store:
        for config, median, interval, workspace in finals:
            details = {"interval_us": interval} | ({} if workspace is None else {"workspace_bytes": workspace})
            add(store, config, median, final=True, details=details)
        add(store, "no_finalist", 1.0, details={"interval_us": (1.0, 3.0), "workspace_bytes": 0})
        order = ["unknown", "as_small", "tied", "fast", "clearly", "slower", "no_finalist"]
        assert [config for config, _ in ranked(store)] == order
        by_time = ["no_finalist", "fast", "as_small", "tied", "unknown", "clearly", "slower"]
        assert [config for config, _ in ranked_by_time(store)] == by_time


def test_launch_values_make_another_candidate(path):
    with Store.create(path) as store:
        add(store, "a", 2.0, launch={"threads": 0})
        add(store, "a", 1.0, launch={"threads": 1})
        rows = store.ranking(store.device("d"), CONV)
        assert [(row.launch["threads"], row.median_us) for row in rows] == [(1, 1.0), (0, 2.0)]


def test_measurements_without_a_time_come_last(path):
    with Store.create(path) as store:
        add(store, "bad", None, status="timed_out")
        add(store, "good", 2.0)
        assert [row.status for row in store.measurements(store.device("d"), CONV)] == ["ok", "timed_out"]


# -- files that cannot be used -------------------------------------------------------------------


@pytest.mark.parametrize("opened", [Store.open, Store.create])
def test_foreign_sqlite_file(opened, tmp_path):
    foreign = tmp_path / "photos.db"
    with sql(foreign) as connection:
        connection.execute("CREATE TABLE photo (id INTEGER)")
    before = foreign.read_bytes()
    assert_refused(lambda: opened(foreign), str(foreign), "not a tuning database")
    assert foreign.read_bytes() == before


@pytest.mark.parametrize("opened", [Store.open, Store.create])
@pytest.mark.parametrize("content", [b"words, not pages\n" * 100, b"x"])
def test_file_that_is_no_sqlite(opened, content, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_bytes(content)
    assert_refused(lambda: opened(text), str(text), "not an SQLite file")
    assert text.read_bytes() == content


@pytest.mark.parametrize("version", [0, SCHEMAS[0] - 1, SCHEMA_VERSION + 1])
@pytest.mark.parametrize("opened", [Store.open, Store.create, open_reader])
def test_another_schema(opened, version, filled):
    with sql(filled) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = filled.read_bytes()
    with pytest.raises(DatabaseError) as error:
        opened(filled)
    older = version < SCHEMA_VERSION
    assert f"{filled} has schema {version}, {'older' if older else 'newer'} than the" in sentence(error)
    assert ("tune again into a new file" if older else "upgrade the package") in sentence(error)
    assert filled.read_bytes() == before


def test_an_older_schema_is_read_and_gets_its_tables_when_it_is_written(filled):
    tables = ("dictionary", "extract")
    with Store.open(filled) as store:
        before = store.counts()
    with sql(filled) as connection:
        for table in tables:
            connection.execute(f"DROP TABLE {table}")
        connection.execute(f"PRAGMA user_version = {SCHEMAS[0]}")
    content = filled.read_bytes()
    read_all(filled)
    with Store.open(filled) as store, open_reader(filled) as reader:
        assert store.counts() == {name: count for name, count in before.items() if name not in tables}
        assert store.extracts() == [] and reader.problem_texts() == store.problem_texts()
    assert filled.read_bytes() == content
    with Store.create(filled) as store:
        assert store.counts() == before
    with sql(filled) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def read_all(path):
    """Open and read every row and every binary."""
    with Store.open(path) as store:
        for device in store.devices():
            for problem in store.problems():
                store.ranking(device, problem.text)
        for kernel in store.kernels("x86-64"):
            if kernel.library:
                store.binary(kernel.library)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_file(filled, share):
    content = filled.read_bytes()
    filled.write_bytes(content[: int(len(content) * share)])
    assert_refused(lambda: read_all(filled), str(filled))


def test_pages_of_garbage(filled):
    content = bytearray(filled.read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    filled.write_bytes(content)
    assert_refused(lambda: read_all(filled), str(filled), "restore it from a copy")


@pytest.mark.parametrize("damage", ["x'00'", "zeroblob(length(blob))", "x''", "substr(blob, 1, length(blob) - 1)"])
def test_damaged_binary(filled, damage):
    with sql(filled) as connection:
        connection.execute(f"UPDATE library SET blob = {damage}")
    assert_refused(lambda: read_all(filled), str(filled), "damaged", "tune again")


def test_another_binary_in_its_place(filled):
    with sql(filled) as connection:
        connection.execute("UPDATE library SET blob = ?", [zlib.compress(b"evil" * 1500)])
    with pytest.raises(DatabaseError, match="damaged"):
        read_all(filled)


def test_no_such_file(tmp_path):
    assert_refused(lambda: Store.open(tmp_path / "absent.db"), str(tmp_path / "absent.db"), "autotune tune")
    assert not (tmp_path / "absent.db").exists()


@pytest.mark.parametrize("opened", [Store.open, Store.create])
def test_a_folder_is_no_database(opened, tmp_path):
    assert_refused(lambda: opened(tmp_path), str(tmp_path))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert_refused(lambda: Store.create(tmp_path / "file" / "tuning.db"), str(tmp_path / "file"))


def test_reading_never_writes(filled):
    before = filled.read_bytes()
    with Store.open(filled) as store, pytest.raises(DatabaseError) as error:
        store.put_problem("conv2d other")
    assert "readonly" in sentence(error) and "writable" in sentence(error)
    assert filled.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_read_and_not_written(filled):
    filled.parent.chmod(0o555)
    filled.chmod(0o444)
    try:
        read_all(filled)
        with pytest.raises(DatabaseError) as error, Store.create(filled) as store:
            store.put_problem("conv2d other")
        assert str(filled) in sentence(error) and "writable" in sentence(error)
    finally:
        filled.parent.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_an_unreadable_file(filled):
    filled.chmod(0)
    assert_refused(lambda: Store.open(filled), str(filled))


@pytest.mark.parametrize("name", ["with space.db", "100%25.db", "a?b.db", "c#d.db", "ünïcode.db"])
def test_any_file_name_works(tmp_path, name):
    with Store.create(tmp_path / name) as store:
        store.put_problem(CONV)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    with Store.open(tmp_path / name) as store:
        assert [row.text for row in store.problems()] == [CONV]
    with Store.create(tmp_path / name) as store:
        assert [row.text for row in store.problems()] == [CONV]


# -- several processes -------------------------------------------------------------------

WRITER = f"""
import sys
from tuning_db import Store
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.create(path) as store:
    device = store.put_device("d", "x86-64", flops_per_us=1.0, bytes_per_us=1.0)
    for i in range(count):
        problem = store.put_problem({CONV!r})
        kernel = store.put_kernel({{**{KERNEL}, "family": name, "config": str(i)}}, symbol="s")
        store.put_library(f"shared {{i}}".encode(), **{LIBRARY})
        ids = {{"device_id": device.id, "problem_id": problem.id, "kernel_id": kernel.id}}
        store.put_measurement(**ids, status="ok", median_us=1.0)
        print(i, flush=True)
"""


def writer(path, name, count):
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.process
def test_two_writers_at_once_lose_nothing(path):
    count = 150
    writers = [writer(path, name, count) for name in ("one", "two")]
    for process in writers:
        process.communicate(timeout=HANG)
    assert [process.returncode for process in writers] == [0, 0]
    with sql(path) as connection:
        rows = connection.execute(
            "SELECT family, count(*) FROM measurement JOIN kernel ON kernel.id = kernel_id GROUP BY 1"
        )
        assert rows.fetchall() == [("one", count), ("two", count)]
        assert connection.execute("SELECT count(*) FROM device").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM library").fetchone() == (count,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_is_being_made_is_no_other_file(tmp_path):
    """A check that reads the file in several states refuses about half of these."""
    found = []

    def watch(path):
        try:
            while not (path.exists() and path.stat().st_size) or not has_tables(path):
                pass
        except DatabaseError as error:
            found.append(error)

    for number in range(20):
        path = tmp_path / f"{number}.db"
        watching = Thread(target=watch, args=(path,))
        watching.start()
        Store.create(path).close()
        watching.join()
    assert not found


def test_a_reader_sees_a_writers_rows_while_it_writes(path):
    with Store.create(path) as writing:
        add(writing, "a", 2.0)
        with Store.open(path) as reading:
            assert ranked(reading) == [("a", 2.0)]
            add(writing, "b", 1.0)
            assert ranked(reading) == [("b", 1.0), ("a", 2.0)]


def test_a_writer_closes_while_a_reader_has_the_file_open(path):
    with Store.create(path) as writing:
        add(writing, "a", 2.0)
        reading = Store.open(path)
        assert ranked(reading) == [("a", 2.0)]
    assert ranked(reading) == [("a", 2.0)]
    reading.close()


def test_a_writer_closes_while_another_program_reads(path):
    with Store.create(path) as store:
        add(store, "a", 2.0)
        add(store, "b", 2.0)
        other = sqlite3.connect(path)
        rows = other.execute("SELECT median_us FROM measurement")
        assert rows.fetchone() == (2.0,)
    assert rows.fetchone() == (2.0,)
    other.close()
    with Store.open(path) as store:
        assert store.counts()["measurement"] == 2


@pytest.mark.process
def test_a_killed_writer_loses_at_most_what_was_not_committed(path):
    process = writer(path, "victim", 100000)
    said = [process.stdout.readline() for _ in range(40)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    said += process.stdout.readlines()
    process.stdout.close()
    with sql(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        kept = connection.execute("SELECT count(*) FROM measurement").fetchone()[0]
    assert kept >= len(said) >= 40
    with Store.create(path) as store:  # and tuning goes on
        add(store, "after", 0.5)
        assert ranked(store)[0] == ("after", 0.5)
        assert store.counts()["measurement"] == kept + 1


@pytest.mark.process
def test_a_locked_file_is_waited_for(path):
    with Store.create(path) as store:
        store.put_problem(CONV)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    process = writer(path, "late", 1)
    time.sleep(3)
    assert process.poll() is None
    holder.execute("COMMIT")
    holder.close()
    process.communicate(timeout=HANG)
    assert process.returncode == 0
