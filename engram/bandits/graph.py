"""Undirected graphs from which edges are deleted, and their connected components."""

from typing import NamedTuple

import numpy as np

from engram.core.arrays import Bools, Ints


class Graph(NamedTuple):
    """An undirected graph; nodes are some of the numbers from 0 to n - 1."""

    edges: Bools  # shape (n, n), symmetric; each node has an edge to itself
    # Shape (n,), the least number in a node's component; -1 for numbers that are no node.
    labels: Ints


def complete(nodes: Bools) -> Graph:
    """Returns the complete graph on the nodes given by a mask of shape (n,)."""
    labels = np.where(nodes, nodes.argmax() if nodes.any() else 0, -1)
    return Graph(np.logical_and.outer(nodes, nodes), labels.astype(np.intp))


def members(graph: Graph, node: int) -> Ints:
    """Returns the nodes of a node's component, ascending."""
    return np.flatnonzero(graph.labels == graph.labels[node])


def component(graph: Graph, node: int) -> frozenset[int]:
    """Returns the nodes of a node's component as a set."""
    return frozenset(members(graph, node).tolist())


EMPTY = complete(np.zeros(0, dtype=np.bool_))


def joined(graph: Graph, node: int, to: Ints) -> Graph:
    """Adds a node with edges to the nodes in ``to``."""
    size, before = max(len(graph.labels), node + 1), len(graph.labels)
    edges = np.zeros((size, size), dtype=np.bool_)
    edges[:before, :before] = graph.edges
    edges[node, to] = edges[to, node] = edges[node, node] = True
    labels = np.full(size, -1, dtype=np.intp)
    labels[:before] = graph.labels
    touched = np.isin(labels, np.unique(labels[to]))
    touched[node] = True
    labels[touched] = np.flatnonzero(touched)[0]
    return Graph(edges, labels)


def cut(graph: Graph, node: int, off: Bools) -> Graph:
    """Deletes edges of a node.

    ``off`` is a mask of the edges' other ends, shape (n,), without the node itself.
    """
    gone = graph.edges[node] & off
    if not gone.any():
        return graph
    edges, labels = graph.edges.copy(), graph.labels.copy()
    edges[node, gone] = edges[gone, node] = False
    # Only the node's own component can fall apart. Parts are taken from it one after the other.
    left = labels == labels[node]
    while left.any():
        part = _reached(edges, int(np.flatnonzero(left)[0]), left)
        labels[part] = part[0]
        left[part] = False
    return Graph(edges, labels)


def _reached(edges: Bools, start: int, among: Bools) -> Ints:
    waiting, found, fresh = among.copy(), [start], [start]
    waiting[start] = False
    while fresh and waiting.any():  # mostly soon none is waiting, for there are many edges
        new = np.flatnonzero(edges[fresh.pop()] & waiting)
        waiting[new] = False
        found += new.tolist()
        fresh += new.tolist()
    return np.sort(np.array(found, dtype=np.intp))
