"""State that outlives a run: parameters, and the assignments that change them at the end of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..device import Context, array, context, host_array, to_array
from ..errors import DTypeError, GraphError
from ..graph import DTYPES, FLOATS, OPS, Node, Op, Readers, Shape, error_at, register, shape_error, stamp

_settling: list[Callable[[Sequence[Parameter]], bool]] = []
_waiting: list[Callable[[Node], None]] = []  # what is told of each node that comes with updates
_claiming: list[Callable[[Sequence[Node]], None]] = []  # what is told of the nodes that an Executor runs
_reading: list[Callable[[Parameter], None]] = []  # what is told before a parameter's value is read


class Parameter(Node):
    """A variable that has a value of its own and need not be fed; `assign` changes it.

    The value lies where it was used last: on the first executor's context it moves there, and stays. Executors
    that share a parameter see each other's updates.
    """

    __slots__ = ()  # a leaf that is written may become a plain node, whose memory has the same layout therefore

    def __init__(self, value: Any, name: str | None = None, requires_grad: bool | None = None) -> None:
        """Args:
            value: a NumPy, dlsys or TVM array, anything with `__dlpack__`, a number or nested lists (float32 then).
                It is copied.
            name: for printing and errors; need not be unique.
            requires_grad: whether `backward` fills its `grad`; None: if it is of a float dtype.

        Raises DTypeError for an array of a dtype that is none of `dlsys.graph.DTYPES`.
        """
        given = host_array(value, np.float32)
        if str(given.dtype) not in DTYPES:
            raise DTypeError(f"parameter: dtype {given.dtype} is not one of {', '.join(DTYPES)}")
        super().__init__(OPS["parameter"], [], {"shape": given.shape, "dtype": str(given.dtype)}, name)
        self._array: Any = np.array(given, order="C")
        self._ctx: Context = context("numpy")
        self._changed = 0
        self._before: tuple[int, Any] | None = None
        self._readers: Any = Readers()
        self.requires_grad = self.dtype in FLOATS if requires_grad is None else bool(requires_grad)

    @classmethod
    def sharing(cls, value: Any, name: str | None = None) -> Parameter:
        """A Parameter in the value's own memory where that can be, on the CPU; it requires no gradient. For what takes
        a value over, as the result of a run. Raises DTypeError."""
        shared = to_array(value, context("cpu"))
        if shared.dtype not in DTYPES:
            raise DTypeError(f"parameter: dtype {shared.dtype} is not one of {', '.join(DTYPES)}")
        made = cls.__new__(cls)
        Node.__init__(made, OPS["parameter"], [], {"shape": shared.shape, "dtype": shared.dtype}, name)
        made._array, made._ctx, made.requires_grad = shared, context("cpu"), False
        made._changed, made._before, made._readers = 0, None, Readers()
        return made

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` fills its `grad`."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self._requires_grad = requires_grad

    @property
    def shape(self) -> Shape:
        """The value's shape."""
        return self.attrs["shape"]

    @property
    def dtype(self) -> str:
        """The value's dtype."""
        return self.attrs["dtype"]

    @property
    def value(self) -> np.ndarray:
        """The value, a copy. Set it from anything that the constructor takes, of the same shape; it is cast to the
        parameter's dtype. Raises ShapeError for another shape."""
        for tell in _reading:
            tell(self)
        return np.array(self._array) if isinstance(self._array, np.ndarray) else self._array.numpy()

    @value.setter
    def value(self, value: Any) -> None:
        given = host_array(value, self.dtype)
        if given.shape != self.shape:
            raise shape_error(self, f"{self.name} has shape {self.shape}, the value {given.shape}")
        copied = np.array(given, self.dtype, order="C")
        self.replace(copied if isinstance(self._array, np.ndarray) else array(copied, self._ctx))

    def unwatched(self) -> Parameter:
        """Itself, which no longer notes what reads it: for state that only its owner reads, see `before_change`."""
        self._readers = None
        return self

    @property
    def version(self) -> int:
        """Another number after every change of the value."""
        return self._changed

    def replace(self, memory: Any, at: int | None = None) -> None:
        """Take other memory, of the same type and context, as the value; nodes made before still read the old one.
        `at`: the number of the node since which it counts, None for now."""
        will_change([self])
        self._before = (self._changed, self._array)
        self._array, self._changed = memory, stamp() if at is None else at

    def seen_by(self, node: Node) -> Any:
        """The memory of the value that was there when the node was made: the present one or the one before it; None
        where it is gone. Counters and the like, which no gradient needs, are read as they are."""
        if node.id > self._changed or self.dtype not in FLOATS:
            return self._array
        if self._before is not None and node.id > self._before[0]:
            return self._before[1]
        return None

    def on(self, ctx: Context) -> Any:
        """The value's memory on `ctx`, to read and write: an Array, or for the `numpy` context an `np.ndarray`.
        It moves there if it lies elsewhere."""
        for tell in _reading:
            tell(self)
        if ctx is not self._ctx and ctx != self._ctx:  # comparing them takes longer than all else here
            value = self.value
            self._array = value if ctx.kind == "numpy" else array(value, ctx)
            self._ctx = ctx
        return self._array


