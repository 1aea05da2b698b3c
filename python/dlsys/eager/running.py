"""Values on demand: a graph whose leaves hold data runs through the executor, once, and keeps its result."""

from __future__ import annotations

import sys
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from ..autodiff import Node, Parameter
from ..device import Array
from ..device.array import copied
from ..errors import DlsysError, GraphError
from ..graph import DTYPES, FLOATS, error_at
from ..ops import dtype_of, will_change
from . import trace_cache, waiting
from .trace_cache import is_leaf, value_of

LONG = 128  # nodes: more are computed in pieces, which compile in less time than they would together
PIECE = 32
_WITHOUT_GRADIENT = frozenset(DTYPES) - frozenset(FLOATS)

FEW = 64  # values that one evaluation keeps for those that follow

_updated: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()  # `with_updates` that were made, by id
_STATE = ("assign", "latest", "with_updates", "group")
_cuts: OrderedDict[Any, list[list[int]]] = OrderedDict()  # of long graphs, see `_pieces`


def data_order(nodes: Iterable[Node]) -> list[Node]:
    """What `nodes` depend on down to the leaves, inputs first; updates made before are left out.

    Raises GraphError for a variable, which has no value of its own.
    """
    order: list[Node] = []
    opened: set[Node] = set()  # those whose inputs are in the order, or above them on the stack
    seen: set[Node] = set()
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            if node not in opened:
                opened.add(node)
                if node.op.name == "placeholder":
                    told = f"{node.name} is a variable without a value: feed it to an Executor"
                    raise error_at(node, GraphError, told)
                before = len(stack)
                stack += [value for value in reversed(inputs_of(node)) if value not in seen]
                if len(stack) > before:
                    continue
            stack.pop()
            if node not in seen:
                seen.add(node)
                order.append(node)
    return order


def inputs_of(node: Node) -> Sequence[Node]:
    """The nodes whose values a node's computation needs."""
    if is_leaf(node):
        return ()
    if node.op.name == "assign":
        return node.inputs[1:]
    if node.op.name != "with_updates":
        return node.inputs
    if node.id in _updated:
        return node.inputs[:1]
    return [value for value in node.inputs if not value.attrs.get("each_run")]


def evaluate(nodes: Sequence[Node], keep: bool = True, piece: bool = False) -> list[Array | None]:
    """The values of the nodes, each computed at most once; assignments among them, and those that come with them, are
    made after all have read the old values. None for a group.

    What an earlier evaluation computed on its way and this one reads again is kept from now on, unless `keep` is
    False, as for a gradient, which reads all of it: then what the program holds is kept, as the outputs of a network
    are, of which the accuracy is asked when its parameters have changed. `piece`: it is part of another evaluation.

    Raises GraphError for a graph with variables, and what the operators raise.
    """
    order = data_order(nodes)
    if waiting.before(order):
        order = data_order(nodes)
    made = _assignments(order)
    if made and will_change([assign.inputs[0] for assign in made]):  # type: ignore[misc]  # only Parameters
        order = data_order(nodes)  # some of it may have been computed now
        made = _assignments(order)
    held = [] if keep or piece else _held(order, set(nodes))
    if keep and not made and (again := _passed_before(order)):
        evaluate(again)
        order = data_order(nodes)
    if len(order) > LONG and not made and (pieces := _pieces(order, [*nodes, *held])):
        for part in pieces:
            evaluate(part, keep, piece=True)
        order = data_order(nodes)
        needed = set(order)
        held = [node for node in held if node in needed]
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
    read: list[Node] = []
    if assigns:
        others = [n for n in order if n not in new and n.op.name not in state]
        read = [n for n in others if not assigns.keys().isdisjoint(inputs_of(n))]
    keys = [n for n in read if dtype_of(n) not in FLOATS]
    wanted = [n for n in dict.fromkeys([*nodes, *keys, *held]) if not is_leaf(n) and n.op.name != "group"]
    outputs = list(dict.fromkeys([*wanted, *assigns.values()]))
    if outputs:
        with waiting.computing():
            values = dict(zip(outputs, trace_cache.run(*_as_made(order), outputs), strict=True))
            for node in wanted:
                node._value = values[node]
            for parameter, assign in assigns.items():
                at = assign.id if "follows" in assign.attrs else None
                _give(parameter, values[assign], assign._value is None, at)  # type: ignore[arg-type]  # only Parameters
        _note_made([node for node in order if node.op.name == "with_updates"])
        for node in order:  # computed on the way, and not kept
            node._passed = not (node._value is not None or isinstance(node, Parameter) or node.op.name in _STATE)
    return [value_of(node) for node in nodes]


def make_updates(nodes: Sequence[Node]) -> None:
    """Make the updates that come with nodes, in their order; those of graphs with variables are left to an Executor."""
    nodes = [node for node in nodes if is_data(node)]
    if not nodes:
        return
    assigns = [assign for node in nodes for assign in node.inputs[1:] if not assign.attrs.get("each_run")]
    evaluate(assigns)
    _note_made(nodes)


