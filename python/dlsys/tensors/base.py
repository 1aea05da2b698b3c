"""`Tensor`: every node that a user meets. Types, values, conversions, and operators as methods by PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self, cast, overload

import numpy as np

from .. import ops
from ..checks import flag
from ..devices import Array, copied, cpu, host_array, to_array
from ..errors import DlsysError, DTypeError, GraphError
from ..graph import DTYPES, FLOATS, OPS, Node, Op, Shape
from ..ops import Cell, known_dtype, shape_of
from ..ops.operators import Arithmetic
from ..scopes import scopes
from .about import About, Conversions, numel
from .arguments import dim_of
from .creation import leaf, values_of
from .differentiate import backward
from .elementwise import Elementwise, where
from .index import Indexing
from .inplace import InPlace, require_writable, write
from .node import TensorNode
from .reductions import Reductions
from .shapes import Shapes
from .typing import ArrayLike, Device, DType, Nested
from .ufuncs import UFuncs
from .values import array_of, evaluate_change, leaves_that_require_grad


def _read_only(values: np.ndarray) -> np.ndarray:
    """The array, which cannot be written any more."""
    values.flags.writeable = False
    return values


class Values(TensorNode):
    """Types and values."""

    __slots__ = ()
    wants_grad: bool

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(shape_of(self))

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` leaves a gradient somewhere. Set it, see `requires_grad_`."""
        if self.cell is not None:
            return self.wants_grad
        known_dtype(self)
        return bool(leaves_that_require_grad(self))

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether `backward` leaves a gradient in a leaf; itself. So it does in a computed tensor without a
        history, as `linspace(0, 1, 5).view(5, 1)`: the value is computed now, and gradients end there. Raises
        DTypeError for what is of no floats, GraphError for what depends on variables, or would lose a history."""
        requires_grad = flag("requires_grad_", "requires_grad", requires_grad)
        if requires_grad and self.dtype not in FLOATS:
            raise DTypeError(f"requires_grad_: only floats have gradients, not {self.dtype}")
        if self.cell is not None or self.wants_grad:
            self.wants_grad = requires_grad
        elif requires_grad != self.requires_grad:
            if not requires_grad:
                raise GraphError(f"{self.name} has a history of gradients: {self.name}.detach() has none")
            array_of(self)  # which is held: a trace takes it for a leaf
            self.wants_grad = True
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether the node holds data that no operator computed, or gradients end there, see `requires_grad_`."""
        return self.cell is not None or self.wants_grad

    @overload
    def size(self, axis: None = None) -> Shape: ...
    @overload
    def size(self, axis: int) -> int: ...
    def size(self, axis: int | None = None) -> Shape | int:
        """The shape, or its extent along an axis. Raises GraphError, and ShapeError for an axis that it has not."""
        return self.shape if axis is None else self.shape[dim_of("size", self, axis)]

    def dim(self) -> int:
        """The number of axes."""
        return len(shape_of(self))

    def settled(self) -> Array:
        """The value of a change of state, see `dlsys.tensors.state`."""
        return evaluate_change(self)

    @property
    def tensor(self) -> object:
        """The value as a TVM tensor, in its own memory."""
        return array_of(self).tensor

    def numpy(self) -> np.ndarray:
        """The value, a copy; read-only, as what is written there would not reach the tensor. Computed at the first
        request, then cached. Raises GraphError for a graph with variables."""
        return _read_only(array_of(self).numpy())

    @property
    def value(self) -> np.ndarray:
        """`numpy()`. Set it, of a leaf, from anything that `tensor` takes, of the same shape; it is cast to the leaf's
        dtype. Raises ShapeError for another shape."""
        return _read_only(array_of(self).numpy())

    @value.setter
    def value(self, value: Nested) -> None:
        write(self, value)

    def item(self) -> Any:
        """The value of the one element as a Python number. Raises GraphError where there are more or none."""
        value = self.numpy()
        if value.size != 1:
            raise GraphError(f"{self.name} has shape {value.shape}: only one element makes a Python number")
        return value.item()

    def tolist(self) -> Any:
        """The value as nested lists."""
        return self.numpy().tolist()

    def detach(self) -> Tensor:
        """A leaf without history: of a leaf one with the same cell, so that what is written to either is written to
        both; of what was computed one that holds a copy of the value."""
        name = f"{self.name}.detach"
        if self.cell is None:
            return leaf(copied(array_of(self)), name=name)
        made = new_tensor(self.op, [], self.attrs, name)
        made.cell = self.cell
        return made

    @property
    def data(self) -> Tensor:
        """`detach`. Set it, of a leaf, from anything of the same shape."""
        return self.detach()

    @data.setter
    def data(self, value: Nested) -> None:
        write(self, value)

    def backward(
        self,
        gradient: Nested | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Node | Sequence[Node] | None = None,
    ) -> None:
        """See `dlsys.tensors.backward`. Graphs are always retained."""
        backward(self, gradient, create_graph, inputs)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if self.dtype in FLOATS:
            raise TypeError(f"{self.name} of {self.dtype} is no index")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        tensor = cast(Tensor, self)
        return (tensor[i] for i in range(len(self)))

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> np.ndarray:
        """The value for NumPy: `np.array` makes a copy to write in, `np.asarray` one that is read-only. With
        `copy=False` it is the value's memory, read-only, which a compiled step may overwrite; ValueError where that
        cannot be."""
        found = array_of(self)
        if copy is not False:
            values = np.array(found, dtype)
            return values if copy else _read_only(values)
        if found.context.kind != "cpu" or np.dtype(dtype or found.dtype) != found.dtype:
            raise ValueError(f"{self.name} is {found.dtype} on {found.context}: this needs a copy")
        return _read_only(np.asarray(found))

    def __dlpack__(self, **kwargs: object) -> object:
        return array_of(self).tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return array_of(self).tensor.__dlpack_device__()

    def __dlsys_array__(self, writing: bool = False) -> Array:
        """The value's memory, for kernels and feeds; to be written, only a leaf's. Raises GraphError."""
        found = array_of(self)
        if writing:
            require_writable(self)
            self.cell.overwritten()
        return found

    def copyfrom(self, source: Nested) -> Self:
        """Set all values of a leaf, cast to its dtype; itself. Raises ShapeError for a source of another shape."""
        self.__dlsys_array__(writing=True).copyfrom(source)
        return self

    def __repr__(self) -> str:
        """The values as NumPy prints them; the name of a tensor that depends on variables."""
        if self.op.immediate:
            return repr(self.attrs["value"])
        try:
            if not self.is_data:
                return self.name
            values = self.numpy()
        except DlsysError as error:  # told, not raised: it would hide the one that a message with this text tells
            return f"<tensor that fails: {type(error).__name__}: {error}>"
        shown = np.array2string(
            values, separator=", ", prefix="tensor(", precision=4, threshold=200, edgeitems=3
        )
        own = "" if self.dtype in ("float32", "int64", "bool") else f", dtype={self.dtype}"
        return f"tensor({shown}{own}{', requires_grad=True' if self.requires_grad else ''})"

    def _repr_html_(self) -> str | None:
        """A table of the values for Jupyter; None, so that `repr` is shown, unless it has one or two axes."""
        try:
            if self.op.immediate or not self.is_data or self.ndim not in (1, 2):
                return None
            from ..inspect import notebook  # here: it loads what draws pictures

            return notebook.tensor(self.numpy(), f"{self.dtype} {self.shape}")
        except DlsysError:
            return None

    def __format__(self, spec: str) -> str:
        """The one element in a format, `f"{loss:.3f}"`; without one, `repr` of several."""
        if spec:
            return format(self.item(), spec)
        try:
            return format(self.item()) if self.is_data and numel(self) == 1 else repr(self)
        except DlsysError:
            return repr(self)


