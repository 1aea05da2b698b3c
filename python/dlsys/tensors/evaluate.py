"""Values on demand: what a tensor needs is compiled, kept by its structure, and run.

`evaluate` is the one way to a value. State that was assigned and waits, and gradients that `backward` has left, are
computed in the same run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from ..devices import Array, Context, copied
from ..errors import GraphError
from ..graph import Handle, Node, find_topo_sort, named, stamp
from ..ops.state import Group
from ..scopes import scopes
from ..system import free_at_fork
from .executors import executors
from .structure import Graph, device_of, hold, overwritten

changing: threading.RLock = free_at_fork(threading.RLock())
"""Held from the reading of a tensor's node to the assignment of what was made of it, and while values are computed."""

MOST = 4  # changes of one state that wait; each holds the inputs of its network

_waiting: dict[int, tuple[Any, int, Node | None]] = {}
"""The tensors that were assigned, or given a gradient, and are not computed yet, by their ids: a weak reference, as
nobody asks for one that is gone; how often they were since; and the leaf that they named before."""


def wait(handle: Any, before: Node | None = None) -> None:
    """Let a tensor whose node was assigned wait for the next evaluation, or for one change more than `MOST`."""
    known, count, first = _waiting.get(id(handle), (None, 0, before))
    if known is None or known() is not handle:
        known, count, first = weakref.ref(handle), 0, before
    _waiting[id(handle)] = known, count + 1, first
    if count >= MOST:
        evaluate([handle.node])


def evaluate(nodes: Sequence[Any], in_place: Sequence[Any] = ()) -> list[Array | None]:
    """The values of the nodes, each computed at most once, in one run with all that waits; None of a group.

    `in_place`: the parameters and the state of an optimizer's step. The state is written into the arrays that hold it;
    parameters and gradients into new ones, as nodes made before may still read those. Raises GraphError for a graph
    with variables, and what the operators raise.
    """
    nodes = list(named(list(nodes)))
    if scopes.recording is not None and nodes:
        raise scopes.recording.asked(nodes)
    with changing:
        try:
            _evaluate(nodes, _that_wait(), in_place)
        except Exception:
            if not any(node.held is None and not isinstance(node.op, Group) for node in nodes) or not _waiting:
                raise
            _waiting.clear()  # one of those that waited may be at fault, which is raised where it is asked for
            _evaluate(nodes, [], ())
        return [value_of(node) for node in nodes]


def _that_wait() -> list[tuple[Any, Node | None]]:
    """The tensors that wait, and the leaves that they named before."""
    found = [(known(), before) for known, _, before in _waiting.values()]
    return [(handle, before) for handle, before in found if handle is not None and handle.node.held is None]


def _evaluate(nodes: list[Node], waiting: Sequence[tuple[Any, Node | None]], in_place: Sequence[Any]) -> None:
    members = [one for node in nodes for one in _members(node)]
    handles = [handle for handle, _ in waiting]
    roots = list(dict.fromkeys([node for node in (*members, *(h.node for h in handles)) if node.held is None]))
    if not roots:
        _waiting.clear()
        return
    graph = Graph(roots)
    written: list[tuple[Node | None, Node]] = []
    if in_place:
        own = set(map(id, in_place))
        for handle, before in waiting:
            node: Node = handle.node
            is_state = id(handle) in own and not node.tracks and before is not None and before in graph.place
            written.append((before if is_state else None, node))
        written = list({node: (before, node) for before, node in written if node in graph.place}.values())
    into = {value for _, value in written}
    outputs = list(dict.fromkeys([*(root for root in roots if root not in into), *graph.to_keep()]))
    outputs = [node for node in outputs if node not in into]
    values, new, in_place_of = executors.get(graph, outputs, written).run(graph)
    for node, value in zip(outputs, values, strict=True):
        hold(node, value)
    for before, node in written:
        hold(node, new.pop(0) if before is None else in_place_of[before])
        node.held.written = 0 if before is None else stamp()  # nobody has read a new array
    _assign(graph.assigns)
    for handle in handles:
        handle.settle()
    _waiting.clear()


def _members(node: Node) -> list[Node]:
    """The node; of a group, its members."""
    return [one for x in node.inputs for one in _members(x)] if isinstance(node.op, Group) else [node]


def _assign(assigns: Sequence[Node]) -> None:
    """Make the assignments of a run. Raises GraphError where two of them meet."""
    given: dict[Any, Node] = {}
    for assign in assigns:
        parameter = assign.inputs[0]
        handle = None if parameter.owner is None else parameter.owner()
        if given.setdefault(handle, assign) is not assign:
            raise GraphError(f"{parameter.name} is assigned twice in one evaluation, at {assign.location}")
        if handle is not None and assign.held is not None:
            handle.hold(copied(assign.held))


def value_of(node: Node) -> Array | None:
    """The value that a node holds; None of a group. Raises GraphError for one that was overwritten."""
    held: Array | None = node.held
    if held is not None and not node.op.leaf and held.written > node.id:
        raise overwritten(node, node)
    return held


def array_of(x: Any) -> Array:
    """The value of a tensor; see `arrays_of`."""
    node = x.node if isinstance(x, Handle) else x
    held = node.held
    if held is not None and (node.op.leaf or held.written <= node.id):
        if scopes.recording is not None:
            scopes.recording.reads(node)
        return held
    return arrays_of([node])[0]


def arrays_of(values: Sequence[Any]) -> list[Array]:
    """The values of tensors, see `evaluate`. Raises GraphError for a graph with variables, and for a group."""
    nodes = [x.node if isinstance(x, Handle) else x for x in values]
    found: list[Array] = []
    for node, value in zip(nodes, evaluate(nodes), strict=True):
        if value is None:
            raise GraphError(f"{node.name} has no value (made at {node.location})")
        found.append(value)
    return found


def context_of(x: Any) -> Context:
    """Where a tensor's value lies, or will be computed: see `Graph.context`."""
    node = x.node if isinstance(x, Handle) else x
    if node.is_open and scopes.recording is not None:
        return device_of(find_topo_sort([node]))
    return Graph([node]).context if node.held is None else node.held.context
