"""The shares of the phases of a run, by a clock of the test."""

import pytest

from autotune.core import NEVER, Deadline
from autotune.tuner.phases import FINALS, PREPARATION, SEARCH, SETTLING, Phases


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_phase_gets_its_share_of_what_is_left():
    clock = Clock()
    phases = Phases(Deadline(110.0, 0.0, clock), [SEARCH, FINALS, SETTLING])
    clock.now = 10.0
    assert phases.begin(SEARCH).left == pytest.approx(60)
    clock.now = 30.0  # it ends early
    assert phases.begin(FINALS).left == pytest.approx(20)
    clock.now = 60.0  # it ends late
    assert phases.begin(SETTLING).left == pytest.approx(50)
    clock.now = 100.0
    times = {time.name: (time.spent, time.granted) for time in phases.times()}
    assert times[PREPARATION][0] == 10
    assert times[SEARCH] == pytest.approx((20, 60)) and times[FINALS] == pytest.approx((30, 20))
    assert times[SETTLING] == pytest.approx((40, 50))
    assert sum(spent for spent, _ in times.values()) == 100


def test_without_settling_its_share_goes_to_the_others_and_without_a_budget_there_are_no_shares():
    clock = Clock()
    phases = Phases(Deadline(70.0, 0.0, clock), [SEARCH, FINALS])
    assert phases.begin(SEARCH).left == pytest.approx(60)
    assert phases.begin(FINALS).left == pytest.approx(70)
    unbounded = Phases(NEVER, [SEARCH, FINALS])
    assert not unbounded.begin(SEARCH).is_over and unbounded.times() == []


def test_waiting_takes_a_share_of_the_run_and_ends_with_the_phase():
    clock = Clock()
    phases = Phases(Deadline(100.0, 0.0, clock), [SEARCH, FINALS, SETTLING])
    phases.begin(SEARCH)
    assert phases.waiting(0.1).left == pytest.approx(10)
    clock.now = 55.0
    assert phases.waiting(0.1).left == pytest.approx(5)
