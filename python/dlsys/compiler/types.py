"""What one run computes, for one signature of feeds: noted calls are replayed, what nothing needs is left out, and
assignments and groups are taken out; and what is wrong with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checks import MOST_ELEMENTS, too_large
from ..errors import DTypeError, FeedError, GraphError, ShapeError
from ..graph import Node, Shape, Type, error_at, find_topo_sort, shape_error, type_of
from ..ops.replay import fed_variable, replay
from ..ops.state import ASSIGN, LATEST, State, present
from .base import Change, TypedGraph, needed, rewrite, sorted_nodes


def feed_type(node: Node, value: Any, default: str = "float32") -> tuple[Shape, str]:
    """Shape and dtype of a feed, given as a shape or an array. A shape has the node's dtype, if that is known, else the
    default. Raises ShapeError."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(value.shape), str(value.dtype)
    try:
        shape = tuple(operator.index(extent) for extent in value)
    except TypeError:
        shape = (-1,)
    if min(shape, default=0) < 0:
        told = f"the feed's shape must be a tuple of extents, not {value!r}"
        raise ShapeError(f"{told} [node {node.name}, made at {node.location}]")
    return shape, node.attrs.get("dtype") or (default if node.value_type is None else node.dtype)


def needed_feeds(order: Sequence[Node], evaluated: Iterable[Node], fed: Container[Node]) -> frozenset[Node]:
    """The fed nodes that a run needs, for their values or their types: those that `evaluated` depend on, behind fed
    nodes none. `order` is the graph's topological order."""
    found = needed(order, evaluated, fed)
    return frozenset(node for node in found if node in fed)


def analyse(
    order: Sequence[Node],
    evaluated: Sequence[Node],
    fed: Mapping[Node, tuple[Shape, str]],
    stays: Callable[[Node], bool] | None = None,
) -> TypedGraph:
    """Replay the graph with the types of the feeds, find what must be computed, and take assignments and groups out of
    it. For a computed node that is fed a variable stands, so that no rule reads what is behind it; see
    `TypedGraph.leaf_of`.

    `order` is the graph's topological order, `fed` holds the shape and dtype of each feed. `stays`: which nodes are not
    replaced by what they stand for, as ONNX has an operator of their own (`Op.replacement`). Raises FeedError for a
    variable that is needed and was not fed and for a parameter both fed and assigned, GraphError for two assignments
    to one parameter or a group that is computed with, ShapeError and DTypeError from the operators' rules.
    """
    feeds = {node: type_of(*of) for node, of in fed.items()}
    stands_for, missing = replay(order, feeds)
    for root in evaluated:
        if root in missing:
            raise _not_fed(missing[root])
    given_for: dict[Node, Node] = {}
    for node, of in feeds.items():
        now = stands_for.get(node, node)
        if now.value_type is not of:
            raise _wrong_feed(node, now.value_type, of)
        given_for[now] = node
    roots = [stands_for.get(node, node) for node in evaluated]
    order = find_topo_sort(roots)
    ends = {*given_for, *(node for node in order if node.op.leaf)}  # what was assigned has inputs
    computed = needed(order, roots, ends)
    for node in order:
        if node in computed and node not in given_for:
            if node.op.variable:
                raise _not_fed(node)
            now_type = node.value_type
            is_usual = now_type is not None and 0 < now_type.size < MOST_ELEMENTS
            if not is_usual and node.op.kind != "scan" and (told := too_large(node.shape)):
                raise shape_error(node, told)

    given = {node for node in computed if node in given_for or node.op.leaf}
    given.update(given_for)
    nodes = [node for node in order if node in computed and node not in given and not node.op.immediate]
    leaves = _first_of_each_name(node for node in given if node not in given_for)
    for node in given_for:
        if not node.op.variable and not node.op.leaf:
            leaves[node] = fed_variable(node, type_of(node.shape, node.dtype))
            given = given - {node} | {leaves[node]}
    assigns: dict[Node, Node] = {}  # the last one of each parameter, in their order

    def rule(node: Node, typed: TypedGraph) -> Change | Node | None:
        op = node.op
        if not isinstance(op, State):
            return None if stays is not None and stays(node) else op.replacement(node)
        if op.value is None:
            return None
        value = node.inputs[op.value]
        if op is ASSIGN:
            _require_assignable(node, given_for, assigns.get(node.inputs[0]))
            assigns[node.inputs[0]] = node
        elif op is LATEST and value in assigns:
            value = assigns[value].inputs[1]
        return value, "what changes state is no value of the graph"

    assigned = [leaves.get(node.inputs[0], node.inputs[0]) for node in nodes if node.op is ASSIGN]
    if len(set(assigned)) < len(assigned):
        nodes.sort(key=lambda node: node.id)  # inputs have smaller ids, so it is an order too
    current = {node: now for node, now in stands_for.items() if isinstance(now, Node)}
    graph = TypedGraph(tuple(nodes), tuple(roots), (), frozenset(given), current)
    graph = rewrite(graph, rule, now=leaves, name="types", why="gradients have been made")
    updates = tuple([(parameter, node.inputs[1]) for parameter, node in assigns.items()])
    graph = _without_groups(replace(graph, updates=updates))
    return replace(graph, nodes=sorted_nodes(graph))


def _not_fed(variable: Node) -> FeedError:
    return FeedError(f"placeholder {variable.name} was not fed [node {variable.name}, made at {variable.location}]")


def _wrong_feed(node: Node, now: Type, fed: Type) -> ShapeError | DTypeError:
    """The error for a feed of another type than that of the node."""
    declared = f"{node.name} is declared" if node.op.variable or node.op.leaf else f"{node.name} is computed"
    if now.shape != fed.shape:
        return shape_error(node, f"{declared} with shape {now.shape}, but fed with {fed.shape}")
    return error_at(node, DTypeError, f"{declared} as {now.dtype}, but fed with {fed.dtype}")


def _require_assignable(node: Node, fed: Container[Node], before: Node | None) -> None:
    """Raises GraphError for an assignment to a parameter that another one `before` gives a value, unless it follows
    that, and FeedError for a parameter that is fed."""
    parameter = node.inputs[0]
    if before is not None and "follows" not in node.attrs:
        twice = f"{parameter.name} is assigned twice in one run, also by {before.name}, made at {before.location}"
        raise error_at(node, GraphError, twice)
    if parameter in fed:
        both = f"{parameter.name} is fed in the run that assigns it: set {parameter.name}.value instead"
        raise error_at(node, FeedError, both)


def _without_groups(graph: TypedGraph) -> TypedGraph:
    """The graph without groups, which have no value. Raises GraphError for a node that computes with one."""
    groups = {node for node in graph.nodes if isinstance(node.op, State)}
    if not groups:
        return graph
    nodes = tuple([node for node in graph.nodes if node not in groups])
    for node in nodes:
        for value in node.inputs:
            if value in groups:
                raise error_at(node, GraphError, f"{value.name} is a group, which has no value to compute with")
    return replace(graph, nodes=nodes, outputs=tuple([None if node in groups else node for node in graph.outputs]))


def _first_of_each_name(leaves: Iterable[Node]) -> dict[Node, Node]:
    """For a leaf of a handle of which there is an earlier one, as that of `p.detach()` beside that of p, the earlier
    one: both stand for what the handle names as the graph runs."""
    first: dict[Any, Node] = {}
    ordered = sorted(leaves, key=lambda node: node.id)
    return {node: one for node in ordered if (one := first.setdefault(present(node), node)) is not node}
