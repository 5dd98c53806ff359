"""Databases merged, packed, exported, imported and compared: no row is lost, and none is there twice."""

import json
import sqlite3
from contextlib import closing

import pytest
from databases import CONV, LIBRARY, identity, put_device, put_time, told

from tuning_db import DatabaseError, Store
from tuning_db.location import SCHEMA_VERSION
from tuning_db.share import diff, json_export
from tuning_db.share.merge import merge_into
from tuning_db.share.pack import merge, pack
from tuning_db.share.snapshot import read


def binaries(path):
    """Kernel -> its binary, checked."""
    with Store.open(path) as store:
        rows = [row for row in store.kernels("sm_90") if row.library]
        return {(row.config, row.source): store.binary(row.library) for row in rows}


def test_merged_is_the_union(two, tmp_path):
    merge(two, tmp_path / "out.db")
    parts, whole = [told(path) for path in two], told(tmp_path / "out.db")
    for table in ("device", "environment", "problem", "measurement", "plan"):
        assert whole[table] == parts[0][table] | parts[1][table], table
    assert {row[:6] for row in whole["kernel"]} == {row[:6] for part in parts for row in part["kernel"]}
    assert {**binaries(two[1]), **binaries(two[0])}.items() <= binaries(tmp_path / "out.db").items()
    assert not list(tmp_path.glob(".*")), "something was left behind"


def test_merging_again_adds_nothing(two, tmp_path):
    merge(two, tmp_path / "once.db")
    outcome = merge([tmp_path / "once.db", *two, tmp_path / "once.db"], tmp_path / "twice.db")
    assert told(tmp_path / "twice.db") == told(tmp_path / "once.db")
    assert outcome.others == []


