"""State that outlives a run: cells, the places of leaves' values, and the assignments that change them at a run's end.

A loop that keeps its losses keeps their graphs, and with them the parameters' arrays of every step. Of the arrays that
cells have given up, the last MOST_BYTES are there for such nodes; of an older one only its name is left, and who asks
for a value that needs it gets an error.

Changes of state happen in the order of the calls, whether or not anybody looks: each reads what the one before left. A
batch norm's statistics cost no pass of their own when they are computed with the network's output, so they wait for
it, or until the state is read or saved, or many changes of it wait.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import compute
from ..checks import flag
from ..device import Array, Context, array, copied, cpu, to_array
from ..errors import DTypeError, GraphError
from ..graph import DTYPES, OPS, Node, Op, Shape, error_at, register, shape_error, stamp
from ..system import free_at_fork
from .types import dtype_of, shape_of

MOST_BYTES = 2**30

_given_up: dict[int, tuple[weakref.ref[Array], int]] = {}  # by id, the oldest first, with their bytes
_held = 0  # bytes of all of these
_lock = free_at_fork(threading.RLock())
changing = free_at_fork(threading.RLock())
"""Held from the reading of a leaf to the writing of what was computed from it: where gradients are added, in place, in
an optimizer's step, where state advances. It is one for all leaves, whose values are computed in turn in any case."""


class Cell:
    """The place of a leaf's value: it holds an array, and may be given another one of the same shape and dtype.

    Nodes that read a leaf keep what its cell held when they were made (`Node.read`); an Executor reads the cell when it
    runs, and may overwrite the array. State that changes as a network is called holds the assignment of its new value
    until somebody needs it. No two cells hold one array: an assignment's value is a copy of its own.

    Attributes:
        content: the Array, or the assignment of a value that nobody has asked for yet.
        waiting: how many changes of such a content follow each other.
        roams: whether it lies wherever it was used last, and nothing is computed there for its sake.
        shared: the Array in whose memory every value is written, as somebody else reads it there; None else.
    """

    __slots__ = ("content", "dtype", "roams", "shape", "shared", "waiting")

    def __init__(self, value: Array) -> None:
        self.content: Any = Array(value.tensor, value.context, value.shape, value.dtype)  # nobody else's
        self.shape, self.dtype = value.shape, value.dtype
        self.waiting = 0
        self.roams = False
        self.shared: Array | None = None

    def array(self) -> Array:
        """The array, computed if it was not yet."""
        found = self.content
        if type(found) is not Array:
            value = found.computed()
            with _lock:
                if self.content is found:  # else another thread gave it one
                    self.give(value)
        return self.content if type(self.content) is Array else self.array()

    def give(self, value: Array) -> None:
        """Hold another array; nodes made before keep the one before. In shared memory its numbers are written."""
        with _lock:
            if self.shared is not None:
                self.shared.copyfrom(value).written = stamp()
                value = self.shared
            before, self.content, self.waiting = self.content, value, 0
            if type(before) is Array and before is not value:
                _give_up(before)

    def __deepcopy__(self, memo: Any) -> Cell:
        return Cell(copied(self.array()))

    def __reduce__(self) -> Any:
        return Cell, (self.array(),)

    def on(self, ctx: Context) -> Any:
        """The array on `ctx`, to read and write: it moves there if it lies elsewhere. For the `numpy` context an
        `np.ndarray`, to read."""
        found = self.array()
        if ctx.kind == "numpy":
            return np.asarray(found)
        if found.context is not ctx:
            if found.context != ctx:
                self.content = found = array(found, ctx)
                self.shared = None
            found.context = ctx  # the same object next time: comparing two takes longer than all else here
        return found

    def overwritten(self) -> None:
        """Say that a run has written the array's memory: nodes made before cannot read it any more."""
        self.content.written = stamp()

    @property
    def version(self) -> tuple[Array, int]:
        """Another value after every change."""
        found = self.array()
        return found, found.written


