"""Edges that a path implies are left out, and no other."""

import random

import pytest

from autotune.runtime.graph_edges import GraphEdges


def reached(edges, node):
    """The nodes from which a path leads to a node."""
    return set(edges[node]).union(*(reached(edges, before) for before in edges[node]))


@pytest.mark.parametrize("seed", range(40))
def test_the_same_paths_are_left_and_no_edge_stands_beside_a_path(seed):
    rng = random.Random(seed)
    wanted = [rng.choices(range(i), k=rng.randint(0, 3)) if i else [] for i in range(rng.randint(1, 14))]
    edges = GraphEdges()
    made = [edges.add(iter(before)) for before in wanted]
    for node, before in enumerate(made):
        assert before == sorted(set(before)) and set(before) <= set(wanted[node])
        assert reached(made, node) == reached(wanted, node)
        assert not any(one in reached(made, other) for one in before for other in before)


def test_the_end_of_a_residual_block_waits_for_the_layer_before_it():
    edges = GraphEdges()
    first = edges.add([])
    assert (first, edges.add([0]), edges.add([1]), edges.add([2, 0])) == ([], [0], [1], [2])


def test_the_ends_of_two_branches_are_both_waited_for():
    edges = GraphEdges()
    assert [edges.add(before) for before in ([], [0], [0], [2, 1, 1])] == [[], [0], [0], [1, 2]]
