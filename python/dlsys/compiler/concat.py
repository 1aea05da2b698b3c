"""Joins: what is put together of nodes that something larger puts together in the same order is a slice of that.

To the bit. The states of a recurrent network, for example, are its output and, but for the last, an operand of the
gradient of its weights.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from ..graph import Node
from .base import TypedGraph, rewrite, value_inputs
from .slices import pieces, taken
from .sums import bare


def share_concats(graph: TypedGraph) -> TypedGraph:
    """The graph in which no concatenation of neighbours in memory is part of another's, unless that depends on it."""
    found = {node: made for node in graph.nodes if node.op.joins and (made := pieces(node, graph))}
    within = _contained(graph, found)
    if not within:
        return graph
    origins: dict[Node, Node] = {}
    now: dict[Node, Node] = {}

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        old = origins.get(node, node)
        if old in within:
            concat, first = within[old]
            return taken(now[concat], first, typed.shapes[node], typed)
        now[old] = node
        return None

    wholes = [(concat, node) for node, (concat, _) in within.items()]
    return rewrite(replace(graph, nodes=_sorted(graph, wholes)), rule, origins)


def _contained(graph: TypedGraph, concats: dict[Node, list[tuple[Node, int]]]) -> dict[Node, tuple[Node, int]]:
    """For a concat that is part of another: that, and the number of its first element there."""
    items = {node: [bare(value) for value, _ in made] for node, made in concats.items()}
    holders: dict[Node, list[tuple[Node, int]]] = {}
    within: dict[Node, tuple[Node, int]] = {}
    consumers = graph.consumers() if len(concats) > 1 else {}
    for node in sorted(concats, key=lambda concat: -len(items[concat])):  # the largest first, so holders stay
        own = items[node]
        for concat, at in holders.get(own[0], ()):
            run = items[concat][at : at + len(own)]
            same = len(run) == len(own) and all(a is b for a, b in zip(run, own, strict=True))
            if same and not _reaches(node, concat, consumers):
                within[node] = (concat, concats[concat][at][1])
                consumers[concat].append(node)
                break
        else:
            for at, item in enumerate(own):
                holders.setdefault(item, []).append((node, at))
    return within


def _reaches(node: Node, target: Node, consumers: dict[Node, list[Node]]) -> bool:
    """Whether the target depends on the node."""
    seen = {node}
    stack = [node]
    while stack:
        for user in consumers[stack.pop()]:
            if user is target:
                return True
            if user not in seen:
                seen.add(user)
                stack.append(user)
    return False


def _sorted(graph: TypedGraph, pairs: list[tuple[Node, Node]]) -> tuple[Node, ...]:
    """The graph's nodes, inputs first and of each pair the first before the second, else in their order."""
    index = {node: i for i, node in enumerate(graph.nodes)}
    before = [{index[value] for value in value_inputs(node) if value in index} for node in graph.nodes]
    for first, second in pairs:
        before[index[second]].add(index[first])
    followers: list[list[int]] = [[] for _ in before]
    waiting = [len(earlier) for earlier in before]
    for i, earlier in enumerate(before):
        for j in earlier:
            followers[j].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    found = []
    while ready:
        i = heapq.heappop(ready)
        found.append(graph.nodes[i])
        for follower in followers[i]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    return tuple(found)
