"""What evaluators take out of a graph: state that outlives a run (cells, which hold the values of leaves, and
assignments, which change them at its end), and gradients that a composition states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ..checks import flag
from ..devices import Array, Context, array, copied, cpu, to_array
from ..errors import DTypeError, GraphError
from ..graph import DTYPES, OPS, Made, Node, Op, Shape, Type, error_at, register, shape_error, stamp
from ..system import free_at_fork

_lock = free_at_fork(threading.RLock())


class Cell:
    """The place of a leaf's value: it holds an array, which may be replaced by one of the same shape and dtype.

    A tensor that reads a leaf keeps a reference to the content that the cell had when the tensor was made. An Executor
    reads the cell when it runs, and may overwrite the array. State that changes as a network is called is an assignment
    of its new value until the value is needed. No two cells have the same array: an assignment's value is copied.

    Attributes:
        content: the Array, or the assignment of a value that was not computed yet.
        roams: whether the value moves to the device that uses it, and does not decide where others are computed.
        shared: the Array in whose memory every value is written, since a library or program shares it; usually None.
    """

    __slots__ = ("__weakref__", "content", "dtype", "roams", "shape", "shared")

    def __init__(self, value: Array) -> None:
        self.content: Any = Array(value.tensor, value.context, value.shape, value.dtype)  # nobody else's
        self.shape: Shape = value.shape
        self.dtype: str = value.dtype
        self.roams: bool = False
        self.shared: Array | None = None

    def array(self) -> Array:
        """The array, computed if it was not yet."""
        while type(found := self.content) is not Array:
            self.settle(found, found.settled())
        return found

    def give(self, value: Array) -> None:
        """Hold another array; nodes made before keep the one before. In shared memory its numbers are written."""
        with _lock:
            if self.shared is not None:
                self.shared.copyfrom(value).written = stamp()
                value = self.shared
            self.content = value

    def settle(self, assign: Node, value: Array) -> None:
        """Hold an assignment's value, if the assignment is held: another thread may have given another array."""
        with _lock:
            if self.content is assign:
                self.give(value)

    def take_back(self, assign: Any) -> None:
        """Hold what an assignment of a tensor found when it was made, if the assignment is held."""
        with _lock:
            if self.content is assign:
                self.content = assign.read[0]

    @property
    def known_value(self) -> Array | None:
        """The array, None where it has to be computed."""
        return self.content if type(self.content) is Array else None

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
            while found.context != ctx:
                moved = array(found, ctx)
                with _lock:
                    if self.content is found:  # no other thread has given another array meanwhile
                        self.content, self.shared = moved, None
                found = self.array()
            found.context = ctx  # the same object next time: comparing two takes longer than all else here
        return found

    def overwritten(self) -> None:
        """Say that a run has written the array's memory: nodes made before cannot read it any more."""
        self.content.written = stamp()


def leaf(value: Any, name: str | None = None) -> Made:
    """A node that holds data, in the value's own memory where that can be: that of an Array, else on the CPU. Raises
    DTypeError for an array of a dtype that is none of `dlsys.graph.DTYPES`."""
    shared = value if isinstance(value, Array) else to_array(value, cpu())
    if shared.dtype not in DTYPES:
        raise DTypeError(f"tensor: dtype {shared.dtype} is not one of {', '.join(DTYPES)}")
    made = OPS["parameter"].make([], {"shape": shared.shape, "dtype": shared.dtype}, name)
    made.cell = Cell(shared)
    return made


@register
class ParameterOp(Op):
    """A leaf's value, which lies in its cell."""

    name = "parameter"
    never = "a parameter's value is given, not computed"


T = TypeVar("T")


class Updates(Generic[T]):
    """The listener to which `State.lowered` tells the changes that a run makes. This one takes no notice."""

    def assign(self, node: Node, parameter: T, value: T) -> None:
        """An assignment gives a parameter a value."""

    def along(self, assigns: Sequence[T]) -> None:
        """Assignments are made because a value is computed that they come with."""

    def latest(self, parameter: T) -> T:
        """A parameter's value after the assignments so far, or the parameter itself."""
        return parameter


