"""The distribution of problems over devices."""

import pytest

from autotune.ir import parse
from autotune.search import device_places


def weights(*values):
    return {parse(f"gemm m={64 + 8 * i} n=64 k=64 dtype=f16"): value for i, value in enumerate(values)}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_problem_has_one_device_and_no_device_has_much_more_than_others(count):
    given = weights(*(1.0 + i % 7 for i in range(40)))
    places = device_places(given, count)
    assert places.keys() == given.keys() and set(places.values()) == set(range(count))
    work = [sum(value for problem, value in given.items() if places[problem] == place) for place in range(count)]
    assert max(work) - min(work) <= max(given.values())


def test_light_problems_are_work_too():
    given = weights(10.0, *[1e-9] * 38)
    places = list(device_places(given, 2).values())
    assert places[0] == 0 and 8 <= places.count(0) <= 20


def test_there_may_be_more_devices_than_problems():
    assert sorted(device_places(weights(1.0, 2.0), 8).values()) == [0, 1] and device_places({}, 2) == {}
