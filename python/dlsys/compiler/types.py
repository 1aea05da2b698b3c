"""What one run computes: types and what is needed, for one signature of feeds; and what is wrong with it.

Operators that read an input for its shape become ones that hold the shape, see `Op.known`. Afterwards no node's shape
hangs on another's, so that what only gave its shape is free to go, and equal constants, broadcasts and sums are equal
nodes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checks import too_large
from ..errors import DTypeError, FeedError, GraphError, ShapeError
from ..graph import DTYPES, Node, Shape, error_at, shape_error
from ..ops import Variable
from ..ops.state import Assign, State, Updates
from ..ops.types import infer
from .base import SHAPES, Change, TypedGraph, needed, plain, rewrite, sorted_nodes


def feed_type(node: Node, value: Any) -> tuple[Shape, str]:
    """Shape and dtype of a feed, given as a shape or an array. Raises ShapeError."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(value.shape), str(value.dtype)
    try:
        shape = tuple(operator.index(extent) for extent in value)
    except TypeError:
        shape = (-1,)
    if min(shape, default=0) < 0:
        told = f"the feed's shape must be a tuple of extents, not {value!r}"
        raise ShapeError(f"{told} [node {node.name}, made at {node.location}]")
    return shape, str(node.attrs.get("dtype") or "float32")


def with_known_shapes(
    order: Sequence[Node], evaluated: Iterable[Node], fed: Container[Node]
) -> frozenset[Node]:
    """The nodes whose shape a run needs: those that `evaluated` depend on, behind fed nodes none. `order` is the
    graph's topological order."""
    return frozenset(needed(order, evaluated, fed, lambda node: node.inputs))


def analyse(
    order: Sequence[Node], evaluated: Sequence[Node], fed: Mapping[Node, tuple[Shape, str]]
) -> TypedGraph:
    """Infer shapes and dtypes, find what must be computed, take assignments and groups out of the graph, and make
    operators plain that depend on another node's shape. For a computed node that is fed a variable stands, so that no
    rule reads what is behind it; see `TypedGraph.leaf_of`.

    `order` is the graph's topological order, `fed` holds the shape and dtype of each feed. Raises FeedError for a
    variable that is needed and was not fed and for a parameter both fed and assigned, GraphError for two assignments
    to one parameter or a group that is computed with, ShapeError and DTypeError from the operators' rules.
    """
    known = with_known_shapes(order, evaluated, fed)
    computed = needed(order, evaluated, fed)
    shapes: dict[Node, Shape] = {}
    dtypes: dict[Node, str] = {}
    for node in order:
        if node in fed:
            shapes[node], dtypes[node] = fed[node]
            _check_declaration(node, *fed[node])
        elif node in known:
            if node.op.variable and (node in computed or None in node.attrs.values()):
                raise FeedError(
                    f"placeholder {node.name} was not fed [node {node.name}, made at {node.location}]"
                )
            infer(node, shapes, dtypes)
            if not node.op.builtin:
                _require_type(node, shapes[node], dtypes[node], shapes)
        if node in known and node.op.kind != "scan" and (told := too_large(shapes[node])):
            raise shape_error(node, told)

    given = {node for node in known if node in fed or node.cell is not None}
    nodes = [node for node in order if node in computed and node not in given]
    leaves = _first_of_each_cell(node for node in given if node not in fed)
    for node in [node for node in given if not node.op.variable and node.cell is None]:
        leaves[node] = leaf = Variable(node.name, *fed[node])
        leaf.placed_as(node)
        shapes[leaf], dtypes[leaf] = fed[node]
        given = given - {node} | {leaf}
    updates = _Updates(fed)

    def rule(node: Node, typed: TypedGraph) -> Change | Node | None:
        if not isinstance(node.op, State):
            return plain(node, typed)
        value = node.op.lowered(node, node.inputs, updates)
        return None if value is None else (value, "what changes state is no value of the graph")

    assigned = [leaves.get(node.inputs[0], node.inputs[0]) for node in nodes if isinstance(node.op, Assign)]
    if len(set(assigned)) < len(assigned):
        nodes.sort(key=lambda node: node.id)  # inputs have smaller ids, so it is an order too
    graph = TypedGraph(tuple(nodes), tuple(evaluated), (), frozenset(given), shapes, dtypes, {})
    name, why = SHAPES
    graph = rewrite(graph, rule, now=leaves, name=name, why=why)
    graph = _without_groups(replace(graph, updates=tuple(updates.values.items())))
    return replace(graph, nodes=sorted_nodes(graph))