def _give_up(before: Array) -> None:
    """Let an array go that no cell holds any more: it stays as long as nodes refer to it and it is not too old."""
    global _held
    size, key = before.nbytes, id(before)

    def gone(_: Any) -> None:
        _forget(key)

    with _lock:
        _forget(key)  # counts once
        _given_up[key] = weakref.ref(before, gone), size
        _held += size
        while _held > MOST_BYTES:
            oldest = _forget(next(iter(_given_up)))
            if oldest is not None:
                oldest.tensor = None


def _forget(key: int) -> Array | None:
    """Take an array off the list, and return it if somebody refers to it."""
    global _held
    with _lock:
        found = _given_up.pop(key, None)
        if found is None:
            return None
        _held -= found[1]
        return found[0]()


MOST = 4  # changes of a cell that wait; each holds the inputs of its network

_waiting: list[Node] = []  # assignments


def wait(assign: Node) -> None:
    """Let the cell of an assignment's parameter hold the assignment. Raises ShapeError, DTypeError where the value does
    not fit."""
    shape_of(assign)
    dtype_of(assign)
    cell = assign.inputs[0].cell
    if cell.waiting >= MOST:
        cell.array()  # computes all that wait
    with _lock:
        cell.content = assign
        cell.waiting += 1
        _waiting.append(assign)


def waiting() -> list[Node]:
    """The changes that wait."""
    return [assign for assign in _waiting if assign.kept is None]


def forget() -> None:
    """Wait for no change any more, since one of them cannot be computed; who reads a cell computes its own."""
    _waiting.clear()


def settle() -> None:
    """Give cells the arrays of the changes that were computed."""
    with _lock:
        for assign in _waiting:
            cell = assign.inputs[0].cell
            if assign.kept is not None and cell.content is assign:
                cell.give(assign.kept)
        _waiting[:] = waiting()


def leaf(value: Any, name: str | None = None) -> Node:
    """A node that holds data, in the value's own memory where that can be: that of an Array, else on the CPU. Raises
    DTypeError for an array of a dtype that is none of `dlsys.graph.DTYPES`."""
    shared = value if isinstance(value, Array) else to_array(value, cpu())
    if shared.dtype not in DTYPES:
        raise DTypeError(f"tensor: dtype {shared.dtype} is not one of {', '.join(DTYPES)}")
    made = OPS["parameter"].make([], {"shape": shared.shape, "dtype": shared.dtype}, name)
    made.cell = Cell(shared)
    return made


def value_at_hand(node: Node) -> Array | None:
    """The node's value where it is there already: of a leaf, and of what was computed and kept."""
    if node.cell is None:
        return node.kept
    return node.cell.content if type(node.cell.content) is Array else None


@register
class ParameterOp(Op):
    """A leaf's value, which lies in its cell."""

    name = "parameter"
    never = "a parameter's value is given, not computed"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return node.attrs["shape"]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return node.attrs["dtype"]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return []


@register
class Assign(Op):
    """The value, which the parameter takes at the end of the run: (parameter, value) -> value."""

    name = "assign"
    state = True
    dtypes = DTYPES
    shape_only = (0,)
    formula, reference = compute.copy, np.asarray

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if input_shapes[0] != input_shapes[1]:
            parameter = node.inputs[0].name
            raise shape_error(node, f"{parameter} has shape {input_shapes[0]}, the value {input_shapes[1]}")
        return input_shapes[1]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        if input_dtypes[0] != input_dtypes[1]:
            parameter = node.inputs[0].name
            raise error_at(node, DTypeError, f"{parameter} is {input_dtypes[0]}, the value {input_dtypes[1]}")
        return input_dtypes[1]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, output_grad]


@register
class Group(Op):
    """Nodes evaluated together; it has no value itself, `run` returns None for it."""

    name = "group"
    state = True
    never = "a group has no value: evaluate it, do not compute with it"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return (0,)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return "float32"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise error_at(node, GraphError, "a group has no value, so no gradient")


