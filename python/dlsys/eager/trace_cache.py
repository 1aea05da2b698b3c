"""Compiled traces of graphs whose leaves hold data.

What is compiled is a copy in which every leaf is a variable, found again by operators, attributes, wiring, and the
leaves' types. Python numbers, as in `x * 0.37` or `x[i]`, are compiled in when a trace is met first. Where it is met
again with other numbers, those that changed become inputs: a loop with a changing number compiles twice, not each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff import (
    Executor,
    Node,
    Parameter,
    Variable,
    add_op,
    broadcast_shape_op,
    div_op,
    mul_op,
    power_op,
    take_op,
)
from ..device import Array, cpu
from ..executor import Arena
from ..graph import OPS, Shape
from ..ops import dtype_of, shape_of

MOST_TRACES = 512  # compiled traces that are kept; those used last
_WITH_NUMBER = {
    "add_byconst": add_op,
    "mul_byconst": mul_op,
    "div_byconst": div_op,
    "const_div": lambda x, number: div_op(number, x),
    "power_byconst": power_op,
}
_NUMBERED = frozenset({*_WITH_NUMBER, "full", "slice", "slice_gradient"})
_WHOLE = (None, None, None)


class _Structure:
    """A trace without its numbers. Its hash, which takes as long as all else that is done with it, is computed once."""

    __slots__ = ("hash", "trace")

    def __init__(self, trace: tuple[Any, ...]) -> None:
        self.trace, self.hash = trace, hash(trace)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and self.trace == other.trace


_traces: OrderedDict[Any, tuple[Executor, list[Node]]] = OrderedDict()
_numbers: OrderedDict[_Structure, tuple[_Structure, tuple[Any, ...], frozenset[int]]] = (
    OrderedDict()
)  # of each trace itself, the numbers that it was met with first, and which vary
_lock = threading.Lock()
_arena = Arena(cpu())  # of all traces: they run in turn, and their results are copies


def is_leaf(node: Node) -> bool:
    """Whether the node's value is there: it holds data, or was computed."""
    return isinstance(node, Parameter) or node._value is not None


def type_of(node: Node) -> tuple[Shape, str]:
    """The node's shape and dtype; of what was computed those of its value, so that nothing before it is looked at."""
    value = node._value
    return (shape_of(node), dtype_of(node)) if value is None else (value.shape, value.dtype)


def value_of(leaf: Node) -> Array | None:
    """A leaf's value; None for what has none."""
    return leaf.on(cpu()) if isinstance(leaf, Parameter) else leaf._value


def run(order: Sequence[Node], inputs: dict[Node, list[Node]], outputs: Sequence[Node]) -> list[Array]:
    """Copies of the outputs' values, by a compiled trace of the graph: its nodes, leaves too, inputs first."""
    leaves: list[Node] = []
    place = {node: i for i, node in enumerate(order)}
    trace: list[Any] = []
    numbers: list[Any] = []
    held: list[tuple[Node, int]] = []  # of each number its node, and which of its numbers it is
    for node in order:
        name = node.op.name
        if is_leaf(node):
            leaves.append(node)
            trace.append(type_of(node))
        elif name != "group":
            if name in _NUMBERED:
                rest, own = _split(node)
                held += [(node, i) for i in range(len(own))]
                numbers += own
            else:
                rest = tuple(node.attrs.items())
            trace.append((name, rest, tuple([place[value] for value in inputs[node]])))
    structure = _Structure((tuple(trace), tuple([place[node] for node in outputs])))
    told = tuple(number if number and number == number else repr(number) for number in numbers)  # -0.0 == 0.0
    with _lock:
        structure, first, varying = _numbers.get(structure, (structure, told, frozenset()))
        varying |= {i for i, (a, b) in enumerate(zip(first, told, strict=True)) if a != b}
        _numbers[structure] = structure, first, varying
        _numbers.move_to_end(structure)
        if (structure, told) in _traces:  # these very numbers are compiled in
            varying = frozenset()
        key = (structure, tuple(None if i in varying else number for i, number in enumerate(told)))
        found = _traces.get(key)
        if found is not None:
            _traces.move_to_end(key)
    lifted: dict[Node, list[int]] = {}
    for i in sorted(varying):
        node, which = held[i]
        dtype_of(node)  # says it if an integer dtype does not hold the number
        lifted.setdefault(node, []).append(which)
    if found is None:
        found = _compile(order, inputs, outputs, lifted)
        with _lock:
            _traces[key] = found
            for table in (_traces, _numbers):
                while len(table) > MOST_TRACES:
                    table.popitem(last=False)
    executor, variables = found
    given: list[Any] = [value_of(leaf) for leaf in leaves]
    given += [_number(node, which) for node, chosen in lifted.items() for which in chosen]
    return executor.run_copied(dict(zip(variables, given, strict=True)))


