"""From a graph after the passes to a program: aliases, groups, order, memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ..graph import Node
from ..ops import copy_op
from .aliases import Aliases, find_aliases, nbytes_of, whole_of
from .base import BOUNDARY, Reason, TypedGraph
from .fuse import fuse
from .groups import Group, single_groups
from .order import list_schedule
from .program import Program, planned


def lower(graph: TypedGraph, names: frozenset[str], kind: str, unplanned: int) -> Program:
    """The graph, of which the passes are done, grouped into kernels, and put in order. `names`: of "views" and "fuse"
    those that are wanted; `kind`: of the context; `unplanned`: the program's `bytes_unplanned`."""
    boundary = BOUNDARY[kind]
    aliases = find_aliases(graph, boundary) if "views" in names else Aliases()
    graph = _copied(graph, aliases)
    reasons: list[Reason] = []
    if "fuse" in names:
        groups = fuse(graph, aliases.views, columns=kind == "cpu", reasons=reasons)
    else:
        groups = single_groups(graph, aliases.views)
    return replace(_placed(graph, groups, aliases, unplanned, boundary), reasons=tuple(reasons))


def _copy(node: Node, nodes: list[Node]) -> Node:
    """A copy of a node, which is put among the nodes."""
    copy = copy_op(node)
    copy.placed_as(node)
    nodes.append(copy)
    return copy


def _copied(graph: TypedGraph, aliases: Aliases) -> TypedGraph:
    """The graph with a copy for every result that is somebody's else: a feed, a parameter, a view of one; and for every
    updated value that is not a computation's own. Of a view of a whole value, that is written into the parameter."""
    nodes = list(graph.nodes)
    others = (node for node in graph.outputs if node is not None and aliases.source(node) in graph.fed)
    made: dict[Node | None, Node] = {node: _copy(node, nodes) for node in dict.fromkeys(others)}
    updates = []
    taken: set[Node] = set()
    for parameter, value in graph.updates:
        whole = whole_of(value, graph, aliases)
        if whole not in aliases.lies_in and whole.op.kind != "scan":
            value = whole
        if value in graph.fed or value in aliases.views or value in taken:
            value = _copy(value, nodes)
        taken.add(value)
        updates.append((parameter, value))
    outputs = tuple([made.get(node, node) for node in graph.outputs])
    return replace(graph, nodes=tuple(nodes), outputs=outputs, updates=tuple(updates))


def _placed(
    graph: TypedGraph, groups: list[Group], aliases: Aliases, bytes_unplanned: int, boundary: int
) -> Program:
    """The program, its kernels in an order that saves memory. An update is written straight into its parameter where
    all readers of the old value can run before; other updates are computed in the arena and copied at the end."""
    placed: dict[Node, Node] = {}
    owner = {node: group for group in groups for node in group.outputs}
    readers: dict[Node, list[Group]] = defaultdict(list)
    followers: dict[int, list[Group]] = defaultdict(list)
    behind: dict[int, list[Group]] = defaultdict(list)

    def put_behind(group: Group, earlier: Iterable[Group]) -> None:
        for other in earlier:
            if other is not group:
                behind[id(group)].append(other)
                followers[id(other)].append(group)

    def before(group: Group) -> list[Group]:
        return behind[id(group)]

    for group in groups:
        sources = [aliases.computed(value) for value in group.inputs]
        put_behind(group, (owner[source] for source in sources if source in owner))
        for source in sources:
            readers[source].append(group)

    nodes = list(graph.nodes)
    for parameter, value in graph.updates:
        group, others = owner[value], readers[parameter]
        fits = _may_lie_on(group, value, parameter, graph, aliases)
        if fits and not _leads_to(group, others, followers):
            put_behind(group, others)
            placed[value] = parameter
            continue
        copy = _copy(value, nodes)
        last = Group((copy,), (value,), (copy,), "elementwise")
        put_behind(last, [group, *others])
        groups = [*groups, last]
        owner[copy] = last
        placed[copy] = parameter
    graph = replace(graph, nodes=tuple(nodes))
    lies_in = aliases.lies_in | {value: (parameter, 0) for value, parameter in placed.items()}
    elsewhere = {*graph.fed, *placed.values()}

    def in_arena(node: Node) -> int:
        return 0 if node in elsewhere else nbytes_of(node, graph)

    def memory_of(node: Node) -> Node:
        computed = aliases.computed(node)
        return placed.get(computed, computed)

    kept = {memory_of(node) for node in graph.outputs if node is not None}
    order = list_schedule(groups, before, memory_of, in_arena, kept)
    assert len(order) == len(groups), "kernels depend on each other in a circle"  # copies have no readers
    program = Program(
        graph, tuple(order), replace(aliases, lies_in=lies_in), graph.outputs, bytes_unplanned, boundary=boundary
    )
    return replace(program, memory=planned(program))


def _leads_to(group: Group, others: list[Group], followers: dict[int, list[Group]]) -> bool:
    """Whether one of the others, but the group itself, must come behind the group."""
    targets, seen = {id(other) for other in others} - {id(group)}, set[int]()
    stack = [group] if targets else []
    while stack and seen.isdisjoint(targets):
        new = [follower for follower in followers[id(stack.pop())] if id(follower) not in seen]
        seen.update(map(id, new))
        stack += new
    return not seen.isdisjoint(targets)


def _may_lie_on(group: Group, value: Node, parameter: Node, graph: TypedGraph, aliases: Aliases) -> bool:
    """Whether the kernel that writes `value` may write it over the parameter."""
    if value.dtype != parameter.dtype:
        return False
    own = [v for v in group.inputs if aliases.source(v) is parameter]
    alone = len(own) == 1 and own[0] is parameter and value.shape == parameter.shape
    return not own or (alone and parameter in set(group.overwritable(value, graph)))
