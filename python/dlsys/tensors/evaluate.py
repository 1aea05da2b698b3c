"""Values on demand: what a tensor needs is compiled, kept by its structure, and run.

`evaluate` is the one way to a value. State that was assigned and waits, and gradients that `backward` has left, are
computed in the same run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..devices import Array, Context, copied
from ..errors import GraphError
from ..graph import Handle, Node, find_topo_sort, named
from ..hooks import hooks
from ..ops.state import Group, is_array
from ..scopes import scopes
from ..system import free_at_fork
from .executors import executors
from .structure import Graph, Update, device_of, hold, overwritten

changing: threading.RLock = free_at_fork(threading.RLock())
"""Held from the reading of a tensor's node to the assignment of what was made of it, and while values are computed."""

MOST = 4  # changes of one state that wait; each holds the inputs of its network

_waiting: dict[int, tuple[Any, int]] = {}
"""The tensors that were assigned, or given a gradient, and are not computed yet, by their ids: a weak reference, as
nobody asks for one that is gone, and how often they were since."""
_unread: dict[int, Any] = {}
"""The gradients by which an optimizer has stepped, and which nobody has read: computed with the first that is."""


@dataclass
class Step:
    """What an optimizer's step changes: the parameters get new arrays, as nodes made before may still read theirs; the
    state is written into the arrays that hold it.

    Attributes:
        parameters, state: the tensors.
        others: nodes that the step reads besides: rates, and gradients.
        update: the formula.
    """

    parameters: Sequence[Any]
    state: Sequence[Any]
    others: Sequence[Any]
    update: Update

    def node(self) -> Node:
        """The node of the step."""
        state = [x.node if is_array(x.node) else hooks.settled(x) for x in self.state]
        inputs = [*(x.node for x in self.parameters), *state, *named(self.others)]
        return Node(self.update, inputs, {"new": len(self.parameters), "state": len(state)})


def wait(handle: Any) -> None:
    """Let a tensor whose node was assigned wait for the next evaluation, or for one change more than `MOST`."""
    known, count = _waiting.get(id(handle), (None, 0))
    if known is None or known() is not handle:
        known, count = weakref.ref(handle), 0
    _waiting[id(handle)] = known, count + 1
    if count >= MOST:
        evaluate([handle.node])


def is_unread(handle: Any) -> bool:
    """Whether the tensor is a gradient by which an optimizer has stepped, and which is not computed."""
    return id(handle) in _unread and handle.node.held is None


def evaluate(nodes: Sequence[Any], step: Step | None = None) -> list[Array | None]:
    """The values of the nodes, each computed at most once, in one run with all that waits, and with an optimizer's
    `step`; None of a group. Raises GraphError for a graph with variables, and what the operators raise.
    """
    nodes = list(named(list(nodes)))
    if scopes.recording is not None and nodes:
        raise scopes.recording.asked(nodes)
    with changing:
        try:
            _evaluate(nodes, _alive(known for known, _ in _waiting.values()), step)
        except Exception:
            if not any(node.held is None and not isinstance(node.op, Group) for node in nodes) or not _waiting:
                raise
            _waiting.clear()  # one of those that waited may be at fault, which is raised where it is asked for
            _evaluate(nodes, [], None)
        return [value_of(node) for node in nodes]


def _alive(references: Iterable[Any]) -> list[Any]:
    """The tensors that are not gone, nor computed."""
    return [handle for known in references if (handle := known()) is not None and handle.node.held is None]


def _evaluate(nodes: list[Node], waiting: list[Any], step: Step | None) -> None:
    members = [one for node in nodes for one in _members(node)]
    update = None
    if step is not None:
        update, parameters = step.node(), set(map(id, step.parameters))
        unread = {id(x.grad): weakref.ref(x.grad) for x in step.parameters if x.grad is not None}
        waiting = [x for x in waiting if id(x) not in parameters and id(x) not in unread]
        members.append(update)
    graph = _graph_of(members, waiting)
    if graph is not None and step is None and _unread and graph.has_gradients:
        waiting += [x for x in _alive(_unread.values()) if x not in set(waiting)]
        graph = _graph_of(members, waiting)
    if graph is not None:
        into_new = list(dict.fromkeys([x.node for x in waiting])) if step is not None else []
        apart = {*into_new, update}
        outputs = [node for node in dict.fromkeys([*graph.roots, *graph.to_keep()]) if node not in apart]
        values, new = executors.get(graph, outputs, into_new, update).run(graph)
        for node, value in zip((*outputs, *into_new), (*values, *new), strict=False):
            hold(node, value)
        _assign(graph.assigns)
        for handle in waiting:
            handle.settle()
        if step is not None:
            for handle, value in zip(step.parameters, new[len(into_new) :], strict=True):
                handle.hold(value)
            _unread.clear()
            _unread.update(unread)
    _waiting.clear()


def _graph_of(members: Sequence[Node], waiting: Sequence[Any]) -> Graph | None:
    """The graph of what has no value yet."""
    roots = dict.fromkeys([node for node in (*members, *(x.node for x in waiting)) if node.held is None])
    return Graph([*roots]) if roots else None


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
