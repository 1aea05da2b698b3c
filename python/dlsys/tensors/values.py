"""Values on demand: a graph whose leaves hold data is run by an executor when a value is asked for.

Cached are values that were asked for, the roots of `backward`, and the outputs of the outermost module call. A value
that was computed on the way to another is not cached the first time; if a later evaluation needs it, it is computed
once more and cached then, so a loop that asks for a value in each iteration does not start from the leaves each time.
Everything else is computed again when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..devices import Array, Context, array, copied, cpu
from ..errors import DeviceError, DlsysError, GraphError
from ..graph import FLOATS, Node
from ..ops import known_dtype, leaf
from ..ops.state import State, Updates
from . import state, trace
from .node import TensorNode
from .trace import Trace, require_not_overwritten


def evaluate(nodes: Sequence[Node], differentiated: bool = False) -> list[Array | None]:
    """The values of the nodes, each computed at most once; assignments among them, and changes of state that belong to
    them, are made after all have read the old values. None for a group. `differentiated`: the nodes are gradients, for
    which all is computed anew: what they read of the forward pass is too much to cache. Raises GraphError for a graph
    with variables, and what the operators raise."""
    found = Trace(nodes, differentiated)
    if found.outputs:
        places = tuple([found.place[node] for node in found.outputs])
        compiled, given = trace.compiled(found, places, lambda copies: ([copies[at] for at in places], [], None))
        keep(found, compiled.run(given))
        for node in () if differentiated else found.place:
            node.computed = True
    return [value_of(node) for node in nodes]


def keep(found: Trace, values: Sequence[Array]) -> None:
    """Hold the values of a trace's outputs, and give cells theirs. Raises GraphError where two assignments meet."""
    for node, value in zip(found.outputs, values, strict=False):
        node.held = value
    given: dict[Any, Node] = {}
    for assign in sorted(found.assigns, key=lambda node: node.id):
        parameter = assign.inputs[0]
        first = given.setdefault(parameter.cell, assign)
        if first is not assign:
            raise GraphError(f"{parameter.name} is assigned twice in one evaluation, at {assign.location}")
        parameter.cell.give(copied(cast(Array, assign.held)))
    for change in found.changes:
        change.inputs[0].cell.settle(change, cast(Array, change.held))


def value_of(node: Node) -> Array | None:
    """The value of a leaf, or the one that is held; None for a group. Raises GraphError for one that was
    overwritten."""
    if node.cell is not None:
        return node.cell.array()
    held: Array | None = node.known_value
    if held is not None:
        require_not_overwritten(node, node, held)
    return held


def context_of(node: Node) -> Context:
    """Where the node's value lies, or will be computed: see `Trace.context`."""
    seen, stack = {node}, [node]
    while stack:
        one = stack.pop()
        held = one.cell.content if one.cell is not None else one.known_value
        if type(held) is Array:
            if held.context.kind == "cuda" and not (one.cell is not None and one.cell.roams):
                return held.context
            continue
        new = [value for value in ([held] if held is not None else one.inputs) if value not in seen]
        seen.update(new)
        stack += new
    return cpu()


def moved(node: Node, ctx: Context) -> Node:
    """The node where its value lies on the context, else a leaf there that holds a copy of it. Raises DeviceError for a
    computed tensor with a history: what is on its way to a gradient stays on one device."""
    if context_of(node) == ctx:
        return node
    if leaves_that_require_grad(node):
        where = f"to: {node.name} has a history of gradients on {context_of(node)}"
        raise DeviceError(f"{where}: move the leaves that it is made of, or {node.name}.detach()")
    return leaf(array(array_of(node), ctx))


def array_of(node: Node) -> Array:
    """The node's value; see `arrays_of`."""
    return arrays_of([node])[0]


def arrays_of(nodes: Sequence[Node], differentiated: bool = False) -> list[Array]:
    """The nodes' values, see `evaluate`. Raises GraphError for a graph with variables, and for what has no value."""
    found = []
    for node, value in zip(nodes, evaluate(nodes, differentiated), strict=True):
        if value is None:
            raise GraphError(f"{node.name} has no value (made at {node.location})")
        found.append(value)
    return found


def evaluate_change(node: Node) -> Array:
    """The value of a change of state, computed with all others that wait."""
    try:
        evaluate([node, *state.waiting()])
    except DlsysError:  # of another one, maybe: it is raised where that one is asked for
        state.forget()
    return array_of(node)


def differentiated(node: Node) -> Sequence[Node]:
    """The inputs that gradients may go to: not those that are read for their shape alone."""
    if isinstance(node.op, State):
        value = node.op.lowered(node, node.inputs, Updates())
        return [] if value is None else [value]
    return node.op.differentiated(node)


def reached(outputs: Sequence[Node]) -> set[Node]:
    """The nodes to which gradients go from the outputs: none goes through integers and booleans, as far as dtypes are
    known, nor through what `requires_grad_` made an end of."""
    found, stack = set(outputs), list(outputs)
    while stack:
        node = stack.pop()
        if node.no_grad or (isinstance(node, TensorNode) and node.wants_grad):
            continue
        if node.op.kind != "scan" and known_dtype(node) not in (None, *FLOATS):
            continue
        new = [value for value in differentiated(node) if value not in found]
        found.update(new)
        stack += new
    return found


def leaves_that_require_grad(node: Node) -> list[TensorNode]:
    """The leaves with `requires_grad` to which gradients go from the node, in the order in which they were made."""
    found = [leaf for leaf in reached([node]) if isinstance(leaf, TensorNode) and leaf.wants_grad]
    return sorted(found, key=lambda leaf: leaf.id)
