"""A program: which kernels run in which order, whose memory is a view, and which results lie in a parameter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..graph import Node
from ..ops import copy_op
from ..passes import Columns, Group, TypedGraph, fuse, ordered, pack, run_passes, single_groups
from ..planner import MemoryPlan, Value, plan_memory
from .order import thrifty

_IDENTITY_AT_EQUAL_SHAPES = ("sum_to_like", "broadcastto")


@dataclass(frozen=True)
class Program:
    """What a plan compiles.

    Attributes:
        graph: after the passes, and with the copies that results and parameters need.
        groups: the kernels, in the order in which they run.
        viewed: the nodes that are no computation but another node's memory, by node.
        placed: the values that are written straight into a parameter's memory, by value.
        results: the evaluated nodes, in order; None for a group of updates.
        bytes_unplanned: what a buffer for every node of the graph would take, before the passes.
    """

    graph: TypedGraph
    groups: tuple[Group, ...]
    viewed: dict[Node, Node]
    placed: dict[Node, Node]
    results: tuple[Node | None, ...]
    bytes_unplanned: int = 0

    def nbytes(self, node: Node) -> int:
        """The size of a node's value."""
        return _nbytes(node, self.graph)

    def source(self, node: Node) -> Node:
        """The node whose memory this one is: itself if it is no view, the parameter if it is placed in one."""
        return _source(node, self.viewed, self.placed)

    @property
    def parameters(self) -> list[Node]:
        """The parameters read or written, each once."""
        read = [self.source(value) for group in self.groups for value in group.inputs]
        return list(dict.fromkeys(n for n in [*read, *self.placed.values()] if n.op.name == "parameter"))

    def stored(self) -> list[Node]:
        """Every value that has memory in the arena, in the order of their writing; views follow what they view."""
        found: list[Node] = []
        views: dict[Node, list[Node]] = {}
        for node, source in self.viewed.items():
            views.setdefault(source, []).append(node)
        for group in self.groups:
            stack = list(reversed(group.outputs))
            while stack:
                node = stack.pop()
                if node not in self.placed:
                    found.append(node)
                    stack += reversed(views.get(node, []))
        return found

    def plan(self) -> MemoryPlan:
        """Liveness and offsets of every value in the arena."""
        return self._plan

    @cached_property
    def _plan(self) -> MemoryPlan:
        step_of = {node: step for step, group in enumerate(self.groups) for node in group.outputs}
        first: dict[Node, int] = {}
        last: dict[Node, int] = {}
        group_of = {node: group for group in self.groups for node in group.outputs}
        stored = self.stored()
        for node in stored:
            first[node] = last[node] = first[self.viewed[node]] if node in self.viewed else step_of[node]
        for step, group in enumerate(self.groups):
            for value in group.inputs:
                if value in last:
                    last[value] = step
        last.update((node, len(self.groups)) for node in self.results if node in last)
        shapes, values = self.graph.shapes, []
        for node in stored:
            in_place: tuple[Node, ...] = ()
            if node in group_of:
                group = group_of[node]
                read = Counter(self.source(value) for value in group.inputs)  # a view may be read elsewhere
                in_place = tuple(
                    value
                    for value in group.overwritable(node, shapes)
                    if value in last
                    and self.nbytes(value) == self.nbytes(node)
                    and read[self.source(value)] == 1
                )
            values.append(Value(node, self.nbytes(node), first[node], last[node], self.viewed.get(node), in_place))
        return replace(plan_memory(values), bytes_unplanned=self.bytes_unplanned)


def _nbytes(node: Node, graph: TypedGraph) -> int:
    return math.prod(graph.shapes[node]) * np.dtype(graph.dtypes[node]).itemsize


def _source(node: Node, viewed: dict[Node, Node], placed: dict[Node, Node]) -> Node:
    while node in viewed:
        node = viewed[node]
    return placed.get(node, node)


def make_program(graph: TypedGraph, passes: Iterable[str], columns: Columns | None = None) -> Program:
    """The graph through the passes named, grouped into kernels, and put in order. `columns`: how wide the panels of the
    machine's products are; None where its products pack nothing."""
    names = frozenset(passes)
    unplanned = sum(_nbytes(node, graph) for node in graph.nodes)
    graph = run_passes(graph, names)
    if "pack" in names and columns is not None:
        graph = pack(graph, columns)
    graph, viewed = _copied(graph, "views" in names)
    fusion = fuse if "fuse" in names else single_groups
    groups = fusion(graph, frozenset(viewed))
    return _placed(graph, groups, viewed, unplanned)


def _is_view(node: Node, graph: TypedGraph) -> bool:
    if node.op.is_view:
        return True
    same = node.op.name in _IDENTITY_AT_EQUAL_SHAPES
    return same and graph.shapes[node.inputs[0]] == graph.shapes[node]


