"""Which plan of a network two databases use that are kept in step: the same one."""

import pytest
from databases import identity

from tuning_db import Store
from tuning_db.share.sync import Moved, Sync

NETWORK = "net n=1"


@pytest.fixture
def places(tmp_path):
    return [tmp_path / "a.db", tmp_path / "b.db"]


def plan(place, median_us, old=None):
    """Add a plan, in place of another one if its time is given."""
    with Store.create(place) as store:
        device = store.put_device("d", "sm_90", flops_per_us=1.0, bytes_per_us=1.0)
        kernel = store.put_kernel(identity("{}"), symbol="s")
        choice = {"layer": "1", "kernel": kernel.id, "launch": {}, "us": 1.0, "overlap": False}
        replaced = next((row for row in store.plans() if row.median_us == old), None)
        store.replace_plan(
            replaced, device_id=device.id, network=NETWORK, median_us=median_us, spread_us=0.1, choices=[choice]
        )


def times(place):
    """The times of all plans, the newest last, which the network runs."""
    with Store.open(place) as store:
        rows = store.plans()
        used = store.plan(store.device("d"), NETWORK)
    assert used.id == rows[-1].id
    return [row.median_us for row in rows]


@pytest.mark.parametrize("order", [1, -1])
def test_of_plans_that_do_not_know_each_other_the_faster_one_is_used(places, order):
    plan(places[0], 5.0)
    plan(places[1], 4.0)
    Sync(*places[::order]).run_pass()
    assert times(places[0]) == times(places[1]) == [5.0, 4.0]


@pytest.mark.parametrize("order", [1, -1])
def test_a_plan_that_was_made_after_the_others_is_used_though_it_is_slower(places, order):
    plan(places[0], 4.0)
    Sync(*places).run_pass()
    plan(places[1], 6.0)
    Sync(*places[::order]).run_pass()  # another process, which remembers nothing
    assert times(places[0]) == times(places[1]) == [4.0, 6.0]


def test_an_older_plan_does_not_become_the_newest(places):
    plan(places[0], 4.0)
    Sync(*places).run_pass()
    plan(places[0], 7.0)
    plan(places[0], 6.0)
    Sync(*places).run_pass()
    assert [place_times[-1] for place_times in map(times, places)] == [6.0, 6.0]
    plan(places[1], 9.0)
    plan(places[1], 6.5)
    sync = Sync(*places)
    sync.run_pass()
    assert sorted(times(places[0])) == sorted(times(places[1])) == [4.0, 6.0, 6.5, 7.0, 9.0]
    assert times(places[0])[-1] == times(places[1])[-1] == 6.5 and sync.run_pass() == Moved()


@pytest.mark.parametrize("writer", [0, 1])
def test_a_plan_that_a_tuner_replaces_between_two_passes_is_replaced_in_both(places, writer):
    sync = Sync(*places)
    plan(places[writer], 9.0)
    for old, new in ((9.0, 8.0), (8.0, 7.0), (7.0, 7.5)):  # the last comparison may give a longer time
        assert sync.run_pass().any
        assert times(places[0]) == times(places[1]) == [old]
        plan(places[writer], new, old)
    sync.run_pass()
    assert times(places[0]) == times(places[1]) == [7.5]
    assert not sync.run_pass().any


def test_plans_that_only_vanish_are_brought_back(places, tmp_path):
    sync = Sync(*places)
    plan(places[0], 9.0)
    sync.run_pass()
    places[0].unlink()
    Store.create(places[0]).close()
    sync.run_pass()
    assert times(places[0]) == times(places[1]) == [9.0]
    empty = Sync(places[0], tmp_path / "empty.db")
    empty.run_pass()
    assert times(tmp_path / "empty.db") == [9.0]


def test_a_plan_that_both_replaced_is_not_brought_back(places):
    sync = Sync(*places)
    plan(places[0], 9.0)
    sync.run_pass()
    for place, us in zip(places, (8.0, 7.0), strict=True):
        plan(place, us, old=9.0)
    sync.run_pass()
    assert times(places[0]) == times(places[1]) == [8.0, 7.0]
