"""The weights of problems: measured times, else limits, times the number of layers."""

from itertools import pairwise

import pytest

from autotune.ir import INPUT, OUTPUT, CallerTensor, Layer, Network, NetworkKey, parse
from autotune.tuner.layer_weights import LayerWeights

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
