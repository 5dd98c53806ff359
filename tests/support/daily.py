"""Daily samples: of the cases of an expensive test, a run takes a few, which change from day to day.

A test marked `@pytest.mark.daily(2)` runs two of its cases; of all tests marked `daily(2, "cluster")`, two run.
`--all-cases` runs all, and so does naming a file or folder of tests or `-k`. AUTOTUNE_TEST_DAY repeats the choice of a
day.
"""

from __future__ import annotations

import datetime
import os
import random
from collections import defaultdict

import pytest

DAY = "AUTOTUNE_TEST_DAY"
os.environ.setdefault(DAY, str(datetime.date.today()))  # the worker processes of pytest-xdist inherit it


def without_todays_rest(config: pytest.Config, items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run and those that another day runs."""
    if config.option.all_cases or config.option.keyword or list(config.args) != ["tests"]:
        return items, []
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("daily"):
            cases[mark.args[1] if len(mark.args) > 1 else item.nodeid.partition("[")[0]].append(item)
    rest: set[str] = set()  # node ids
    for name, found in cases.items():
        mark = found[0].get_closest_marker("daily")
        assert mark is not None
        count = mark.args[0]
        if count >= len(found):
            raise pytest.UsageError(f"{name} has {len(found)} cases: daily({count}) leaves none out; remove the mark")
        left_out = random.Random(f"{os.environ[DAY]} {name}").sample(found, len(found) - count)
        rest.update(item.nodeid for item in left_out)
    return [item for item in items if item.nodeid not in rest], [item for item in items if item.nodeid in rest]
