"""Changes of state: assignments to leaves that follow each other, as running means and counters change.

They happen in the order of the calls, whether or not anybody looks: each reads what the one before left. A batch norm's
statistics cost no pass of their own when they are computed with the network's output, so they wait for it, or until the
state is read or saved, or many changes of it wait. The evaluation that computes a change settles it: the cell holds the
array then.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from ..errors import GraphError
from ..graph import Made, Node
from ..ops import dtype_of, shape_of
from ..ops.state import Assign, Cell, Latest, WithUpdates
from ..system import free_at_fork
from .node import TensorNode

changing: threading.RLock = free_at_fork(threading.RLock())
"""Held from the reading of a leaf to the writing of what was computed from it: where gradients are added, in place, in
an optimizer's step, where state advances. It is one for all leaves, whose values are computed in turn in any case."""

MOST = 4  # changes of a cell that wait; each holds the inputs of its network

_changing: weakref.WeakSet[Cell] = weakref.WeakSet()  # cells that hold changes, or have held some


def _wait(assign: TensorNode) -> None:
    """Let the cell of an assignment's parameter hold the assignment. Raises ShapeError, DTypeError where the value does
    not fit."""
    shape_of(assign)
    dtype_of(assign)
    cell, count, before = assign.inputs[0].cell, 0, assign.read[0]
    while isinstance(before, TensorNode) and before.held is None:
        count, before = count + 1, before.read[0]
    if count >= MOST:
        cell.array()
    cell.content = assign
    _changing.add(cell)


def waiting() -> list[TensorNode]:
    """The changes that cells hold, in the order in which they were made."""
    with changing:
        held = [cell.content for cell in _changing]
    return sorted((one for one in held if isinstance(one, TensorNode)), key=lambda change: change.id)


def forget() -> None:
    """Wait for no change any more, since one of them cannot be computed; who reads a cell computes its own."""
    with changing:
        _changing.clear()


def advance_op(parameter: Node, after: Callable[[Made], Node]) -> Made:
    """An assignment of `after(value)`, where several of one run follow each other in the order in which they were made:
    each finds the value that the one before it left. For running means and counters. Of tensors that hold data the
    state changes now: its cell holds the assignment. Raises GraphError for a first argument that is no Parameter, and a
    second that is no function."""
    if not callable(after):
        raise GraphError(f"advance: the second argument must be a function of the value, not {after!r}")
    if not isinstance(parameter, Node) or parameter.cell is None:
        raise GraphError(f"advance: the first argument must be a Parameter, not {parameter!r}")
    with changing:
        made = Assign.make([parameter, after(Latest.make([parameter]))], {"follows": True})
        if made.is_data:
            _wait(made)
    return made


def with_updates_op(node: Node, assigns: Sequence[Node]) -> Made:
    """A node that has `node`'s value, and in whose evaluation the assignments are made, once a run however often it is
    read. Raises GraphError for what is no assignment.

    Of tensors that hold data the state changes now: an assignment becomes one that follows those before, see
    `advance_op`, but for those of `each_run`."""
    if not isinstance(assigns, (list, tuple)):
        raise GraphError(f"with_updates: takes a list of assignments, not {type(assigns).__name__}")
    if not isinstance(node, Node):
        raise GraphError(f"with_updates: takes a node, not {type(node).__name__}")
    for assign in assigns:
        if not isinstance(assign, Node) or not isinstance(assign.op, Assign):
            raise GraphError(f"with_updates: {assign!r} is no assignment")
    if all(isinstance(value, TensorNode) and value.is_data for value in (node, *assigns)):
        assigns = [assign if assign.attrs else advance_op(assign.inputs[0], _value_of(assign)) for assign in assigns]
    return WithUpdates.make([node, *assigns])


def _value_of(assign: Node) -> Callable[[Node], Node]:
    return lambda before: assign.inputs[1]
