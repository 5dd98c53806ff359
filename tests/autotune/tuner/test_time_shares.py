"""The shares of the phases of a run, by a clock of the test, and those of problems."""

from itertools import pairwise

import pytest

from autotune.core import NEVER, Deadline
from autotune.ir import INPUT, OUTPUT, CallerTensor, Layer, Network, NetworkKey, parse
from autotune.tuner.time_shares import FINALS, PREPARATION, SEARCH, SETTLING, LayerWeights, Phases


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


SMALL, LARGE, POOL = (
    parse(text)
    for text in (
        "conv2d n=1 h=8 w=8 c=8 k=8 r=3 s=3 pad=1 dtype=f32",
        "conv2d n=1 h=32 w=32 c=64 k=64 r=3 s=3 pad=1 dtype=f32",
        "avg_pool2d n=1 h=8 w=8 c=8 r=3 s=3 stride=1 pad=1 dtype=f32",
    )
)


def network(problems):
    names = [INPUT, *(f"b{i}" for i in range(len(problems) - 1)), OUTPUT]
    layers = [
        Layer(f"{i}", problem, {"x": x, "y": y})
        for i, (problem, (x, y)) in enumerate(zip(problems, pairwise(names), strict=True))
    ]
    image = CallerTensor((1, 8, 8, 8), "f32")
    return Network(NetworkKey("net"), tuple(layers), (image,), (image,))


def test_before_any_measurement_limits_decide():
    assert LayerWeights([SMALL, LARGE], [], lambda _: None).sorted() == [LARGE, SMALL]


def test_without_networks_a_problem_counts_as_often_as_it_occurs():
    weights = LayerWeights([SMALL, POOL, SMALL, SMALL], [], {SMALL: 1.0, POOL: 1.0}.get)
    assert weights(SMALL) == pytest.approx(0.75)


def test_a_problem_counts_as_often_as_layers_use_it():
    weights = LayerWeights([SMALL, POOL], [network([SMALL, POOL, POOL, POOL])], {SMALL: 2.0, POOL: 1.0}.get)
    assert weights.all() == pytest.approx({SMALL: 0.4, POOL: 0.6}) and weights.sorted() == [POOL, SMALL]


def test_each_network_counts_alike():
    networks = [network([SMALL, POOL]), network([LARGE, POOL])]
    weights = LayerWeights([SMALL, POOL, LARGE], networks, {SMALL: 1.0, POOL: 1.0, LARGE: 9.0}.get)
    assert weights.all() == pytest.approx({SMALL: 0.5, POOL: 0.5 + 0.1, LARGE: 0.9})


def test_limits_of_what_was_not_measured_are_scaled_like_the_measured_ones():
    known = {}
    weights = LayerWeights([SMALL, LARGE], [], known.get)
    ratio = weights(LARGE) / weights(SMALL)
    known[SMALL] = 7.0
    assert weights(LARGE) / weights(SMALL) == pytest.approx(ratio)
    known[LARGE] = 7.0
    assert weights(LARGE) == weights(SMALL) == 0.5
