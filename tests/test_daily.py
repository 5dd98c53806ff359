"""The choice of the cases that a day runs."""

from types import SimpleNamespace

import pytest
from daily import DAY, without_todays_rest

ITEMS = [
    SimpleNamespace(nodeid=f"test_it.py::{name}", get_closest_marker={"daily": mark}.get)
    for name, mark in [
        *((f"test_case[{i}]", pytest.mark.daily(2).mark) for i in range(20)),
        ("test_other", None),
    ]
]


def chosen(monkeypatch, day, items=ITEMS, args=("tests",), **options):
    monkeypatch.setenv(DAY, day)
    config = SimpleNamespace(args=args, option=SimpleNamespace(**{"all_cases": False, "keyword": ""} | options))
    run, rest = without_todays_rest(config, items)
    assert sorted(item.nodeid for item in (*run, *rest)) == sorted(item.nodeid for item in items)
    return [item.nodeid for item in run]


def test_a_day_runs_some_cases_and_another_day_runs_others(monkeypatch):
    first, again, second = (chosen(monkeypatch, day) for day in ("2026-01-01", "2026-01-01", "2026-01-02"))
    assert len(first) == len(second) == 3 and first == again != second
    assert first[-1] == second[-1] == "test_it.py::test_other"


@pytest.mark.parametrize(
    "wish", [{"all_cases": True}, {"keyword": "case"}, {"args": ["tests/test_it.py"]}, {"args": ["tests/a"]}], ids=str
)
def test_all_cases_run_if_they_or_a_file_or_folder_are_asked_for(monkeypatch, wish):
    assert len(chosen(monkeypatch, "2026-01-01", **wish)) == len(ITEMS)


def test_tests_of_a_group_share_a_mark(monkeypatch):
    mark = {"daily": pytest.mark.daily(2, "group").mark}
    items = [SimpleNamespace(nodeid=f"test_it.py::test_{i}", get_closest_marker=mark.get) for i in range(9)]
    runs = [chosen(monkeypatch, f"2026-01-0{day}", items=items) for day in range(1, 10)]
    assert {len(run) for run in runs} == {2} and len(set().union(*runs)) > 4


def test_a_mark_that_leaves_nothing_out_is_refused(monkeypatch):
    with pytest.raises(pytest.UsageError, match=r"2 cases: daily\(2\) leaves none out"):
        chosen(monkeypatch, "2026-01-01", items=ITEMS[:2])