def test_the_higher_limits_of_a_device_count(tmp_path):
    for name, rates in (("a", (1.0, 8.0)), ("b", (3.0, 2.0))):
        with Store.create(tmp_path / f"{name}.db") as store:
            store.put_device("d", "sm_90", flops_per_us=rates[0], bytes_per_us=rates[1])
    merge([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "out.db")
    with Store.open(tmp_path / "out.db") as store:
        [device] = store.devices()
        assert (device.flops_per_us, device.bytes_per_us) == (3.0, 8.0)


def test_a_device_with_two_targets_is_refused_and_nothing_written(tmp_path):
    for target in ("sm_80", "sm_90"):
        with Store.create(tmp_path / f"{target}.db") as store:
            store.put_device("NVIDIA X", target, flops_per_us=1.0, bytes_per_us=1.0)
    with pytest.raises(DatabaseError, match=r"'NVIDIA X' runs sm_80 here and sm_90 there.*nothing was merged"):
        merge([tmp_path / "sm_80.db", tmp_path / "sm_90.db"], tmp_path / "out.db")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["sm_80.db", "sm_90.db"]


def one_kernel(path, compiler, median_us, error=None):
    with Store.create(path) as store:
        library = None if error else store.put_library(compiler.encode() * 99, compiler=compiler, **LIBRARY)
        kernel = store.put_kernel(identity("{}"), symbol="s", error=error, library_id=library and library.id)
        device = put_device(store)
        if library:
            put_time(store, device, CONV.format(n=1), kernel.id, median_us)
    return path


def test_a_kernel_of_another_compiler_stays_another_with_its_own_times(tmp_path):
    sources = [one_kernel(tmp_path / f"{name}.db", name, us) for name, us in (("nvcc 12", 3.0), ("nvcc 13", 2.0))]
    outcome = merge(sources, tmp_path / "out.db")
    assert len(outcome.others) == 1 and "nvcc 13" in outcome.others[0]
    with Store.open(tmp_path / "out.db") as store:
        best = store.ranking(store.devices()[0], CONV.format(n=1))
        assert [(row.median_us, store.binary(row.kernel.library)) for row in best] == [
            (2.0, b"nvcc 13" * 99),
            (3.0, b"nvcc 12" * 99),
        ]
        assert best[1].kernel.source == "0" != best[0].kernel.source
    again = merge([tmp_path / "out.db", *sources], tmp_path / "again.db")
    assert told(tmp_path / "again.db") == told(tmp_path / "out.db") and len(again.others) == 1


def test_merging_back_and_forth_adds_nothing(tmp_path):
    """Each database keeps the plain source for its own kernel, and knows the other's under the longer source."""
    paths = [one_kernel(tmp_path / f"{name}.db", name, us) for name, us in (("nvcc 12", 3.0), ("nvcc 13", 2.0))]
    for _ in range(3):
        for source, target in (paths, reversed(paths)):
            with Store.open(source) as store:
                snapshot = read(store)
            with Store.create(target) as store:
                merge_into(store, snapshot)
    for path in paths:
        with Store.open(path) as store:
            times = {row.kernel.source: row.median_us for row in store.ranking(store.devices()[0], CONV.format(n=1))}
            counts = store.counts()
        assert times["0"] == (3.0 if path is paths[0] else 2.0) and sorted(times.values()) == [2.0, 3.0]
        assert counts["kernel"] == counts["library"] == counts["measurement"] == 2
    with Store.open(paths[0]) as a, Store.open(paths[1]) as b:
        assert all(count.first == count.second == 0 for count in diff.counts(read(a), read(b)).values())


@pytest.mark.parametrize("broken_first", [False, True])
def test_a_kernel_that_compiled_somewhere_is_compiled(tmp_path, broken_first):
    good = one_kernel(tmp_path / "good.db", "c", 3.0)
    bad = one_kernel(tmp_path / "bad.db", "c", None, error="no")
    merge([bad, good] if broken_first else [good, bad], tmp_path / "out.db")
    with Store.open(tmp_path / "out.db") as store:
        [row] = store.kernels("sm_90")
        assert row.error is None and store.binary(row.library) == b"c" * 99


def test_other_schemas_are_refused(two, tmp_path):
    with closing(sqlite3.connect(two[1])) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(DatabaseError, match=r"b\.db has schema 99, newer than .*upgrade"):
        merge(two, tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_exporting_and_importing_loses_nothing(two, tmp_path):
    with Store.open(two[0]) as store:
        json_export.export(store, tmp_path / "a.json")
    with Store.create(tmp_path / "new.db") as store:
        json_export.import_(tmp_path / "a.json", store)
        json_export.export(store, tmp_path / "again.json")
    assert told(tmp_path / "new.db") == told(two[0]) and binaries(tmp_path / "new.db") == binaries(two[0])
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    strict = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert {"float": "inf"} in [row["relative_error"] for row in strict["measurement"]]


def test_importing_into_a_database_merges(two, tmp_path):
    merge(two, tmp_path / "merged.db")
    with Store.open(two[1]) as store:
        json_export.export(store, tmp_path / "b.json")
    with Store.create(two[0]) as store:
        json_export.import_(tmp_path / "b.json", store)
    assert told(two[0]) == told(tmp_path / "merged.db")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s[: len(s) // 2], "is not JSON"),
        (lambda s: s.replace('"format"', '"shape"', 1), "is not an exported tuning database"),
        (lambda s: s.replace(f'"schema": {SCHEMA_VERSION}', '"schema": 77', 1), "has schema 77"),
        (lambda s: s.replace('"blob": "', '"blob": "AAAA', 1), "binary .* is damaged"),
        (lambda s: s.replace('"symbol"', '"sign"', 1), "wrong columns: sign, symbol"),
        (lambda s: s.replace('"problem_id": 1', '"problem_id": 999', 1), "row . of table 'measurement' is damaged"),
    ],
)
def test_a_damaged_export_is_refused_whole(two, tmp_path, change, words):
    with Store.open(two[0]) as store:
        json_export.export(store, tmp_path / "a.json")
    (tmp_path / "bad.json").write_text(change((tmp_path / "a.json").read_text()))
    with Store.create(tmp_path / "new.db") as store, pytest.raises(DatabaseError, match=words):
        json_export.import_(tmp_path / "bad.json", store)
    assert not any(told(tmp_path / "new.db").values())


def put_kernels_of(store, times, final):
    """Add a kernel for each time, whether it was timed in the finals, and return the device and the last kernel."""
    device = put_device(store, details={})
    library = store.put_library(b"binary", compiler="c", **LIBRARY)
    for us in times:
        kernel = store.put_kernel(identity(json.dumps({"a": us})), symbol="s", library_id=library.id).id
        put_time(store, device, CONV.format(n=1), kernel, float(us), launch={"z": 1}, final=final(us))
    return device, kernel


def packed_times(folder):
    pack([folder / "all.db"], folder / "packed.db", 3)
    with Store.open(folder / "packed.db") as packed:
        return [row.median_us for row in packed.ranking(packed.device("d"), CONV.format(n=1))]


def test_packing_keeps_the_fastest_candidate_of_a_run_that_ended_before_its_finals(tmp_path):
    with Store.create(tmp_path / "all.db") as store:
        put_kernels_of(store, range(10, 20), lambda us: us > 14)
    assert packed_times(tmp_path) == [15, 16, 17, 10]


def test_packing_keeps_the_measurements_that_plans_name(tmp_path):
    with Store.create(tmp_path / "all.db") as store:
        device, kernel = put_kernels_of(store, range(10, 30), lambda us: False)
        slowest = {"layer": "one", "kernel": kernel, "launch": {"z": 1}, "us": 29.0}
        store.put_plan(device_id=device.id, network="net n=1", median_us=1.0, spread_us=0.1, choices=[slowest])
    assert packed_times(tmp_path) == [10, 11, 12, 29]


def test_a_difference_is_what_one_has_and_the_other_has_not(two, tmp_path):
    with Store.open(two[0]) as a, Store.open(two[1]) as b:
        counts = diff.counts(read(a), read(b))
        facts = [told(path) for path in two]
        for table in ("device", "problem", "measurement", "plan"):
            first, second = facts[0][table], facts[1][table]
            expected = ((first - second).total(), (first & second).total(), (second - first).total())
            assert (counts[table].first, counts[table].both, counts[table].second) == expected
        changed = {problem: (mine, its) for _, problem, mine, its in diff.winners(a, b)}
        device = a.device("d"), b.device("d")
        for problem in {row.text for row in a.problems()} & {row.text for row in b.problems()}:
            best = [store.ranking(of, problem)[0] for store, of in zip((a, b), device, strict=True)]
            same = best[0].kernel.config == best[1].kernel.config and best[0].launch == best[1].launch
            assert same or (changed[problem][0].id, changed[problem][1].id) == (best[0].id, best[1].id)
        assert list(diff.winners(a, a)) == []
