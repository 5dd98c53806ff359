"""Two databases that are kept in step: each gets what only the other has, once, also while others write."""

import random
import threading
from collections import Counter

import pytest
from databases import CONV, LIBRARY, alter, fill, identity, put_device, put_time

from tuning_db import DatabaseError, Store
from tuning_db.share.snapshot import TABLES, comparable_rows, compiled_key, read
from tuning_db.share.sync import Moved, Sync

COMPARED = [table for table in TABLES if table != "library"]


def content(where):
    """Table -> its rows, the same in each database that has them."""
    with Store.open(where) as store:
        snapshot = read(store)
        for row in store.kernels("sm_90"):
            assert row.library is None or store.binary(row.library)
    return {table: Counter(comparable_rows(snapshot, table)) for table in COMPARED}


def trials(where):
    """The times of all measurements; those that `fill` adds differ."""
    with Store.open(where) as store:
        return Counter(
            row.median_us for problem in store.problems() for row in store.measurements(store.device("d"), problem.text)
        )


@pytest.fixture(params=["c", "another"], ids=["one compiler", "two compilers"])
def pair(request, tmp_path):
    """Two databases with devices, problems and kernels in common; those of two compilers contradict each other."""
    places = [tmp_path / "a.db", tmp_path / "b.db"]
    for seed, place, compiler in zip((0, 1), places, ("c", request.param), strict=True):
        with Store.create(place) as store:
            fill(store, seed, compiler=compiler)
    return places


def test_after_a_pass_both_have_all_rows(pair):
    before = [trials(place) for place in pair]
    moved = Sync(*pair).run_pass()
    assert moved.any and moved.to_first and moved.to_second
    assert content(pair[0]) == content(pair[1])
    assert trials(pair[0]) == before[0] + before[1]


def test_no_pass_adds_a_row_twice(pair):
    Sync(*pair).run_pass()
    once = [content(place) for place in pair]
    sync = Sync(*pair)
    for _ in range(3):
        assert not sync.run_pass().any
        assert not Sync(*reversed(pair)).run_pass().any
    assert [content(place) for place in pair] == once


def test_later_rows_of_both_are_moved_too(pair):
    sync = Sync(*pair)
    for seed in range(10, 16):
        with Store.create(pair[seed % 2]) as store:
            fill(store, seed, compiler="third", count=5)
        moved = sync.run_pass()
        assert (moved.to_second if seed % 2 == 0 else moved.to_first) > 0
        assert content(pair[0]) == content(pair[1])
        assert not sync.run_pass().any


def test_a_pass_without_news_writes_nothing(pair):
    sync = Sync(*pair)
    while sync.run_pass().any:
        pass
    before = [(place.read_bytes(), place.stat().st_mtime_ns) for place in pair]
    assert sync.run_pass() == Moved()
    assert Sync(*pair).run_pass() == Moved()
    assert [(place.read_bytes(), place.stat().st_mtime_ns) for place in pair] == before
    assert sorted(entry.name for entry in pair[0].parent.iterdir()) == ["a.db", "b.db"]


def test_three_databases_are_in_step_through_the_one_in_the_middle(pair, tmp_path):
    middle = tmp_path / "middle.db"
    first, second = Sync(pair[0], middle), Sync(middle, pair[1])
    for sync in (first, second, first):
        sync.run_pass()
    assert content(pair[0]) == content(pair[1]) == content(middle)
    assert not (first.run_pass().any or second.run_pass().any)


def kernel(store, compiler, source="0", error=None):
    library = None if error else store.put_library(compiler.encode() * 99, compiler=compiler, **LIBRARY)
    return store.put_kernel(identity("{}", source), symbol="s", error=error, library_id=library and library.id)


def measure(store, row, median_us):
    put_time(store, put_device(store), CONV.format(n=1), row.id, median_us)


def test_a_kernel_that_compiled_in_one_is_compiled_in_both(tmp_path):
    places = [tmp_path / "a.db", tmp_path / "b.db"]
    with Store.create(places[0]) as store:
        kernel(store, "c", error="no")
    with Store.create(places[1]) as store:
        kernel(store, "c")
    sync = Sync(*places)
    assert sync.run_pass().to_first > 0 and sync.run_pass() == Moved()
    assert content(places[0]) == content(places[1])
    with Store.open(places[0]) as store:
        [row] = store.kernels("sm_90")
        assert row.error is None and store.binary(row.library) == b"c" * 99