@register
class WithUpdates(Op):
    """(x, assignments...) -> x; whoever evaluates it evaluates the assignments too.

    For what changes state as it computes, as running means and counters of random numbers.
    """

    name = "with_updates"
    state = True
    formula, reference = lambda x, *_: compute.copy(x), lambda x, *_: x

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return input_dtypes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad, *[None] * (len(node.inputs) - 1)]


def assign_op(parameter: Node, node: Node, each_run: bool = False) -> Node:
    """A node that has `node`'s value, and gives it to the parameter at the end of a run that evaluates it.

    All reads in that run, also those of other assignments, see the old value. Raises GraphError for a first argument
    that is no Parameter; at the run, ShapeError and DTypeError where the value does not fit, and GraphError where
    two assignments to one parameter meet. `each_run`: whether it is for what runs again and again, an Executor, and not
    for values on demand.
    """
    if not isinstance(parameter, Node) or parameter.cell is None:
        raise GraphError(f"assign: the first argument must be a Parameter, not {parameter!r}")
    attrs = {"each_run": True} if flag("assign", "each_run", each_run) else {}
    return Assign.make([parameter, node], attrs)


@register
class Latest(Op):
    """A parameter's value as the assignments left it that were made before this node and belong to the same run; its
    own where there are none. Evaluators put that value in its place."""

    name = "latest"
    state = True
    dtypes = DTYPES
    formula, reference = compute.copy, np.asarray

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]


def advance_op(parameter: Node, after: Callable[[Node], Node]) -> Node:
    """An assignment of `after(value)`, where several of one run follow each other in the order in which they were made:
    each finds the value that the one before it left. For running means and counters. Of tensors that hold data the
    state changes now: its cell holds the assignment.

    Raises GraphError for a first argument that is no Parameter, and a second that is no function.
    """
    if not callable(after):
        raise GraphError(f"advance: the second argument must be a function of the value, not {after!r}")
    if not isinstance(parameter, Node) or parameter.cell is None:
        raise GraphError(f"advance: the first argument must be a Parameter, not {parameter!r}")
    with changing:
        made = Assign.make([parameter, after(Latest.make([parameter]))], {"follows": True})
        if made.is_data:
            wait(made)
    return made


def with_updates_op(node: Node, assigns: Sequence[Node]) -> Node:
    """A node that has `node`'s value, and in whose evaluation the assignments are made, once a run however often it is
    read. Raises GraphError for what is no assignment.

    Of tensors that hold data the state changes now: an assignment becomes one that follows those before, see
    `advance_op`, but for those of `each_run`."""
    if not isinstance(assigns, (list, tuple)):
        raise GraphError(f"with_updates: takes a list of assignments, not {type(assigns).__name__}")
    if not isinstance(node, Node):
        raise GraphError(f"with_updates: takes a node, not {type(node).__name__}")
    for assign in assigns:
        if not isinstance(assign, Node) or assign.op.name != "assign":
            raise GraphError(f"with_updates: {assign!r} is no assignment")
    if all(value.is_data for value in (node, *assigns)):
        assigns = [assign if assign.attrs else advance_op(assign.inputs[0], _value_of(assign)) for assign in assigns]
    return WithUpdates.make([node, *assigns])


def _value_of(assign: Node) -> Callable[[Node], Node]:
    return lambda before: assign.inputs[1]


def unchanged(nodes: Sequence[Node]) -> None:
    """Take back the changes of state that nobody has asked for: an Executor runs these nodes, and changes the
    state in each run."""
    for node in sorted((n for n in nodes if n.op.name == "assign"), key=lambda n: -n.id):  # the last one first
        cell = node.inputs[0].cell
        if cell.content is node:
            cell.content, cell.waiting = node.read[0], cell.waiting - 1


def group_op(nodes: Sequence[Node]) -> Node:
    """A node whose evaluation evaluates all of `nodes`, for their assignments; `run` returns None for it. Raises
    GraphError for what is no list of nodes."""
    if isinstance(nodes, (Node, np.ndarray)) or not isinstance(nodes, Iterable):
        raise GraphError(f"group: takes a list of nodes, not {type(nodes).__name__}")
    return Group.make(list(nodes))