class State(Op):
    """An operator that evaluators take out of a graph: it has no formula, and its value is that of an input."""

    dtypes = DTYPES
    never = "state changes as a graph is evaluated: see `State.lowered`"

    def lowered(self, node: Node, inputs: Sequence[T], updates: Updates[T]) -> T | None:
        """The input whose value it has, None of a group; `updates` hears of the changes. `inputs`: what stands for the
        node's inputs."""
        raise NotImplementedError


@register
class Assign(State):
    """The value, which the parameter takes at the end of the run: (parameter, value) -> value."""

    name = "assign"

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

    def lowered(self, node: Node, inputs: Sequence[T], updates: Updates[T]) -> T:
        updates.assign(node, *inputs)
        return inputs[1]


@register
class Group(State):
    """Nodes evaluated together; it has no value itself, `run` returns None for it."""

    name = "group"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return (0,)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return "float32"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise error_at(node, GraphError, "a group has no value, so no gradient")

    def lowered(self, node: Node, inputs: Sequence[T], updates: Updates[T]) -> None:
        return None


@register
class WithUpdates(State):
    """(x, assignments...) -> x; whoever evaluates it evaluates the assignments too.

    For what changes state as it computes, as running means and counters of random numbers.
    """

    name = "with_updates"

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return input_dtypes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad, *[None] * (len(node.inputs) - 1)]

    def replacement(self, node: Node) -> Node | None:
        return node.inputs[0] if len(node.inputs) == 1 else None

    def lowered(self, node: Node, inputs: Sequence[T], updates: Updates[T]) -> T:
        updates.along(inputs[1:])
        return inputs[0]


@register
class WithGradient(Op):
    """(y, inputs...) -> y; its gradient is stated, see `with_gradient`. Nothing is computed for it: y replaces it once
    shapes are known."""

    name = "with_gradient"
    dtypes = DTYPES
    broadcasts = True

    def type_of(self, node: Node) -> Type | None:
        return node.inputs[0].value_type

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        attrs = {key: value for key, value in node.attrs.items() if key != "rule"}
        grads = node.attrs["rule"](output_grad, node, *node.inputs[1:], **attrs)
        return [None, *(grads if isinstance(grads, (list, tuple)) else (grads,))]

    def differentiated(self, node: Node) -> Sequence[Node]:
        wanted = node.attrs.get("wanted")
        return node.inputs[1:] if wanted is None else node.inputs[1 : 1 + wanted]

    def replacement(self, node: Node) -> Node:
        return node.inputs[0]


def with_gradient(y: Node, inputs: Sequence[Node], rule: Callable[..., Any], **attrs: Any) -> Made:
    """y, a composition of `inputs`, whose gradient is that which `rule` states, not that of the composition.

    `rule(g, y, *inputs, **attrs)` returns the gradient of each input, None where it is zero, of one input without a
    tuple; what broadcasting repeated is summed back. It may read y, the node itself, so that the gradient of a gradient
    is stated too. An attribute `wanted` says how many of the inputs have a gradient. The rule is a function of a
    module, and the attributes are hashable: the structure of a graph, which has both, is a key of caches.
    """
    return WithGradient.make([y, *inputs], {"rule": rule, **attrs})


def assign_op(parameter: Node, node: Node, each_run: bool = False) -> Made:
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
class Latest(State):
    """A parameter's value as the assignments left it that were made before this node and belong to the same run; its
    own where there are none."""

    name = "latest"
    def lowered(self, node: Node, inputs: Sequence[T], updates: Updates[T]) -> T:
        return updates.latest(inputs[0])


def unchanged(nodes: Sequence[Node]) -> None:
    """Take back the changes of state that nobody has asked for: an Executor runs these nodes, and changes the
    state in each run."""
    for node in sorted((n for n in nodes if isinstance(n.op, Assign)), key=lambda n: -n.id):  # the last one first
        node.inputs[0].cell.take_back(node)


def group_op(nodes: Sequence[Node]) -> Made:
    """A node whose evaluation evaluates all of `nodes`, for their assignments; `run` returns None for it. Raises
    GraphError for what is no list of nodes."""
    if isinstance(nodes, (Node, np.ndarray)) or not isinstance(nodes, Iterable):
        raise GraphError(f"group: takes a list of nodes, not {type(nodes).__name__}")
    return Group.make(list(nodes))
