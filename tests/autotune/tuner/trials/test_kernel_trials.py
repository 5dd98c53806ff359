"""The launch values that a large run leaves for later."""

from functools import partial
from types import SimpleNamespace

import pytest

from autotune.tuner.trials.kernel_trials import PROMISING, OtherLaunches


@pytest.fixture
def log():
    return []


@pytest.fixture
def add(log):
    others = OtherLaunches()

    def add(space, name, us):
        told = {"try_others": partial(log.append, name), "leave": partial(log.append, f"not {name}")}
        others.add(space, us, SimpleNamespace(**told))

    add.others = others
    return add


def test_those_nearest_to_the_best_of_their_space_come_first(add, log):
    add("3x3", "first", 10.0)
    add("3x3", "second", 12.0)
    add("1x1", "other", 100.0)
    assert not log
    assert add.others.advance(2)
    assert log == ["first", "other"]
    assert add.others.advance()
    assert log == ["first", "other", "second"]
    assert not add.others.advance()


def test_slow_ones_are_left_at_once_and_those_that_others_have_beaten_at_their_turn(add, log):
    add("3x3", "first", 10.0)
    add("3x3", "slow", 10.0 * PROMISING + 0.1)
    assert log == ["not slow"]
    add("3x3", "fast", 10.0 / PROMISING - 0.1)
    assert log == ["not slow"]
    assert add.others.advance()
    assert log == ["not slow", "not first", "fast"]  # both had the ratio 1 when they came


def test_a_space_is_measured_by_its_own_first_launches(add, log):
    add("fast", "a", 1.0)
    add("slow", "b", 50.0)
    add.others.advance()
    assert log == ["a", "b"]