def test_a_kernel_that_a_database_has_under_two_sources_is_not_multiplied(tmp_path):
    places = [tmp_path / "a.db", tmp_path / "b.db"]
    with Store.create(places[0]) as store:
        one = kernel(store, "c")
        columns = {"symbol": one.symbol, "weight_layouts": one.weight_layouts, **identity("{}")}
        longer = compiled_key(columns, {"compiler": "c", **LIBRARY})[-1]
        for row, us in ((one, 1.0), (kernel(store, "c", source=longer), 2.0)):
            measure(store, row, us)
    with Store.create(places[1]) as store:
        measure(store, kernel(store, "another"), 3.0)
    for _ in range(4):
        Sync(*places).run_pass()
    assert trials(places[0]) == trials(places[1]) == {1.0: 1, 2.0: 1, 3.0: 1}


def test_the_higher_limits_of_a_device_are_those_of_both(tmp_path):
    places = [tmp_path / "a.db", tmp_path / "b.db"]
    for place, rates in zip(places, ((1.0, 8.0), (3.0, 2.0)), strict=True):
        with Store.create(place) as store:
            store.put_device("d", "sm_90", flops_per_us=rates[0], bytes_per_us=rates[1])
    assert Sync(*places).run_pass() == Moved(1, 1)
    for place in places:
        with Store.open(place) as store:
            assert (store.device("d").flops_per_us, store.device("d").bytes_per_us) == (3.0, 8.0)


def test_a_binary_that_both_have_is_not_read(pair):
    with Store.open(pair[0]) as store:
        whole = read(store)
        known = {row["digest"] for row in whole["library"][::2]}
        part = read(store, known=known)
    assert known and [row["blob"] for row in part["library"][::2]] == [None] * len(known)
    assert part["library"][1::2] == whole["library"][1::2]
    assert {**part, "library": []} == {**whole, "library": []}


def test_writers_of_both_lose_nothing_and_are_not_held_up(tmp_path):
    places, written, failed = [tmp_path / "a.db", tmp_path / "b.db"], [], []
    ended = threading.Event()
    for place in places:
        Store.create(place).close()

    def write(place, name):
        try:
            with Store.create(place) as store:
                rng = random.Random(name)
                while not ended.is_set():
                    us = rng.random()
                    measure(store, kernel(store, name, source=str(rng.randrange(7))), us)
                    written.append(us)
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(place, place.stem)) for place in places]
    for writer in writers:
        writer.start()
    sync = Sync(*places)
    counts = []
    while len(counts) < 3:
        sync.run_pass()
        counts.append(len(written))
    ended.set()
    for writer in writers:
        writer.join()
    while sync.run_pass().any:
        pass
    assert not failed and counts == sorted(set(counts)), "the writers wrote during each pass"
    assert content(places[0]) == content(places[1])
    assert trials(places[0]) == Counter(written)


@pytest.mark.process
def test_a_file_and_a_server_are_kept_in_step(pair, new_address):
    sync = Sync(pair[0], new_address)
    assert sync.run_pass().to_second > 0
    Sync(new_address, pair[1]).run_pass()
    assert sync.run_pass().to_first > 0 and not sync.run_pass().any
    assert content(pair[0]) == content(pair[1]) == content(new_address)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_file_that_is_missing_is_made(pair, tmp_path, missing):
    new = tmp_path / "folder" / "new.db"
    places = [new, pair[0]] if missing == 0 else [pair[0], new]
    Sync(*places).run_pass()
    assert content(new) == content(pair[0])


def test_two_files_that_are_missing_are_an_error(tmp_path):
    sync = Sync(tmp_path / "a.db", tmp_path / "b.db")
    with pytest.raises(DatabaseError, match=r"neither .*a\.db nor .*b\.db.*autotune tune"):
        sync.run_pass()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_kept_in_step_is_refused(pair, tmp_path):
    with pytest.raises(DatabaseError, match=r"a\.db is named twice"):
        Sync(pair[0], pair[0].parent / "." / pair[0].name)
    with pytest.raises(DatabaseError, match="is only read"):
        Sync(pair[0], f"https://host/model.db#sha256={'0' * 64}")
    (tmp_path / "text").write_text("no database, and longer than a header")
    with pytest.raises(DatabaseError, match="not an SQLite file"):
        Sync(tmp_path / "text", tmp_path / "new.db").run_pass()
    assert not (tmp_path / "new.db").exists()


def test_databases_that_contradict_each_other_stay_as_they_are(pair):
    alter(pair[1], "UPDATE device SET target = 'sm_80'", "DELETE FROM plan", "DELETE FROM measurement")
    before = [content(place) for place in pair]
    with pytest.raises(DatabaseError, match=r"'d' runs sm_.0 here and sm_.0 there"):
        Sync(*pair).run_pass()
    assert [content(place) for place in pair] == before
