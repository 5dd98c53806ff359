"""Scalarization: points of a Pareto front's concave parts are the best for some weights, too."""

import math
import random

import pytest

from autotune.core import pareto_front
from autotune.search.transfer_history import ParetoFront, scalarize, weight_vectors


def test_weights_are_evenly_distributed_and_their_largest_is_one():
    assert weight_vectors(1) == ((1.0,),)
    assert len(weight_vectors(2)) == 11 and len(weight_vectors(3)) == 21
    assert {(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (1.0, 2 / 8), (4 / 6, 1.0)} <= set(weight_vectors(2))
    for weights in (*weight_vectors(2), *weight_vectors(3)):
        assert max(weights) == 1.0 and min(weights) >= 0.0


def test_a_single_objective_is_its_own_value():
    assert scalarize((-3.7,), (-5.0,), (1.0,)) == -3.7


def test_the_value_is_the_largest_weighted_distance_and_a_share_of_their_sum():
    assert scalarize((3.0, 5.0), (1.0, 4.0), (1.0, 0.5)) == pytest.approx(2.0 + 0.05 * 2.5)


def random_points(seed, num_objectives, count=60):
    rng = random.Random(seed)
    return [tuple(rng.gauss(0, 1) for _ in range(num_objectives)) for _ in range(count)]


@pytest.mark.parametrize("num_objectives", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_front_holds_what_no_point_dominates(seed, num_objectives):
    points = random_points(seed, num_objectives)
    points += points[:20]
    front = ParetoFront()
    added = [front.add(point) for point in points]
    expected = [points[i] for i in pareto_front(points)]
    assert added[0] and not any(added[60:])
    assert front.ideal == tuple(map(min, zip(*expected, strict=True)))
    for weights in weight_vectors(num_objectives):
        assert front.least(front.ideal, weights) == min(scalarize(point, front.ideal, weights) for point in expected)


def test_an_empty_front_has_no_least_value():
    assert ParetoFront().least((), (1.0, 1.0)) == math.inf


def best_points(points, value):
    """The points with the lowest value for some weights of two objectives."""
    weights = [(min(1.0, i / 50), min(1.0, 2.0 - i / 50)) for i in range(101)]
    values = [[value(point, one) for point in points] for one in weights]
    return {points[each.index(min(each))] for each in values}


def test_points_of_a_concave_front_are_the_best_for_some_weights_and_by_a_sum_only_its_ends_are():
    points = [(math.sin(angle / 20), math.cos(angle / 20)) for angle in range(32)]  # a quarter of a circle
    assert best_points(points, lambda point, weights: scalarize(point, (0.0, 0.0), weights)) >= set(points[6:-6])
    by_sum = best_points(points, lambda point, weights: sum(w * v for w, v in zip(weights, point, strict=True)))
    assert by_sum == {points[0], points[-1]}
