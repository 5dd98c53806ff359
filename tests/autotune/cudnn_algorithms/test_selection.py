"""Selection of a cuDNN algorithm from recorded times."""

import json

import pytest
import torch
from cudnn_records import CLASSIC, recorded

from autotune.core import LibraryError
from autotune.cudnn_algorithms import Algorithm, ordered, pareto
from autotune.cudnn_algorithms.selection import select_algorithm

CPU = torch.device("cpu")


def test_recorded_plans_are_ordered_and_chosen_by_time_workspace_and_engine():
    plans = list(recorded())
    timed = [plan for plan in plans if plan.us]
    assert len(timed) > 40
    fastest = min(timed, key=lambda plan: plan.us)
    assert select_algorithm(plans, "forward") == fastest == ordered(plans, "time")[0]
    assert [a.usable for a in ordered(plans, "time")] == sorted((a.usable for a in plans), reverse=True)
    of_41 = [plan for plan in timed if plan.name == "engine 41"]
    assert select_algorithm(plans, "forward", "eng41") == min(of_41, key=lambda plan: plan.us)
    exact = next(plan for plan in timed if plan.key == "eng4")  # is also the name of an engine with many plans
    assert sum(plan.name == "engine 4" for plan in timed) > 1 and select_algorithm(plans, "forward", "eng4") == exact
    small = [plan for plan in timed if plan.workspace_bytes <= 131]
    assert select_algorithm(plans, "forward", workspace_limit=131) == min(small, key=lambda plan: plan.us)
    assert select_algorithm(plans, "forward", "eng41", prefer="workspace").workspace_bytes == 0


def test_the_front_of_recorded_plans_is_beaten_by_none():
    plans = [plan for plan in recorded() if plan.us]
    front = pareto([*plans, Algorithm("forward", "engine", "eng99", "engine 99", 0, us=None)], "workspace")
    for point in front:
        better = [p for p in plans if p.us <= point.us and p.workspace_bytes <= point.workspace_bytes]
        assert all((p.us, p.workspace_bytes) == (point.us, point.workspace_bytes) for p in better)
    assert {p.us for p in pareto(CLASSIC[:4], "workspace")} == {11.0, 12.0, 30.0}
    assert [p.us for p in pareto(CLASSIC[:4], "energy")] == [11.0, 12.0]


def test_records_of_algorithms_are_read_back():
    plans = [*recorded(), *CLASSIC]
    assert [Algorithm(**values) for values in json.loads(json.dumps([p.as_json() for p in plans]))] == plans


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"key": "4"}, ["algorithm 4", "NOT_SUPPORTED", "0 IMPLICIT_GEMM, 1 IMPLICIT_PRECOMP_GEMM"]),
        ({"key": "eng9"}, ["eng9", "7 WINOGRAD_NONFUSED are supported"]),
        ({"key": "7", "deterministic": True}, ["7 WINOGRAD_NONFUSED is not known to be deterministic", "0 IMPLICIT"]),
        ({"key": "1", "workspace_limit": 100}, ["4.0 KiB", "more than 100 B", "0 IMPLICIT_GEMM fit"]),
        ({"key": "1", "workspace_limit": -1}, ["none fits; the least workspace is 0 B, of 0 IMPLICIT_GEMM"]),
    ],
)
def test_an_unsupported_choice_lists_what_is_supported(asked, words):
    with pytest.raises(LibraryError) as raised:
        select_algorithm(CLASSIC, "forward", **asked)
    text = str(raised.value)
    assert "\n" not in text and "4 FFT" not in text
    assert all(word in text for word in words), text


def test_demands_and_preferences_decide_where_nothing_is_named():
    assert select_algorithm(CLASSIC, "forward").key == "7"
    assert select_algorithm(CLASSIC, "forward", deterministic=True).key == "1"
    assert select_algorithm(CLASSIC, "forward", prefer="energy").key == "1"
    assert select_algorithm(CLASSIC, "forward", prefer="workspace").key == "0"
    assert select_algorithm(CLASSIC, "forward", workspace_limit=10).key == "0"
    assert select_algorithm(CLASSIC, "backward-data", prefer="energy").key == "1"
    with pytest.raises(LibraryError, match=r"no algorithm.*none are"):
        select_algorithm(CLASSIC, "backward-filter")
