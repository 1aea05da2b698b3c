"""Loops over the first axis of arrays, as JAX's `lax.scan` has them: a graph for one step, applied once for each slice.

A loop has several results, and each is a node of its own, a `scan` with the loop's inputs and its body: the last
carried value ("last"), a carried value before the first step and after each ("track"), or any value of the body in
every step ("stack"). The executor runs those of one loop as one; `gradients` asks for their gradients at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import GraphError, ShapeError
from ..graph import DTYPES, Node, Op, Shape, below, error_at, register, stamp
from .inputs import Variable
from .loop import Body, by_numpy, loop_length, result, step_dtypes, step_shapes, value_in_steps, variable_like
from .operators import operand
from .scan_gradient import Adjoints, loop_gradients
from .state import State
from .types import known_dtype, known_shape


@register
class Scan(Op):
    """A result of a loop: `attrs["what"]`, see the module, of the value that is number `attrs["of"]` in the body.

    The inputs are the first carried values, what is sliced along its first axis, and what all steps read.
    """

    name = "scan"
    dtypes = DTYPES
    joint = True
    never = "a loop has no formula: its steps have kernels, see `dlsys.compiler.loops`"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        length, shapes = loop_length(node, input_shapes), step_shapes(node, input_shapes)
        lead = {"last": (), "track": (length + 1,), "stack": (length,)}[node.attrs["what"]]
        return (*lead, *shapes[node.attrs["of"]])

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return step_dtypes(node, input_dtypes)[node.attrs["of"]]

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 0  # its kernels say theirs

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        body, what, of = node.attrs["body"], node.attrs["what"], node.attrs["of"]
        length = loop_length(node, [x.shape for x in inputs])
        end = body.carried + body.sliced
        needed = body.needed([of])
        carried, found = list(inputs[: body.carried]), []
        before = [carried[of]] if what == "track" else []
        for t in reversed(range(length)) if body.reverse else range(length):
            slices = [x[t] for x in inputs[body.carried : end]]
            values = dict(zip(body.variables, [*carried, *slices, *inputs[end:]], strict=True))
            for i in needed:
                own = body.nodes[i]
                if own not in values:
                    values[own] = by_numpy(own, [values[value] for value in own.inputs])
            carried = [values.get(body.nodes[out], carried[k]) for k, out in enumerate(body.out)]
            found.append(carried[of] if what == "track" else values[body.nodes[of]])
        if what == "last":
            return np.array(carried[of])
        return np.stack([*before, *found][:: -1 if body.reverse else 1])

    def joint_gradient(
        self, nodes: Sequence[Node], grads: Sequence[Node], adjoints: Adjoints
    ) -> list[Node | None]:
        """The gradient with respect to each input of a loop, of several of its results."""
        return loop_gradients(nodes, grads, adjoints)


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
    variables = [variable_like(value, f"carried_by_loop_{i}") for i, value in enumerate(carried)]
    for i, value in enumerate(slices):
        shape = known_shape(value)
        if shape == ():
            raise ShapeError(f"scan: xs has no axis to slice: {value.name} is a number [made at {value.location}]")
        variables.append(Variable(f"slice_in_loop_{i}", None if shape is None else shape[1:], known_dtype(value)))
    mark = stamp()
    returned = body(_formed(variables[: len(carried)], init), _formed(variables[len(carried) :], xs))
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        pair = "a pair, the next carried values and what is kept"
        raise GraphError(f"scan: the body must return {pair}, not {returned!r}")
    out, kept = _listed("the body's carried values", returned[0]), _listed("what the body keeps", returned[1])
    if len(out) != len(carried):
        raise GraphError(f"scan: {len(carried)} values are carried, and the body returns {len(out)}")
    now, constants = _closed([*out, *kept], variables, mark)
    own = [list(variables[: len(carried)]), list(variables[len(carried) :]), [v for v, _ in constants]]
    made = Body(own, [now[node] for node in out], [now[node] for node in kept], reverse, length)
    inputs = [*carried, *slices, *(value for _, value in constants)]
    loop = Scan.make(inputs, {"body": made, "what": "last", "of": 0})
    last = [result(loop, "last", k) for k in range(len(carried))]
    ys = [value_in_steps(loop, made.number[now[node]]) for node in kept]
    return _formed(last, returned[0]), _formed(ys, returned[1])


scan = scan_op
"""Its name as `dl.scan`."""


def _listed(what: str, given: Any) -> list[Node]:
    """Nodes given as one, several or None; arrays become constants. Raises GraphError for anything else."""
    found = [] if given is None else list(given) if isinstance(given, (tuple, list)) else [given]
    for i, value in enumerate(found):
        found[i] = value if isinstance(value, Node) else operand(value)
        if not isinstance(found[i], Node):
            raise GraphError(f"scan: {what} must be a node or a tuple of nodes, not of {type(value).__name__}")
    return found


def _formed(nodes: Sequence[Node], like: Any) -> Any:
    """The nodes in the form in which they were given."""
    return tuple(nodes) if isinstance(like, (tuple, list)) else None if like is None else nodes[0]


def _closed(
    outputs: Sequence[Node], variables: Sequence[Node], mark: int
) -> tuple[dict[Node, Node], list[tuple[Node, Node]]]:
    """The nodes of a body, copied, with variables for what they read of the graph outside; and these variables, each
    with its node. `mark`: the id beyond which nodes were made in the body. Raises GraphError."""
    now: dict[Node, Node] = {variable: variable for variable in variables}
    constants: dict[Node, Node] = {}

    def read(node: Node) -> Node:
        if node not in now:
            constants[node] = now[node] = variable_like(node, node.name)
        return now[node]

    for node in below(outputs, lambda node: node.id <= mark or node in now):
        if isinstance(node.op, State):
            raise error_at(node, GraphError, "a loop's body changes no state and draws no random numbers")
        if node.op.name == "full":
            now[node] = node
        elif any(value in now and value not in constants for value in node.inputs):
            made = node.op.make([read(value) for value in node.inputs], node.attrs)
            made.placed_as(node)
            now[node] = made
    for node in outputs:
        read(node)
    return now, [(variable, node) for node, variable in constants.items()]
