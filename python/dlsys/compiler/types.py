"""What one run computes: types and what is needed, for one signature of feeds; and what is wrong with it.

Operators that read an input for its shape become ones that hold the shape. Afterwards no node's shape hangs on
another's, so that what only gave its shape is free to go, and equal constants, broadcasts and sums are equal nodes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from ..checks import too_large
from ..errors import DTypeError, FeedError, GraphError, ShapeError
from ..graph import DTYPES, Node, Shape, error_at, shape_error
from ..ops import broadcast_shape_op, div_byconst_op, full_op, reducesum_op, reshape_op, slice_op
from ..ops.joining import part_start
from ..ops.reduction import extent_divisor
from ..ops.slicing import slice_gradient_op
from .base import TypedGraph, rewrite, value_inputs
from .products import product_of_gradient


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
    known = set(evaluated)
    for node in reversed(order):
        if node in known and node not in fed:
            known.update(node.inputs)
    return frozenset(known)


def analyse(
    order: Sequence[Node], evaluated: Sequence[Node], fed: Mapping[Node, tuple[Shape, str]]
) -> TypedGraph:
    """Infer shapes and dtypes, find what must be computed, and take assignments and groups out of the graph.

    `order` is the graph's topological order, `fed` holds the shape and dtype of each feed. Raises FeedError for a
    variable that is needed and was not fed and for a parameter both fed and assigned, GraphError for two assignments
    to one parameter or a group that is computed with, ShapeError and DTypeError from the operators' rules.
    """
    known = with_known_shapes(order, evaluated, fed)
    needed = set(evaluated)
    for node in reversed(order):
        if node in needed and node not in fed:
            needed.update(value_inputs(node))

    shapes: dict[Node, Shape] = {}
    dtypes: dict[Node, str] = {}
    for node in order:
        if node in fed:
            shapes[node], dtypes[node] = fed[node]
            _check_declaration(node, *fed[node])
        elif node in known:
            if node.op.name == "placeholder" and (node in needed or None in node.attrs.values()):
                raise FeedError(
                    f"placeholder {node.name} was not fed [node {node.name}, made at {node.location}]"
                )
            shapes[node] = node.op.infer_shape(node, [shapes[value] for value in node.inputs])
            dtypes[node] = node.op.infer_dtype(node, [dtypes[value] for value in node.inputs])
            if not node.op.builtin:
                _require_type(node, shapes[node], dtypes[node], shapes)
        if node in known and (told := too_large(shapes[node])):
            raise shape_error(node, told)

    given = frozenset(node for node in known if node in fed or node.cell is not None)
    computed = [node for node in order if node in needed and node not in given]
    return _without_effects(computed, evaluated, fed, given, shapes, dtypes)


def _require_type(node: Node, shape: Any, dtype: Any, shapes: Mapping[Node, Shape]) -> None:
    """Raises ShapeError or DTypeError for what an operator's rules return that is no shape or no dtype, and for a view
    of another size than its input. `shapes`: of the inputs."""
    if type(shape) is not tuple or any(type(extent) is not int for extent in shape) or min(shape, default=0) < 0:
        raise shape_error(node, f"infer_shape must return a tuple of integers that are not negative, not {shape!r}")
    if node.op.is_view and math.prod(shape) != math.prod(shapes[node.inputs[0]]):
        raise shape_error(node, f"a view has as many elements as its input: {shape} for {shapes[node.inputs[0]]}")
    if type(dtype) is not str or dtype not in DTYPES:
        told = f"infer_dtype must return the name of a dtype, one of {', '.join(DTYPES)}, not {dtype!r}"
        raise error_at(node, DTypeError, told)


def _without_effects(
    computed: Sequence[Node],
    evaluated: Sequence[Node],
    fed: Mapping[Node, tuple[Shape, str]],
    given: frozenset[Node],
    shapes: dict[Node, Shape],
    dtypes: dict[Node, str],
) -> TypedGraph:
    """Assignments become `updates`, and whoever reads one, a value that comes with them, or a gradient whose type was
    looked at, reads the value; groups become no output. Those of `advance_op` to one parameter follow each other in the
    order of their making."""
    now = _first_of_each_cell(node for node in given if node not in fed)
    assigned = [now.get(node.inputs[0], node.inputs[0]) for node in computed if node.op.name == "assign"]
    if len(set(assigned)) < len(assigned):
        computed = sorted(computed, key=lambda node: node.id)  # inputs have smaller ids, so it is an order too
    updates: dict[Node, Node] = {}
    assigned_by: dict[Node, Node] = {}
    nodes = []
    for node in computed:
        inputs = [now.get(value, value) for value in node.inputs]
        if node.op.name == "assign":
            parameter, value = inputs
            if parameter in updates and "follows" not in node.attrs:
                first = assigned_by[parameter]
                twice = f"{parameter.name} is assigned twice in one run, also by {first.name}, made at {first.location}"
                raise error_at(node, GraphError, twice)
            if parameter in fed:
                both = f"{parameter.name} is fed in the run that assigns it: set {parameter.name}.value instead"
                raise error_at(node, FeedError, both)
            updates[parameter], assigned_by[parameter] = value, node
            now[node] = value
        elif node.op.name == "latest":
            now[node] = updates.get(inputs[0], inputs[0])
        elif node.op.name in ("with_updates", "as_gradient"):
            now[node] = inputs[0]
        elif node.op.name == "group":
            continue
        else:
            group = next((value for value in node.inputs if value.op.name == "group"), None)
            if group is not None:
                raise error_at(node, GraphError, f"{group.name} is a group, which has no value to compute with")
            if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
                now[node] = other = Node(node.op, inputs, node.attrs, node.name)
                other.placed_as(node)
                shapes[other], dtypes[other] = shapes[node], dtypes[node]
                node = other
            nodes.append(node)
    outputs = tuple(None if node.op.name == "group" else now.get(node, node) for node in evaluated)
    return TypedGraph(tuple(nodes), outputs, tuple(updates.items()), given, shapes, dtypes, dict(now))


def _first_of_each_cell(leaves: Iterable[Node]) -> dict[Node, Node]:
    """For a leaf whose cell an earlier one has too, as `p.detach()` has that of p, the earlier one: what is written to
    the one is written to the other."""
    first: dict[Any, Node] = {}
    ordered = sorted(leaves, key=lambda node: node.id)
    return {node: one for node in ordered if (one := first.setdefault(node.cell, node)) is not node}


def _check_declaration(node: Node, shape: Shape, dtype: str) -> None:
    declared, declared_dtype = node.attrs.get("shape"), node.attrs.get("dtype")
    if node.op.name not in ("placeholder", "parameter"):
        return
    if declared is not None and declared != shape:
        raise shape_error(node, f"{node.name} is declared with shape {declared}, but fed with {shape}")
    if declared_dtype is not None and declared_dtype != dtype:
        raise error_at(node, DTypeError, f"{node.name} is declared as {declared_dtype}, but fed with {dtype}")


def hold_shapes(graph: TypedGraph) -> TypedGraph:
    """No computed node but gradients of convolutions and the like has a `shape_only` input, and theirs are constants,
    which are not computed for that."""
    return rewrite(graph, _rule, name="shapes", why="the shapes are known")


def _rule(node: Node, graph: TypedGraph) -> Node | None:
    if not node.op.shape_only:
        return None
    return _RULES.get(node.op.name, _stand_in)(node, graph)


def _constant(value: float) -> Callable[[Node, TypedGraph], Node]:
    return lambda node, graph: full_op(graph.shapes[node], value, graph.dtypes[node])


def _broadcast_to(node: Node, graph: TypedGraph) -> Node:
    value, shape = node.inputs[0], graph.shapes[node]
    return value if graph.shapes[value] == shape else broadcast_shape_op(value, shape)


def _reshape_like(node: Node, graph: TypedGraph) -> Node:
    return reshape_op(node.inputs[0], graph.shapes[node])


def _broadcast_axes(node: Node, graph: TypedGraph) -> Node:
    value, like = node.inputs
    shape = graph.shapes[like]
    if not node.attrs["keepdims"]:
        axes = node.attrs["axes"]
        dropped = range(len(shape)) if axes is None else {axis % len(shape) for axis in axes}
        value = reshape_op(value, tuple(1 if axis in dropped else n for axis, n in enumerate(shape)))
    return broadcast_shape_op(value, shape)


def _sum_to_like(node: Node, graph: TypedGraph) -> Node:
    """A sum over the axes that a broadcast repeated, and a reshape where the others keep an extent of 1."""
    value = node.inputs[0]
    wide, shape = graph.shapes[value], graph.shapes[node]
    lead = len(wide) - len(shape)
    inner = [lead + i for i, extent in enumerate(shape) if extent == 1 != wide[lead + i]]
    if not lead and not inner:
        return value
    total = reducesum_op(value, (*range(lead), *inner), keepdims=bool(inner))
    return reshape_op(total, shape) if lead and inner else total


def _div_by_extent(node: Node, graph: TypedGraph) -> Node:
    value, like = node.inputs
    return div_byconst_op(value, extent_divisor(node, graph.shapes[like]))


def _part_key(axis: int, start: int, extent: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, start + extent))


def _concat_part(node: Node, graph: TypedGraph) -> Node:
    axis, start = part_start(node, *(graph.shapes[value] for value in node.inputs))
    return slice_op(node.inputs[0], _part_key(axis, start, graph.shapes[node][axis]))


def _concat_part_gradient(node: Node, graph: TypedGraph) -> Node:
    part, before, _, whole = (graph.shapes[value] for value in node.inputs)
    axis, start = part_start(node, whole, before, part)
    return slice_gradient_op(node.inputs[0], node.inputs[3], _part_key(axis, start, part[axis]))


def _matmul_gradient(node: Node, graph: TypedGraph) -> Node | None:
    found = product_of_gradient(node, graph)
    return _stand_in(node, graph) if found is None else found


def _stand_in(node: Node, graph: TypedGraph) -> Node | None:
    """The node with constants of the same shapes where it reads shapes only."""
    inputs = [
        full_op(graph.shapes[value], 0.0, graph.dtypes[value])
        if i in node.op.shape_only and value.op.name != "full"
        else value
        for i, value in enumerate(node.inputs)
    ]
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    return None if same else Node(node.op, inputs, node.attrs)


_RULES: dict[str, Callable[[Node, TypedGraph], Node | None]] = {
    "oneslike": _constant(1.0),
    "zeroslike": _constant(0.0),
    "broadcastto": _broadcast_to,
    "reshape_like": _reshape_like,
    "broadcast_axes": _broadcast_axes,
    "sum_to_like": _sum_to_like,
    "concat_part": _concat_part,
    "concat_part_gradient": _concat_part_gradient,
    "div_by_extent": _div_by_extent,
    "matmul_gradient": _matmul_gradient,
}
