"""Loops over the first axis of arrays, as JAX's `lax.scan` has them: a graph for one step, applied once for each slice.

A loop is one node, whose value is all that its steps compute; its type is a tuple of types, one for each node of its
body. A `scan_result` takes one of these values of all steps or of the last: only such nodes are read by others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..errors import GraphError, ShapeError
from ..graph import (
    DTYPES,
    Handle,
    Node,
    Op,
    Shape,
    Type,
    below,
    error_at,
    handles,
    named,
    register,
    stamp,
    type_of,
)
from .loop import Body, last_value, loop_length, loop_of, require_types, value_in_steps
from .operators import operand
from .scan_gradient import loop_gradients
from .state import State, variable_of


class Scan(Op):
    """A loop by `attrs["body"]`. The inputs are the first carried values, what is sliced along its first axis, and what
    all steps read."""

    name = kind = "scan"
    dtypes = DTYPES
    never = "a loop has no formula: its steps have kernels, see `dlsys.compiler.loops`"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Any:
        body, length = node.attrs["body"], loop_length(node, input_shapes)
        require_types(node, body)
        return tuple([(length, *one.shape) for one in body.nodes])

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> Any:
        return tuple([one.dtype for one in node.attrs["body"].nodes])

    def replayed(self, node: Node, inputs: list[Node]) -> tuple[Node, list[int]]:
        """The loop of inputs with types, and for each node of the body before the number of what stands for it."""
        body: Body = node.attrs["body"]
        typed, numbers = body.typed([_of_slice(x) if body.is_slice(i) else x.value_type for i, x in enumerate(inputs)])
        return self(*inputs, body=typed), numbers

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return loop_gradients(node, output_grad)


class ScanResult(Op):
    """Of a loop the value of node number `attrs["of"]` of its body, in all steps, (length, ...), or in the `last`."""

    name = "scan_result"
    dtypes = DTYPES
    never: ClassVar[str] = Scan.never

    def type_of(self, node: Node) -> Type | None:
        loop, of, last = node.inputs[0], node.attrs["of"], node.attrs["last"]
        if loop.value_type is None:
            return None
        if (items := loop.attrs.get("items")) is not None:  # what the compiler has made of a loop
            at = items.index((of, last))
            return type_of(loop.shape[at], loop.dtype[at])
        shape: Any = loop.shape[of]
        return type_of(shape[1:] if last else shape, loop.dtype[of])

    def replayed(self, node: Node, inputs: list[Any]) -> Node:
        (loop, numbers), of = inputs[0], node.attrs["of"]
        return (last_value if node.attrs["last"] else value_in_steps)(loop, numbers[of])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [SCAN_RESULT_GRADIENT(output_grad, **node.attrs)]


class ScanResultGradient(Op):
    """The gradient of a loop that is zero but for one result. The loop's own gradient takes sums of these apart, so
    they have no type and are never computed."""

    name = "scan_result_gradient"
    never: ClassVar[str] = Scan.never

    def type_of(self, node: Node) -> None:
        return None


register(Scan())
register(ScanResult())
SCAN_RESULT_GRADIENT = register(ScanResultGradient())


def scan_op(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """A loop over the first axis of xs that carries values: returns (carry, ys), as JAX's `lax.scan`.

    Args:
        body: a function from the carried values and a slice of xs to a pair: the next carried values, of the same
            shapes and dtypes, and what is kept of the step. It is called once, with variables.
        init: the first carried values, a node or a tuple of nodes; `body` gets and returns them in the same form.
        xs: what is sliced, a node or a tuple of nodes of one length, or None. Arrays do, too, as constants.
        length: the number of steps, needed where xs is None.
        reverse: go from the last slice to the first; ys are at the places of their slices.

    carry is what the last step returned; each of ys has an axis of the steps before those of `body`'s values. Of the
    graph outside, `body` may read any nodes. Raises GraphError for other arguments and results, and for a body that
    changes state or draws random numbers: do that before the loop.
    """
    if not callable(body):
        raise GraphError(f"scan: the body must be a function of carried values and a slice, not {type(body).__name__}")
    carried, slices = _listed("init", init), _listed("xs", xs)
    if length is None and not slices:
        raise GraphError("scan: without xs the length must be given")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise GraphError(f"scan: the length must be a positive integer, not {length!r}")
    first = [variable_of(x.value_type, f"carried_by_loop_{i}") for i, x in enumerate(carried)]
    parts = [variable_of(_of_slice(x), f"slice_in_loop_{i}") for i, x in enumerate(slices)]
    mark = stamp()
    returned = named(body(*(_formed(handles(x, Handle.results), like) for x, like in ((first, init), (parts, xs)))))
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        pair = "a pair, the next carried values and what is kept"
        raise GraphError(f"scan: the body must return {pair}, not {returned!r}")
    out, kept = _listed("the body's carried values", returned[0]), _listed("what the body keeps", returned[1])
    if len(out) != len(carried):
        raise GraphError(f"scan: {len(carried)} values are carried, and the body returns {len(out)}")
    inside = {*first, *parts}
    for node in below([*out, *kept], lambda node: node.id <= mark or node in inside):
        if isinstance(node.op, State):
            raise error_at(node, GraphError, "a loop's body changes no state and draws no random numbers")
        if node.op.constant or not inside.isdisjoint(node.inputs):
            inside.add(node)
    triples = list(zip(first, carried, out, strict=True))
    loop, numbers = loop_of(
        triples, dict(zip(parts, slices, strict=True)), kept, lambda node: node not in inside,
        lambda node: (node, False), reverse, length,
    )  # fmt: skip
    last = [last_value(loop, number) for number in numbers[: len(out)]]
    stacked = [value_in_steps(loop, number) for number in numbers[len(out) :]]
    return _formed(handles(last, Handle.results), returned[0]), _formed(handles(stacked, Handle.results), returned[1])


def _of_slice(value: Node) -> Type | None:
    """The type of a slice of a value along its first axis; None where it depends on what is fed. Raises ShapeError."""
    if value.value_type is None:
        return None
    if not value.shape:
        raise ShapeError(f"scan: xs has no axis to slice: {value.name} is a number [made at {value.location}]")
    return type_of(value.shape[1:], value.dtype)


scan = scan_op
"""Its name as `dl.scan`."""


def _listed(what: str, given: Any) -> list[Node]:
    """Nodes given as one, several or None; arrays become constants. Raises GraphError for anything else."""
    found = [] if given is None else named(list(given)) if isinstance(given, (tuple, list)) else [named(given)]
    for i, value in enumerate(found):
        found[i] = operand(value)
        if not isinstance(found[i], Node):
            raise GraphError(f"scan: {what} must be a node or a tuple of nodes, not of {type(value).__name__}")
    return found


def _formed(nodes: Sequence[Node], like: Any) -> Any:
    """The nodes in the form in which they were given."""
    return tuple(nodes) if isinstance(like, (tuple, list)) else None if like is None else nodes[0]
