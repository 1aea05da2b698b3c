"""Values on demand: a graph whose leaves hold data runs through the executor, once, and keeps its result."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from ..autodiff import Node, Parameter
from ..device import Array
from ..errors import DlsysError, GraphError
from ..graph import DTYPES, FLOATS, error_at
from ..ops import dtype_of
from . import forms
from .forms import is_leaf, value_of

LONG = 128  # nodes: more are computed in pieces, which compile in less time than they would together
PIECE = 32
_WITHOUT_GRADIENT = frozenset(DTYPES) - frozenset(FLOATS)

_updated: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()  # `with_updates` that were made, by id


def data_order(nodes: Iterable[Node]) -> list[Node]:
    """What `nodes` depend on down to the leaves, inputs first; updates made before are left out.

    Raises GraphError for a variable, which has no value of its own.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in seen:
                stack.pop()
                continue
            if node.op.name == "placeholder":
                raise error_at(node, GraphError, f"{node.name} is a variable without a value: feed it to an Executor")
            waiting = [value for value in inputs_of(node) if value not in seen]
            if waiting:
                stack += reversed(waiting)
            else:
                seen.add(node)
                order.append(node)
                stack.pop()
    return order


def inputs_of(node: Node) -> Sequence[Node]:
    """The nodes whose values a node's computation needs."""
    if is_leaf(node):
        return ()
    if node.op.name == "assign":
        return node.inputs[1:]
    made = node.op.name == "with_updates" and node.id in _updated
    return node.inputs[:1] if made else node.inputs


def evaluate(nodes: Sequence[Node]) -> list[Array | None]:
    """The values of the nodes, each computed at most once; assignments among them, and those that come with them, are
    made after all have read the old values. None for a group.

    Raises GraphError for a graph with variables, and what the operators raise.
    """
    order = data_order(nodes)
    made = [node for node in order if node.op.name == "assign" and not is_leaf(node)]
    if len(order) > LONG and not made and (ends := _narrow(order)):
        for node in ends:
            evaluate([node])
        order = data_order(nodes)
    assigns = {node.inputs[0]: node for node in made}
    if len(assigns) < len(made):  # some follow each other
        order.sort(key=lambda node: node.id)  # inputs have smaller ids, so it is an order too
        assigns = {}
        for node in sorted(made, key=lambda node: node.id):
            if assigns.setdefault(node.inputs[0], node) is not node and "follows" not in node.attrs:
                raise error_at(node, GraphError, f"{node.inputs[0].name} is assigned twice in one evaluation")
            assigns[node.inputs[0]] = node
    # Keys of random numbers are kept: computing something else from the same draw must find the same draw.
    new = {assign.inputs[1] for assign in assigns.values()}  # what state becomes is another value each time
    state = ("assign", "latest")
    read = [n for n in order if n not in new and n.op.name not in state and any(v in assigns for v in inputs_of(n))]
    keys = [n for n in read if dtype_of(n) not in FLOATS]
    wanted = [n for n in dict.fromkeys([*nodes, *keys]) if not is_leaf(n) and n.op.name != "group"]
    outputs = list(dict.fromkeys([*wanted, *assigns.values()]))
    if outputs:
        values = dict(zip(outputs, forms.run(*_as_made(order), outputs), strict=True))
        for node in wanted:
            node._value = values[node]
        for parameter, value in assigns.items():
            parameter.value = values[value]  # type: ignore[attr-defined]  # only Parameters are assigned
        _updated.update((node.id, node) for node in order if node.op.name == "with_updates")
    return [value_of(node) for node in nodes]


def array_of(node: Node) -> Array:
    """The node's value. Raises GraphError for a graph with variables, and for what has no value."""
    (value,) = evaluate([node])
    if value is None:
        raise GraphError(f"{node.name} has no value (made at {node.location})")
    return value


def _narrow(order: Sequence[Node]) -> list[Node]:
    """Where a long graph comes apart: nodes, inputs first, each of which is all that what follows needs of what is
    before, with at least `PIECE` nodes in between. A sum to which a loop adds is one after every round."""
    for candidate in (order, sorted(order, key=lambda node: node.id)):  # inputs have smaller ids
        last: dict[Node, int] = {}
        for i, node in enumerate(candidate):
            for value in inputs_of(node):
                if not is_leaf(value):
                    last[value] = i
        ends: list[Node] = []
        open_, begun = 0, 0  # nodes that are needed later, and how many nodes the piece has
        closing: dict[int, int] = {}
        for i, node in enumerate(candidate):
            if is_leaf(node):
                continue
            begun += 1
            open_ -= closing.pop(i, 0)
            if node in last:
                open_ += 1
                closing[last[node]] = closing.get(last[node], 0) + 1
                if open_ == 1 and begun >= PIECE:
                    ends.append(node)
                    begun = 0
        if ends:
            return ends
    return []


def _as_made(order: Sequence[Node]) -> tuple[list[Node], dict[Node, list[Node]]]:
    """The order and each node's inputs, in which leaves stand for the values that Parameters had when a node was made.

    Raises GraphError where such a value is gone.
    """
    earlier: dict[Node, Parameter] = {}
    inputs = {node: list(inputs_of(node)) for node in order}
    left: dict[Node, Node] = {}  # by the assignments so far
    for node, read in inputs.items():
        if node.op.name == "assign" and read:
            left[node.inputs[0]] = node
        elif node.op.name == "latest":
            read[:] = [left.get(node.inputs[0], node.inputs[0])]
            continue  # the value of now, whenever the node was made
        for i, value in enumerate(read):
            if isinstance(value, Parameter) and (memory := value.seen_by(node)) is not value._array:
                if memory is None:
                    gone = f"{value.name} was changed since, and its value then is gone: compute this before, or anew"
                    raise error_at(node, GraphError, gone)
                if value not in earlier:
                    earlier[value] = Parameter.sharing(memory, value.name)
                read[i] = earlier[value]
    inputs |= {leaf: [] for leaf in earlier.values()}
    used = {value for read in inputs.values() for value in read}
    return [node for node in (*earlier.values(), *order) if node in used or not is_leaf(node)], inputs


def require_unchanged(output: Node) -> None:
    """Raises GraphError where a Parameter that requires a gradient was changed after a node read it: the gradient would
    mix two values."""
    stack, seen = [output], {output}
    while stack:
        node = stack.pop()
        if node.no_grad:
            continue
        read = node.inputs[:1] if node.op.name == "with_updates" else node.inputs
        for value in read:
            if isinstance(value, Parameter) and value.requires_grad and value.seen_by(node) is not value._array:
                changed = f"{value.name} was changed after this was computed from it: build the graph anew"
                raise error_at(node, GraphError, changed)
            if value not in seen:
                seen.add(value)
                stack.append(value)


def leaves_that_require_grad(node: Node) -> list[Parameter]:
    """The Parameters with `requires_grad` that the node depends on, also through values that were computed; not through
    integers and booleans, as far as dtypes have been asked for."""
    found: list[Parameter] = []
    seen = {node}
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, Parameter) and current.requires_grad:
            found.append(current)
        if current.no_grad or current._dtype in _WITHOUT_GRADIENT:
            continue
        inputs = current.inputs[:1] if current.op.name == "with_updates" else current.inputs
        new = [value for value in inputs if value not in seen]
        seen.update(new)
        stack += new
    return sorted(found, key=lambda parameter: parameter.id)


def is_data(node: Node) -> bool:
    """Whether all that the node depends on holds data."""
    try:
        data_order([node])
    except DlsysError:
        return False
    return True
