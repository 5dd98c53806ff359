"""Deadlines and the deadlines of parts, by a clock of the test."""

import math

import pytest

from autotune.core import NEVER, Deadline, seconds_of


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_parts_share_what_is_left_so_unused_time_goes_to_later_parts(clock):
    run = Deadline(200.0, 100.0, clock)
    first = run.share(0.5)
    assert (first.left, first.seconds) == (50.0, 50.0)
    clock.now += 10  # the first part ends early
    assert run.share(0.5).left == 45.0
    clock.now += 70  # the next one ends late
    assert run.share(0.5).left == 10.0
    assert run.elapsed == 80.0 and not run.is_over


def test_a_part_ends_no_later_than_the_whole(clock):
    run = Deadline(110.0, 100.0, clock)
    assert run.within(5.0).end == 105.0 and run.within(50.0).end == 110.0
    assert run.before(4.0).left == 6.0
    clock.now = 120.0
    assert run.is_over and run.left == 0.0 and run.share(0.5).is_over


def test_no_deadline_has_parts_without_one():
    assert math.isinf(NEVER.left) and math.isinf(NEVER.share(0.1).left) and not NEVER.is_over
    assert NEVER.within(5.0).left <= 5.0


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90), ("5m", 300), ("1.5h", 5400), ("7", 7), (7, 7), (0.5, 0.5)])
def test_seconds_of_numbers_and_texts(given, seconds):
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["soon", "", "-1s", "1d", "1 s", None])
def test_other_values_are_refused(given):
    with pytest.raises(ValueError, match="is not a time: write 90s, 5m or 1h"):
        seconds_of(given)