def _compile(
    order: Sequence[Node],
    inputs: dict[Node, list[Node]],
    outputs: Sequence[Node],
    lifted: dict[Node, list[int]],
) -> tuple[Executor, list[Node]]:
    """An executor for the graph with a variable for every leaf, and then for every number that is lifted."""
    now: dict[Node, Node] = {}
    variables = []
    of_numbers = {(node, which): Variable("number") for node, chosen in lifted.items() for which in chosen}
    for node in order:
        if is_leaf(node):
            now[node] = variable = Variable(node.name, *type_of(node))
            variables.append(variable)
        elif node.op.name in ("assign", "latest", "with_updates"):
            now[node] = now[inputs[node][0]]
        elif node.op.name != "group":
            own = [now[value] for value in inputs[node]]
            if node in lifted:
                now[node] = other = _with_inputs(node, own, {i: of_numbers[node, i] for i in lifted[node]})
            else:
                now[node] = other = Node(node.op, own, node.attrs, node.name)
            other.location = node.location
    return Executor([now[node] for node in outputs], arena=_arena), [*variables, *of_numbers.values()]


def _split(node: Node) -> tuple[Any, Sequence[Any]]:
    """A node's attributes without the numbers that may become inputs, and those numbers."""
    name, attrs = node.op.name, node.attrs
    if name in _WITH_NUMBER:
        return None, (attrs["const"],)
    if name == "full":
        return (attrs["shape"], attrs["dtype"]), (attrs["value"],)
    items = attrs["key"]  # of a slice, or the gradient of one
    rest = tuple(len(i) if _is_movable(i) else "i" if _is_integer(i) else (i,) for i in items)
    return rest, [item for item in items if _is_integer(item) or _is_movable(item)]


def _is_integer(item: Any) -> bool:
    return isinstance(item, int)


def _is_movable(item: Any) -> bool:
    """Whether the item of a key is a slice of less than a whole axis."""
    return isinstance(item, tuple) and len(item) == 3 and item != _WHOLE


def _places(node: Node) -> list[tuple[int, int]]:
    """Of a slice: for each of its numbers the item of the key without `...` that it is, and the axis of x."""
    key, rank = _spelled(node)
    found = []
    axis = 0
    for position, item in enumerate(key):
        if _is_integer(item) or _is_movable(item):
            found.append((position, axis))
        axis += item is not None
    assert axis == rank
    return found


def _spelled(node: Node) -> tuple[list[Any], int]:
    """A slice's key with an item for every axis of x, and x's number of axes."""
    key = list(node.attrs["key"])
    rank = len(shape_of(node.inputs[-1]))
    rest = [_WHOLE] * (rank - sum(item is not None and item is not Ellipsis for item in key))
    at = next((i for i, item in enumerate(key) if item is Ellipsis), len(key))
    return [*key[:at], *rest, *key[at + 1 :]], rank


def _number(node: Node, which: int) -> np.ndarray:
    """A number of a node as an input; of a slice the indices that it reads along its axis."""
    if node.op.name == "full":
        return np.asarray(node.attrs["value"], dtype_of(node))
    if node.op.name in _WITH_NUMBER:
        with np.errstate(over="ignore"):
            return np.asarray(node.attrs["const"], dtype_of(node.inputs[0]))
    position, axis = _places(node)[which]
    item, extent = _spelled(node)[0][position], shape_of(node.inputs[-1])[axis]
    if _is_integer(item):
        return np.asarray(item % extent)
    return np.arange(*slice(*item).indices(extent))


def _with_inputs(node: Node, inputs: list[Node], numbers: dict[int, Node]) -> Node:
    """What the node computes, with some of its numbers as inputs."""
    if node.op.name in _WITH_NUMBER:
        return _WITH_NUMBER[node.op.name](inputs[0], numbers[0])
    if node.op.name == "full":
        return broadcast_shape_op(numbers[0], node.attrs["shape"])
    key, _ = _spelled(node)
    chosen = [_places(node)[which][0] for which in sorted(numbers)]
    # First the items that stay, then along each other axis what it takes, from the last one on: so axes stay in place.
    rest = [_WHOLE if i in chosen else item for i, item in enumerate(key)]
    steps: list[tuple[Node, int]] = []
    for position, which in zip(reversed(chosen), sorted(numbers, reverse=True), strict=True):
        steps.append((numbers[which], sum(not _is_integer(item) for item in rest[:position])))
    whole = inputs[-1]  # of a gradient what was sliced, for its shape
    taken = [
        whole if all(item == _WHOLE for item in rest) else OPS["slice"].make([whole], {"key": tuple(rest)})
    ]
    for indices, axis in steps:
        taken.append(take_op(taken[-1], indices, axis))
    if node.op.name == "slice":
        return taken[-1]
    grad = inputs[0]
    for (indices, axis), like in zip(reversed(steps), reversed(taken[:-1]), strict=True):
        grad = OPS["take_gradient"].make([grad, indices, like], {"axis": axis})
    return grad if taken[0] is whole else OPS["slice_gradient"].make([grad, whole], {"key": tuple(rest)})
