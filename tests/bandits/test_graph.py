"""Graphs that lose edges: their components are scipy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from engram.bandits.graph import EMPTY, complete, cut, joined, members


def check(graph, nodes):
    """All that a graph says of itself is so."""
    assert np.array_equal(graph.edges, graph.edges.T)
    assert np.flatnonzero(graph.edges.diagonal()).tolist() == sorted(nodes)
    assert np.flatnonzero(graph.labels >= 0).tolist() == sorted(nodes)
    _, parts = connected_components(graph.edges, directed=False)
    for node in nodes:
        mine = np.flatnonzero(parts == parts[node])
        assert graph.labels[node] == mine[0]
        assert members(graph, node).tolist() == mine.tolist()


@given(st.permutations(range(7)), st.integers(1, 7), st.integers(0, 99))
def test_components_are_right_whatever_comes_and_goes(order, count, seed):
    rng, graph, nodes = np.random.default_rng(seed), EMPTY, []
    for node in order[:count]:
        to = np.array([n for n in nodes if rng.random() < 0.7], dtype=np.intp)
        graph, nodes = joined(graph, node, to), [*nodes, node]
        check(graph, nodes)
        for _ in range(3):
            at = nodes[rng.integers(len(nodes))]
            off = (rng.random(len(graph.labels)) < 0.4) & (np.arange(len(graph.labels)) != at)
            before = graph.edges.copy(), graph.labels.copy()
            after = cut(graph, at, off)
            assert all(map(np.array_equal, before, (graph.edges, graph.labels)))
            expected = graph.edges.copy()
            expected[at, off] = expected[off, at] = False
            assert np.array_equal(after.edges, expected)
            graph = after
            check(graph, nodes)


def test_a_complete_graph_is_one_component():
    check(complete(np.array([False, True, True, False, True])), [1, 2, 4])
    assert complete(np.array([False, True, True])).labels.tolist() == [-1, 1, 1]
    check(complete(np.zeros(3, dtype=bool)), [])
