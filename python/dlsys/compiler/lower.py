"""From a graph after the passes to a plan: views, groups, their order, and where each value is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..graph import Node
from ..ops import copy_op
from ..planner import MemoryPlan, Value, plan_memory
from .aliases import behind, find_views, whole_of
from .base import BOUNDARY, Reason, TypedGraph, nbytes_of
from .fuse import fuse
from .groups import Group, single_groups
from .order import list_schedule
from .plan import Plan


def lower(graph: TypedGraph, names: frozenset[str], kind: str, unplanned: int) -> Plan:
    """The graph, of which the passes are done, grouped into kernels, and put in order. `names`: of "views" and "fuse"
    those that are wanted; `kind`: of the context; `unplanned`: bytes of a buffer for each node before the passes."""
    views = find_views(graph, BOUNDARY[kind]) if "views" in names else {}
    graph = _copied(graph, views)
    reasons: list[Reason] = []
    if "fuse" in names:
        groups = fuse(graph, views, columns=kind == "cpu", reasons=reasons)
    else:
        groups = single_groups(graph, views)
    graph, groups, placed = _ordered(graph, groups, views)
    memory = replace(placed_in_memory(graph, groups, views, placed), bytes_unplanned=unplanned)
    return Plan(graph, tuple(groups), views, memory, tuple(reasons))


def _copy(node: Node, nodes: list[Node]) -> Node:
    """A copy of a node, which is put among the nodes."""
    copy = copy_op(node)
    copy.placed_as(node)
    nodes.append(copy)
    return copy


def _copied(graph: TypedGraph, views: Mapping[Node, int]) -> TypedGraph:
    """The graph with a copy for every result that is a given array or a view of one; and for every updated value that
    is not a computation's own. Of a view of a whole value, that is written into the parameter."""
    nodes = list(graph.nodes)
    given = [node for node in graph.outputs if node is not None and behind(node, views) in graph.fed]
    made: dict[Node | None, Node] = {node: _copy(node, nodes) for node in dict.fromkeys(given)}
    updates = []
    taken: set[Node] = set()
    for parameter, value in graph.updates:
        whole = whole_of(value, views)
        if whole not in views and whole.op.kind != "scan":
            value = whole
        if value in graph.fed or value in views or value in taken:
            value = _copy(value, nodes)
        taken.add(value)
        updates.append((parameter, value))
    outputs = tuple([made.get(node, node) for node in graph.outputs])
    return replace(graph, nodes=tuple(nodes), outputs=outputs, updates=tuple(updates))


def _ordered(
    graph: TypedGraph, groups: list[Group], views: Mapping[Node, int]
) -> tuple[TypedGraph, list[Group], dict[Node, Node]]:
    """The kernels in an order that saves memory, and for each value that is written into a parameter this parameter. An
    update is written there at once where all readers of the old value can run before; other updates are computed in
    the arena and copied at the end, by kernels and nodes that are added."""
    placed: dict[Node, Node] = {}
    owner = {node: group for group in groups for node in group.outputs}
    readers: dict[Node, list[Group]] = defaultdict(list)
    followers: dict[int, list[Group]] = defaultdict(list)
    before: dict[int, list[Group]] = defaultdict(list)

    def put_behind(group: Group, earlier: Iterable[Group]) -> None:
        for other in earlier:
            if other is not group:
                before[id(group)].append(other)
                followers[id(other)].append(group)

    for group in groups:
        sources = [behind(value, views) for value in group.inputs]
        put_behind(group, [owner[source] for source in sources if source in owner])
        for source in sources:
            readers[source].append(group)

    nodes = list(graph.nodes)
    for parameter, value in graph.updates:
        group, others = owner[value], readers[parameter]
        if _may_be_written(group, value, parameter, views) and not _leads_to(group, others, followers):
            put_behind(group, others)
            placed[value] = parameter
            continue
        copy = _copy(value, nodes)
        last = Group((copy,), (value,), (copy,), "elementwise")
        put_behind(last, [group, *others])
        groups = [*groups, last]
        placed[copy] = parameter
    graph = replace(graph, nodes=tuple(nodes))
    elsewhere = {*graph.fed, *placed.values()}

    def memory_of(node: Node) -> Node:
        source = behind(node, views)
        return placed.get(source, source)

    kept = {memory_of(node) for node in graph.outputs if node is not None}
    order = list_schedule(
        groups,
        lambda group: before[id(group)],
        memory_of,
        lambda node: 0 if node in elsewhere else nbytes_of(node),
        kept,
    )
    assert len(order) == len(groups), "kernels depend on each other in a circle"  # copies have no readers
    return graph, order, placed


def _leads_to(group: Group, others: list[Group], followers: dict[int, list[Group]]) -> bool:
    """Whether one of the others, but the group itself, must come behind the group."""
    targets, seen = {id(other) for other in others} - {id(group)}, set[int]()
    stack = [group] if targets else []
    while stack and seen.isdisjoint(targets):
        new = [follower for follower in followers[id(stack.pop())] if id(follower) not in seen]
        seen.update(map(id, new))
        stack += new
    return not seen.isdisjoint(targets)


def _may_be_written(group: Group, value: Node, parameter: Node, views: Mapping[Node, int]) -> bool:
    """Whether the kernel that writes `value` may write it over the parameter."""
    if value.dtype != parameter.dtype:
        return False
    read = [one for one in group.inputs if behind(one, views) is parameter]
    alone = len(read) == 1 and read[0] is parameter and value.shape == parameter.shape
    return not read or (alone and parameter in set(group.overwritable(value)))


def placed_in_memory(
    graph: TypedGraph, groups: list[Group], views: Mapping[Node, int], placed: Mapping[Node, Node]
) -> MemoryPlan:
    """Where each value is, and from which kernel to which it is needed: in the arena, in a given array of which it is a
    view, or in the parameter into which it is written."""
    inner: dict[Node, list[Node]] = defaultdict(list)
    for view in views:
        inner[view.inputs[0]].append(view)
    last = dict.fromkeys(graph.fed, -1)
    for step, group in enumerate(groups):
        last.update(dict.fromkeys([*group.outputs, *group.inputs], step))
    last.update(dict.fromkeys([*placed, *(node for node in graph.outputs if node is not None)], len(groups)))
    values: list[Value] = []

    def put(value: Value) -> None:
        """Adds a value, and the views of it."""
        stack = [value]
        while stack:
            values.append(one := stack.pop())
            for node in reversed(inner[one.id]):
                read = last.get(node, one.first)
                stack.append(Value(node, nbytes_of(node), one.first, read, one.id, offset=views[node]))

    for node in graph.fed:
        put(Value(node, nbytes_of(node), -1, last[node], given=True))
    for step, group in enumerate(groups):
        read = Counter([behind(value, views) for value in group.inputs])  # a view may be read elsewhere
        for node in group.outputs:
            over = []
            for value in group.overwritable(node):
                source = behind(value, views)
                whole = source not in graph.fed and source not in placed and nbytes_of(source) == nbytes_of(node)
                # of several outputs, booleans are read where they are used, behind stores too: see `schedule.codegen`
                late = len(group.outputs) > 1 and value.dtype == "bool"
                in_arena = whole and read[source] == 1 and not late
                if (value is placed[node]) if node in placed else in_arena:
                    over.append(value)
            put(Value(node, nbytes_of(node), step, last[node], in_place=tuple(over), into=placed.get(node)))
    return plan_memory(values)
