"""From a graph after the passes to a plan: views, groups, their order, and where each value is."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from ..graph import Node
from ..ops import copy_op
from ..planner import MemoryPlan, Value, plan_memory
from .aliases import behind, find_views, whole_of
from .base import BOUNDARY, Reason, TypedGraph, nbytes_of
from .fuse import fuse
from .groups import Group, single_groups
from .plan import Plan

SHARING = 8  # readers: a matrix that many steps read is freed by none of them


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


def list_schedule(
    groups: Sequence[Group],
    before: Callable[[Group], Iterable[Group]],
    memory_of: Callable[[Node], Node],
    nbytes: Callable[[Node], int],
    kept: Container[Node],
) -> list[Group]:
    """The groups in an order that saves memory: among those whose `before` groups have run, always the one that frees
    the most memory beyond what it takes; if none frees any, the first as given. Each of the last SHARING readers of a
    value counts as freeing a part of it. So readers of one value follow each other, a gradient's update runs as soon as
    it can, and what is needed late waits. Groups that depend on each other in a circle are left out.

    `memory_of` gives the value whose memory a value is, `nbytes` the size of that in the arena, 0 for what lies
    elsewhere; `kept` are memories that are not freed.
    """
    position = {id(group): number for number, group in enumerate(groups)}
    waiting, followers = [0] * len(groups), [[] for _ in groups]  # type: tuple[list[int], list[list[int]]]
    for number, group in enumerate(groups):
        earlier = {position[id(other)] for other in before(group)} - {number}
        waiting[number] = len(earlier)
        for other in earlier:
            followers[other].append(number)
    size: dict[Node, int] = {}

    def memories(values: Iterable[Node]) -> set[Node]:
        found = set(map(memory_of, values))
        for memory in found:
            if memory not in size:
                size[memory] = nbytes(memory)
        return found

    read = [memories(group.inputs) for group in groups]
    growth = [sum(size[memory] for memory in memories(group.outputs)) for group in groups]
    readers: dict[Node, set[int]] = {}
    for number, sources in enumerate(read):
        for memory in sources:
            readers.setdefault(memory, set()).add(number)

    def freed(memory: Node, count: int) -> int:
        """The share of a memory that each of its last `count` readers frees."""
        return size[memory] // count if 0 < count <= SHARING and memory not in kept else 0

    for memory, numbers in readers.items():
        share = freed(memory, len(numbers))
        for number in numbers:
            growth[number] -= share

    def rank(number: int) -> tuple[int, int]:
        return min(growth[number], 0), number

    ready = [rank(number) for number, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)  # a group whose growth got less is there again
    done: dict[int, None] = {}
    while ready:
        _, number = heapq.heappop(ready)
        if number in done:
            continue
        done[number] = None
        for memory in read[number]:
            left = readers[memory]
            left.discard(number)
            if not left:
                continue
            more = freed(memory, len(left)) - freed(memory, len(left) + 1)
            for other in left if more else ():
                growth[other] -= more
                if waiting[other] == 0:
                    heapq.heappush(ready, rank(other))
        for follower in followers[number]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, rank(follower))
    return [groups[number] for number in done]
