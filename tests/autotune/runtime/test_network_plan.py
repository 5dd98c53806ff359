"""The places of activations in the memory of a network."""

from itertools import combinations

from seed_network import network

from autotune.runtime import activation_places


def test_activations_that_live_at_the_same_time_lie_apart():
    own = network(2, dtype="f16")
    places = activation_places(own.layers, own.callers)
    written = {name for layer in own.layers for name in layer.writes} - set(own.callers)
    assert {place.name for place in places} == written and all(place.bytes > 0 for place in places)
    for place in places:
        assert place.name in own.layers[place.first].writes and place.name in own.layers[place.last].reads
        assert place.last == max(i for i, layer in enumerate(own.layers) if place.name in layer.reads)
    meet = [(a, b) for a, b in combinations(places, 2) if a.first <= b.last and b.first <= a.last]
    assert len(meet) > len(places) / 2
    for a, b in meet:
        assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
    assert max(place.offset + place.bytes for place in places) < sum(place.bytes for place in places)
