"""Values on demand: a graph whose leaves hold data runs through the executor, once, and keeps its result.

Graphs of one form share a compiled plan: what is compiled is a copy in which every leaf is a variable, found again by
operators, attributes, wiring, and the leaves' types.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..autodiff import Executor, Node, Parameter, Variable
from ..device import Array, cpu
from ..errors import DlsysError, GraphError
from ..graph import FLOATS, Shape, error_at

MOST_FORMS = 512  # compiled forms that are kept; those used last
_forms: OrderedDict[Any, tuple[Executor, list[Node]]] = OrderedDict()
_lock = threading.Lock()
_updated: weakref.WeakSet[Node] = weakref.WeakSet()  # the `with_updates` whose updates have been made


def is_leaf(node: Node) -> bool:
    """Whether the node's value is there: it holds data, or was computed."""
    return isinstance(node, Parameter) or node._value is not None


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
    return node.inputs[:1] if node in _updated else node.inputs


def _inferred(node: Node, slot: str, infer: Callable[[Node, list[Any]], Any]) -> Any:
    """What `infer` says of the node, given what it said of its inputs; kept in a slot of each."""
    stack = [node]
    while stack:
        current = stack[-1]
        waiting = [value for value in current.inputs if getattr(value, slot) is None]
        if getattr(current, slot) is None and waiting:
            stack += waiting
            continue
        if getattr(current, slot) is None:
            setattr(current, slot, infer(current, [getattr(value, slot) for value in current.inputs]))
        stack.pop()
    return getattr(node, slot)


def shape_of(node: Node) -> Shape:
    """The node's shape, where it follows from data and declarations; ShapeError else, and where shapes do not fit."""
    return _inferred(node, "_shape", lambda n, shapes: n.op.infer_shape(n, shapes))


def dtype_of(node: Node) -> str:
    """The node's dtype, where it follows from data and declarations; DTypeError else, and where dtypes do not fit."""
    return _inferred(node, "_dtype", lambda n, dtypes: n.op.infer_dtype(n, dtypes))


def type_of(node: Node) -> tuple[Shape, str]:
    """`shape_of` and `dtype_of`."""
    return shape_of(node), dtype_of(node)


def evaluate(nodes: Sequence[Node]) -> list[Array | None]:
    """The values of the nodes, each computed at most once; assignments among them, and those that come with them, are
    made after all have read the old values. None for a group.

    Raises GraphError for a graph with variables, and what the operators raise.
    """
    order = data_order(nodes)
    assigns: dict[Node, Node] = {}
    for node in order:
        if node.op.name == "assign" and not is_leaf(node) and assigns.setdefault(node.inputs[0], node) is not node:
            raise error_at(node, GraphError, f"{node.inputs[0].name} is assigned twice in one evaluation")
    # Keys of random numbers are kept: computing something else from the same draw must find the same draw.
    new = {assign.inputs[1] for assign in assigns.values()}  # what state becomes is another value each time
    read = [n for n in order if n not in new and n.op.name != "assign" and any(v in assigns for v in inputs_of(n))]
    keys = [n for n in read if dtype_of(n) not in FLOATS]
    wanted = [n for n in dict.fromkeys([*nodes, *keys]) if not is_leaf(n) and n.op.name != "group"]
    outputs = list(dict.fromkeys([*wanted, *assigns.values()]))
    if outputs:
        values = dict(zip(outputs, _run(*_as_made(order), outputs), strict=True))
        for node in wanted:
            node._value = values[node]
        for parameter, value in assigns.items():
            parameter.value = values[value]  # type: ignore[attr-defined]  # only Parameters are assigned
        _updated.update(node for node in order if node.op.name == "with_updates")
    return [value_of(node) for node in nodes]


def value_of(leaf: Node) -> Array | None:
    """A leaf's value; None for what has none."""
    return leaf.on(cpu()) if isinstance(leaf, Parameter) else leaf._value


def _as_made(order: Sequence[Node]) -> tuple[list[Node], dict[Node, list[Node]]]:
    """The order and each node's inputs, in which leaves stand for the values that Parameters had when a node was made.

    Raises GraphError where such a value is gone.
    """
    earlier: dict[Node, Parameter] = {}
    inputs = {node: list(inputs_of(node)) for node in order}
    for node, read in inputs.items():
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
        read = node.inputs[:1] if node.op.name == "with_updates" else node.inputs
        for value in read:
            if isinstance(value, Parameter) and value.requires_grad and value.seen_by(node) is not value._array:
                changed = f"{value.name} was changed after this was computed from it: build the graph anew"
                raise error_at(node, GraphError, changed)
            if value not in seen:
                seen.add(value)
                stack.append(value)


def _run(order: Sequence[Node], inputs: dict[Node, list[Node]], outputs: Sequence[Node]) -> list[Array]:
    """Copies of the outputs' values, by a compiled form of the graph."""
    leaves = [node for node in order if is_leaf(node)]
    number = {node: i for i, node in enumerate(order)}
    form: list[Any] = []
    for node in order:
        if is_leaf(node):
            form.append(type_of(node))
        elif node.op.name != "group":
            wiring = tuple(number[value] for value in inputs[node])
            form.append((node.op.name, tuple(node.attrs.items()), wiring))
    key = (tuple(form), tuple(number[node] for node in outputs))
    with _lock:
        found = _forms.get(key)
        if found is not None:
            _forms.move_to_end(key)
    if found is None:
        found = _compile(order, inputs, outputs)
        with _lock:
            _forms[key] = found
            while len(_forms) > MOST_FORMS:
                _forms.popitem(last=False)
    executor, variables = found
    return executor.run_copied({v: value_of(leaf) for v, leaf in zip(variables, leaves, strict=True)})


def _compile(
    order: Sequence[Node], inputs: dict[Node, list[Node]], outputs: Sequence[Node]
) -> tuple[Executor, list[Node]]:
    """An executor for the graph with a variable for every leaf."""
    now: dict[Node, Node] = {}
    variables = []
    for node in order:
        if is_leaf(node):
            now[node] = variable = Variable(node.name, *type_of(node))
            variables.append(variable)
        elif node.op.name in ("assign", "with_updates"):
            now[node] = now[inputs[node][0]]
        elif node.op.name != "group":
            now[node] = other = Node(node.op, [now[value] for value in inputs[node]], node.attrs, node.name)
            other.location = node.location
    return Executor([now[node] for node in outputs]), variables


def leaves_that_require_grad(node: Node) -> list[Parameter]:
    """The Parameters with `requires_grad` that the node depends on, also through values that were computed."""
    found: list[Parameter] = []
    seen = {node}
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, Parameter) and current.requires_grad:
            found.append(current)
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


def known_shape(node: Node) -> Shape | None:
    """The node's shape if it follows from data and declarations, else None."""
    try:
        return shape_of(node)
    except DlsysError:
        return None