class Tensor(
    Values, Elementwise, Reductions, Shapes, Indexing, InPlace, About, Conversions, UFuncs, Arithmetic
):
    """A node: a leaf, which holds data, or an operator applied to tensors, whose value is computed on demand.

    `Tensor(data, dtype="float32", device=None, requires_grad=False)` is a leaf that holds a copy of the data. What
    depends on variables has no value of its own: an `Executor` runs it.
    """

    __slots__ = ()
    results: ClassVar[type[Tensor]]
    """The class of what operators make of tensors of this class."""

    def __init__(
        self,
        data: Nested,
        dtype: DType = None,
        device: Device = None,
        requires_grad: bool = False,
        name: str | None = None,
    ) -> None:
        """See above. Raises DTypeError for what is no array of numbers, DeviceError for a device that is not there."""
        values = values_of(data, "float32" if dtype is None else dtype)
        self._hold(
            values if device is None else leaf(values, device=device).cell.content, name, requires_grad
        )

    def _hold(self, values: np.ndarray | Array, name: str | None, requires_grad: bool) -> None:
        """Become a leaf of these values, an array of NumPy or of dlsys, in their memory."""
        new_tensor(OPS["parameter"], [], {"shape": values.shape, "dtype": str(values.dtype)}, name, self)
        self.cell: Any = Cell(values if isinstance(values, Array) else to_array(values, cpu()))
        self.requires_grad_(requires_grad)

    @property
    def T(self) -> Tensor:
        """The axes reversed."""
        return ops.transpose_op(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    def where(self, condition: ArrayLike, other: ArrayLike) -> Tensor:
        """The values where the condition holds, the other's elsewhere."""
        return where(condition, self, other)

    def contiguous(self) -> Self:
        """Itself: values lie in row-major order on the CPU."""
        return self


class Parameter(Tensor):
    """A leaf that need not be fed and that optimizers change; a module knows those that are its attributes.

    The value lies where it was used last: on the first executor's context it moves there, and stays. Executors
    that share a parameter see each other's updates.
    """

    __slots__ = ()

    def __init__(self, value: Nested, name: str | None = None, requires_grad: bool | None = None) -> None:
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
        wanted = str(given.dtype) in FLOATS if requires_grad is None else requires_grad
        self._hold(np.array(given, order="C"), name, wanted)


Tensor.results = Tensor


def new_tensor(
    op: Op, inputs: list[Node], attrs: dict[str, Any], name: str | None = None, made: Tensor | None = None
) -> Tensor:
    """A tensor that applies an operator: what every operator's `make` returns. `made`: the object that becomes it; a
    new one for None."""
    kind, read, is_data = Tensor, list[Any](), not op.variable
    is_replayed = scopes.origin is not None  # of these nobody asks the value, so they keep no array alive
    for value in inputs:
        cell = value.cell
        read.append(None if cell is None or is_replayed else cell.content)
        if not isinstance(value, Tensor):
            is_data = False
            continue
        is_data = is_data and value.is_data
        if value.results is not Tensor:
            kind = value.results
    made = kind.__new__(kind) if made is None else made
    Node.__init__(made, op, inputs, attrs, name)
    made.read, made.is_data = read, is_data
    made.grad = made.held = None
    made.cached = made.computed = made.wants_grad = False
    return made