def of_updates(
    note: Callable[[Node], None], read: Callable[[Parameter], None], claim: Callable[[Sequence[Node]], None]
) -> None:
    """Call `note` with every node that comes with updates, `read` before a Parameter's value is read, and `claim` with
    the nodes that an Executor runs, whose updates are its own: values on demand are updated in the order of the calls,
    whether or not anybody looks at the nodes."""
    _waiting.append(note)
    _reading.append(read)
    _claiming.append(claim)


def claim_updates(nodes: Sequence[Node]) -> None:
    """Say that an Executor runs the nodes."""
    for claim in _claiming:
        claim(nodes)


def before_change(settle: Callable[[Sequence[Parameter]], bool]) -> None:
    """Call `settle` with Parameters that are about to take other memory: what has read the memory before the present
    one, and has not been computed, can be computed for the last time. It returns whether there was any."""
    _settling.append(settle)


def will_change(parameters: Sequence[Parameter]) -> bool:
    """Say that Parameters are about to take other memory, see `before_change`; several at once where what reads one may
    read the others. Returns whether something was computed."""
    computed = False
    for settle in _settling:
        computed |= settle(parameters)
    return computed


def overwritten(parameters: Sequence[Parameter]) -> None:
    """Say that a run has written the values' memory, so that nodes made before cannot read the old ones."""
    number = stamp()
    for parameter in parameters:
        parameter._before, parameter._changed = None, number


@register
class ParameterOp(Op):
    """A parameter's value."""

    name = "parameter"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return node.attrs["shape"]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return node.attrs["dtype"]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return []

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        raise error_at(node, GraphError, "a parameter's value is given, not computed")

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        raise error_at(node, GraphError, "a parameter's value is given, not computed")


@register
class Assign(Op):
    """The value, which the parameter takes at the end of the run: (parameter, value) -> value."""

    name = "assign"
    dtypes = DTYPES
    shape_only = (0,)

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

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[1])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[1]


@register
class Group(Op):
    """Nodes evaluated together; it has no value itself, `run` returns None for it."""

    name = "group"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return (0,)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return "float32"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise error_at(node, GraphError, "a group has no value, so no gradient")

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        raise error_at(node, GraphError, "a group has no value: evaluate it, do not compute with it")

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        raise error_at(node, GraphError, "a group has no value: evaluate it, do not compute with it")


@register
class WithUpdates(Op):
    """(x, assignments...) -> x; whoever evaluates it evaluates the assignments too.

    For what changes state as it computes, as running means and counters of random numbers.
    """

    name = "with_updates"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return input_dtypes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad, *[None] * (len(node.inputs) - 1)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0]


def assign_op(parameter: Node, node: Node, each_run: bool = False) -> Node:
    """A node that has `node`'s value, and gives it to the parameter at the end of a run that evaluates it.

    All reads in that run, also those of other assignments, see the old value. Raises GraphError for a first argument
    that is no Parameter; at the run, ShapeError and DTypeError where the value does not fit, and GraphError where
    two assignments to one parameter meet. `each_run`: whether it is for what runs again and again, an Executor, and not
    for values on demand.
    """
    if not isinstance(parameter, Parameter):
        raise GraphError(f"assign: the first argument must be a Parameter, not {parameter!r}")
    return Assign.make([parameter, node], {"each_run": True} if each_run else {})


@register
class Latest(Op):
    """A parameter's value as the assignments left it that were made before this node and belong to the same run; its
    own where there are none. Evaluators put that value in its place."""

    name = "latest"
    dtypes = DTYPES

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0]


def advance_op(parameter: Node, after: Callable[[Node], Node]) -> Node:
    """An assignment of `after(value)`, where several of one run follow each other in the order in which they were made:
    each finds the value that the one before it left. For running means and counters.

    Raises GraphError for a first argument that is no Parameter.
    """
    if not isinstance(parameter, Parameter):
        raise GraphError(f"advance: the first argument must be a Parameter, not {parameter!r}")
    return Assign.make([parameter, after(Latest.make([parameter]))], {"follows": True})


def with_updates_op(node: Node, assigns: Sequence[Node]) -> Node:
    """A node that has `node`'s value, and in whose evaluation the assignments are made, once a run however often it is
    read. Raises GraphError for what is no assignment."""
    for assign in assigns:
        if not isinstance(assign, Node) or assign.op.name != "assign":
            raise GraphError(f"with_updates: {assign!r} is no assignment")
    made = WithUpdates.make([node, *assigns])
    if not all(assign.attrs.get("each_run") for assign in assigns):
        for note in _waiting:
            note(made)
    return made


def group_op(nodes: Sequence[Node]) -> Node:
    """A node whose evaluation evaluates all of `nodes`, for their assignments; `run` returns None for it. Raises
    GraphError for what is no list of nodes."""
    if isinstance(nodes, Node) or not isinstance(nodes, Iterable):
        raise GraphError(f"group: takes a list of nodes, not {type(nodes).__name__}")
    return Group.make(list(nodes))


@register
class Copy(Op):
    """The input's value in memory of its own."""

    name = "copy"
    dtypes = DTYPES
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.array(inputs[0])


def copy_op(node: Node) -> Node:
    """The node's value in memory of its own, which nothing else writes."""
    return Copy.make([node])