class _Updates(Updates[Node]):
    """The values that parameters have after the run, in the order of the assignments."""

    def __init__(self, fed: Container[Node]) -> None:
        self.values: dict[Node, Node] = {}
        self._fed = fed
        self._by: dict[Node, Node] = {}

    def assign(self, node: Node, parameter: Node, value: Node) -> None:
        """Note the value. Raises GraphError for a second one, of which the first is no beginning, FeedError for a
        parameter that is fed."""
        if parameter in self.values and "follows" not in node.attrs:
            first = self._by[parameter]
            twice = f"{parameter.name} is assigned twice in one run, also by {first.name}, made at {first.location}"
            raise error_at(node, GraphError, twice)
        if parameter in self._fed:
            both = f"{parameter.name} is fed in the run that assigns it: set {parameter.name}.value instead"
            raise error_at(node, FeedError, both)
        self.values[parameter], self._by[parameter] = value, node

    def latest(self, parameter: Node) -> Node:
        """The value noted last, or the parameter."""
        return self.values.get(parameter, parameter)


def _without_groups(graph: TypedGraph) -> TypedGraph:
    """The graph without groups, which have no value. Raises GraphError for a node that computes with one."""
    groups = {node for node in graph.nodes if isinstance(node.op, State)}
    if not groups:
        return graph
    nodes = tuple(node for node in graph.nodes if node not in groups)
    for node in nodes:
        for value in node.inputs:
            if value in groups:
                raise error_at(node, GraphError, f"{value.name} is a group, which has no value to compute with")
    return replace(graph, nodes=nodes, outputs=tuple(None if node in groups else node for node in graph.outputs))


def _require_type(node: Node, shape: Any, dtype: Any, shapes: Mapping[Node, Shape]) -> None:
    """Raises ShapeError or DTypeError for what an operator's rules return that is no shape or no dtype, and for a view
    of another size than its input. `shapes`: of the inputs."""
    if type(shape) is not tuple or any(type(extent) is not int for extent in shape) or min(shape, default=0) < 0:
        raise shape_error(node, f"infer_shape must return a tuple of integers that are not negative, not {shape!r}")
    if node.op.kind == "view" and math.prod(shape) != math.prod(shapes[node.inputs[0]]):
        raise shape_error(node, f"a view has as many elements as its input: {shape} for {shapes[node.inputs[0]]}")
    if type(dtype) is not str or dtype not in DTYPES:
        told = f"infer_dtype must return the name of a dtype, one of {', '.join(DTYPES)}, not {dtype!r}"
        raise error_at(node, DTypeError, told)


def _first_of_each_cell(leaves: Iterable[Node]) -> dict[Node, Node]:
    """For a leaf whose cell an earlier one has too, as `p.detach()` has that of p, the earlier one: what is written to
    the one is written to the other."""
    first: dict[Any, Node] = {}
    ordered = sorted(leaves, key=lambda node: node.id)
    return {node: one for node in ordered if (one := first.setdefault(node.cell, node)) is not node}


def _check_declaration(node: Node, shape: Shape, dtype: str) -> None:
    """Raises ShapeError or DTypeError for a variable that is fed with another type than it is declared with."""
    declared, declared_dtype = node.attrs.get("shape"), node.attrs.get("dtype")
    if not node.op.variable and node.cell is None:
        return
    if declared is not None and declared != shape:
        raise shape_error(node, f"{node.name} is declared with shape {declared}, but fed with {shape}")
    if declared_dtype is not None and declared_dtype != dtype:
        raise error_at(node, DTypeError, f"{node.name} is declared as {declared_dtype}, but fed with {dtype}")
