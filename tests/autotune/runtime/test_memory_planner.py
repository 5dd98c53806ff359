"""Activations share memory only where no order of layers that the graph allows lets them meet."""

import random

import pytest

from autotune.runtime.memory_planner import ALIGNMENT, LayerAccess, plan_memory


def random_network(rng):
    """(sizes, accesses): each layer reads some earlier activations and writes one or two."""
    sizes, accesses = {}, []
    for layer in range(rng.randint(1, 12)):
        reads = rng.sample(sorted(sizes), min(len(sizes), rng.randint(0, 3)))
        writes = [f"{layer}.{i}" for i in range(rng.randint(1, 2))]
        sizes |= {name: rng.randint(1, 700) for name in writes}
        accesses.append(LayerAccess(frozenset([*reads, "input"] if rng.random() < 0.2 else reads), frozenset(writes)))
    return sizes, accesses


def random_order(rng, accesses):
    """An order in which the layers might run: any whose inputs have been made is next."""
    made, left, order = {"input"}, list(range(len(accesses))), []
    while left:
        i = rng.choice([i for i in left if accesses[i].reads <= made])
        left.remove(i)
        order.append(i)
        made |= accesses[i].writes
    return order


@pytest.mark.parametrize("seed", range(80))
def test_no_order_of_layers_overwrites_what_is_still_read(seed):
    rng = random.Random(seed)
    sizes, accesses = random_network(rng)
    arena = plan_memory(sizes, accesses)
    assert arena.offsets.keys() == sizes.keys()
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets.values())
    assert all(arena.offsets[name] + size <= arena.bytes for name, size in sizes.items())
    for _ in range(10):
        memory = [None] * arena.bytes
        for i in random_order(rng, accesses):
            for name in accesses[i].reads - {"input"}:
                place = memory[arena.offsets[name] : arena.offsets[name] + sizes[name]]
                assert set(place) == {name}, f"layer {i} finds {set(place)} where {name} was"
            for name in accesses[i].writes:
                memory[arena.offsets[name] : arena.offsets[name] + sizes[name]] = [name] * sizes[name]
            for name in accesses[i].writes | accesses[i].reads - {"input"}:  # a layer's own do not overlap
                assert set(memory[arena.offsets[name] : arena.offsets[name] + sizes[name]]) == {name}


def chain(length):
    return [LayerAccess(frozenset([f"{i - 1}"] if i else []), frozenset([f"{i}"])) for i in range(length)]


def test_a_chain_needs_two_places():
    arena = plan_memory({f"{i}": 1024 for i in range(10)}, chain(10))
    assert arena.bytes == 2048 and set(arena.offsets.values()) == {0, 1024}


def test_branches_keep_to_themselves():
    """Two branches of one input, which may run side by side, and their sum."""
    accesses = [
        LayerAccess(frozenset(), frozenset("a")),
        *[LayerAccess(frozenset("a"), frozenset([f"{side}0"])) for side in "lr"],
        *[LayerAccess(frozenset([f"{side}0"]), frozenset([f"{side}1"])) for side in "lr"],
        LayerAccess(frozenset(["l1", "r1"]), frozenset("y")),
    ]
    arena = plan_memory(dict.fromkeys(["a", "l0", "r0", "l1", "r1", "y"], 256), accesses)
    apart = [arena.offsets[name] for name in ("l0", "r0", "l1", "r1")]
    assert len(set(apart)) == 4 and arena.bytes == 5 * 256  # only y can lie where something else was


def test_nothing_needs_nothing():
    assert plan_memory({}, []).bytes == 0