class _Copies:
    """Copies added to a graph."""

    def __init__(self, graph: TypedGraph) -> None:
        self.nodes = list(graph.nodes)
        self.shapes, self.dtypes = graph.shapes, graph.dtypes

    def add(self, node: Node) -> Node:
        """A copy of the node."""
        copy = copy_op(node)
        copy.location = node.location
        self.shapes[copy], self.dtypes[copy] = self.shapes[node], self.dtypes[node]
        self.nodes.append(copy)
        return copy


def _copied(graph: TypedGraph, with_views: bool) -> tuple[TypedGraph, dict[Node, Node]]:
    """The graph with a copy for every result that is somebody's else: a feed, a parameter, a view of one; and for every
    updated value that is not a computation's own. Also which nodes are views."""
    viewed = {node: node.inputs[0] for node in graph.nodes if _is_view(node, graph)} if with_views else {}
    copies = _Copies(replace(graph, shapes=dict(graph.shapes), dtypes=dict(graph.dtypes)))
    made: dict[Node, Node] = {}
    outputs = []
    for node in graph.outputs:
        if node is not None and _source(node, viewed, {}) in graph.fed:
            if node not in made:
                made[node] = copies.add(node)
            node = made[node]
        outputs.append(node)
    updates = []
    taken: set[Node] = set()
    for parameter, value in graph.updates:
        if value in graph.fed or value in viewed or value in taken:
            value = copies.add(value)
        taken.add(value)
        updates.append((parameter, value))
    graph = replace(
        graph,
        nodes=tuple(copies.nodes),
        outputs=tuple(outputs),
        updates=tuple(updates),
        shapes=copies.shapes,
        dtypes=copies.dtypes,
    )
    return graph, viewed


def _placed(
    graph: TypedGraph, groups: list[Group], viewed: dict[Node, Node], bytes_unplanned: int
) -> Program:
    """The groups in an order in which updates can be written straight into their parameters, where there is one; other
    updates are computed in the arena and copied at the end, behind the last that reads the old value. Of two such
    orders, as written and with memory in mind, the one whose arena is smaller."""
    placed: dict[Node, Node] = {}
    owner = {node: group for group in groups for node in group.outputs}
    readers: dict[Node, list[Group]] = {}
    followers: dict[int, list[Group]] = {}
    behind: dict[int, list[Group]] = {}

    def put_behind(group: Group, earlier: Iterable[Group]) -> None:
        for other in earlier:
            if other is not group:
                behind.setdefault(id(group), []).append(other)
                followers.setdefault(id(other), []).append(group)

    def before(group: Group) -> list[Group]:
        return behind.get(id(group), [])

    for group in groups:
        sources = [_source(value, viewed, {}) for value in group.inputs]
        put_behind(group, (owner[source] for source in sources if source in owner))
        for source in sources:
            readers.setdefault(source, []).append(group)

    copies = _Copies(graph)
    for parameter, value in graph.updates:
        group, others = owner[value], readers.get(parameter, [])
        fits = _may_lie_on(group, value, parameter, graph, viewed)
        if fits and not _leads_to(group, others, followers):
            put_behind(group, others)
            placed[value] = parameter
            continue
        copy = copies.add(value)
        last = Group((copy,), (value,), (copy,), "pointwise")
        put_behind(last, [group, *others])
        groups = [*groups, last]
        owner[copy] = last
        placed[copy] = parameter
    order = ordered(groups, before)
    assert order is not None  # copies have no readers, and the groups were in no circle before
    graph = replace(graph, nodes=tuple(copies.nodes))
    program = Program(graph, tuple(order), viewed, placed, graph.outputs, bytes_unplanned)
    elsewhere = {*graph.fed, *placed.values()}

    def in_arena(node: Node) -> int:
        return 0 if node in elsewhere else _nbytes(node, graph)

    kept = {program.source(node) for node in graph.outputs if node is not None}
    other = replace(program, groups=tuple(thrifty(order, before, program.source, in_arena, kept)))
    return min(program, other, key=lambda p: p.plan().bytes_planned)


def _leads_to(group: Group, others: list[Group], followers: dict[int, list[Group]]) -> bool:
    """Whether one of the others, but the group itself, must come behind the group."""
    targets = {id(other) for other in others} - {id(group)}
    if not targets:
        return False
    seen = {id(group)}
    stack = [group]
    while stack:
        for follower in followers.get(id(stack.pop()), []):
            if id(follower) in targets:
                return True
            if id(follower) not in seen:
                seen.add(id(follower))
                stack.append(follower)
    return False


def _may_lie_on(
    group: Group, value: Node, parameter: Node, graph: TypedGraph, viewed: dict[Node, Node]
) -> bool:
    """Whether the kernel that writes `value` may write it over the parameter."""
    if graph.dtypes[value] != graph.dtypes[parameter]:
        return False
    own = [v for v in group.inputs if _source(v, viewed, {}) is parameter]
    return not own or (own == [parameter] and parameter in group.overwritable(value, graph.shapes))