def _note_made(nodes: Sequence[Node]) -> None:
    """Note that the updates of nodes were made."""
    _updated.update((node.id, node) for node in nodes)
    waiting.happened(nodes)


def _give(parameter: Parameter, value: Array, whole: bool, at: int | None) -> None:
    """Let a Parameter have a value, in the same memory if it is to be had `whole`, since the node number `at`."""
    if (value.shape, value.dtype) == (parameter.shape, parameter.dtype):
        parameter.on(value.context)
        parameter.replace(value if whole else copied(value), at)
    else:
        parameter.value = value


def _assignments(order: Sequence[Node]) -> list[Node]:
    """The assignments that are to be made."""
    return [node for node in order if node.op.name == "assign" and not is_leaf(node)]


def _held(order: list[Node], asked: set[Node]) -> list[Node]:
    """The nodes, the last FEW of them, that something else refers to than the nodes of the order: a variable or a list
    of the program, as far as CPython's counts tell. But for those asked for."""
    count = getattr(sys, "getrefcount", None)
    if count is None:
        return []
    inner = Counter(chain.from_iterable([node.inputs for node in order]))
    # Besides: the order, the key of the counter, the loop's variable, and the argument of the call.
    found = [
        node
        for node in order
        if count(node) > inner[node] + (4 if node in inner else 3)
        and not (node in asked or is_leaf(node) or node.op.name in _STATE)
    ]
    return found[-FEW:]


def array_of(node: Node) -> Array:
    """The node's value. Raises GraphError for a graph with variables, and for what has no value."""
    (value,) = evaluate([node])
    if value is None:
        raise GraphError(f"{node.name} has no value (made at {node.location})")
    return value


def _passed_before(order: Sequence[Node]) -> list[Node]:
    """What earlier evaluations have computed and not kept, and what is new reads: the state of a loop that asks for
    something else in each round, which would begin anew each time. None of it where it is a lot."""
    new = [node for node in order if not node._passed and not is_leaf(node)]
    found = {value for node in new for value in inputs_of(node) if value._passed and not is_leaf(value)}
    return sorted(found, key=lambda node: node.id) if len(found) <= FEW else []


def _pieces(order: Sequence[Node], wanted: Sequence[Node]) -> list[list[Node]]:
    """`_narrow`, which takes as long as running the graph may; of graphs of the same operators in the same order it is
    the same, and where it were not, it were no worse a place to cut than any other."""
    place = {node: i for i, node in enumerate(order)}
    key = (tuple([node.op.name for node in order]), tuple([place[node] for node in wanted]))
    found = _cuts.get(key)
    if found is None:
        found = [[place[node] for node in piece] for piece in _narrow(order, wanted)]
        _cuts[key] = found
        if len(_cuts) > trace_cache.MOST_TRACES:
            _cuts.popitem(last=False)
    return [[order[i] for i in piece] for piece in found]


def _narrow(order: Sequence[Node], wanted: Sequence[Node]) -> list[list[Node]]:
    """Pieces of a long graph, inputs first, of `PIECE` nodes or more: each a node that is all that what follows needs
    of what is before, as a sum is to which a loop adds, and what is wanted before it."""
    asked = set(wanted)
    for candidate in (order, sorted(order, key=lambda node: node.id)):  # inputs have smaller ids
        last: dict[Node, int] = {}
        for i, node in enumerate(candidate):
            for value in inputs_of(node):
                if not is_leaf(value):
                    last[value] = i
        pieces: list[list[Node]] = []
        before: list[Node] = []  # that is wanted
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
                    pieces.append([node, *before])
                    before, begun = [], 0
            if node in asked and (not pieces or node is not pieces[-1][0]):
                before.append(node)
        if pieces:
            return pieces
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


def differentiated(node: Node) -> Sequence[Node]:
    """The inputs that gradients may go to: not those that are read for their shape alone."""
    if node.op.name == "with_updates":
        return node.inputs[:1]
    if not node.op.shape_only or node.op.name == "function":  # whose backward gives gradients to all
        return node.inputs
    return [value for i, value in enumerate(node.inputs) if i not in node.op.shape_only]


def leaves_that_require_grad(node: Node, modules: set[Any] | None = None) -> list[Parameter]:
    """The Parameters with `requires_grad` that the node depends on, also through values that were computed; not through
    integers and booleans, as far as dtypes have been asked for. Adds the modules to `modules` that the nodes are of."""
    found: list[Parameter] = []
    seen = {node}
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, Parameter) and current.requires_grad:
            found.append(current)
        if current.no_grad or current._dtype in _WITHOUT_GRADIENT:
            continue
        if modules is not None and current.module is not None:
            modules.add(current.module)
        new = [value for value in differentiated(current) if value not in seen]
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
