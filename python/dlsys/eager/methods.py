"""What a node can do as a tensor: types, values, conversions, and operators as methods by PyTorch's names.

`install` puts them on `Node`, which lies too far down to import what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..device import Array
from ..errors import DlsysError, DTypeError, GraphError
from ..graph import FLOATS, Shape
from ..names import FUNCTIONS
from ..ops import dtype_of, known_dtype, overwritten, shape_of
from . import diagonals, functions, index, inplace, logic, products, reductions, shapes, sorting
from .about import About
from .differentiate import backward
from .inplace import InPlace, changed_in_place, require_writable, write
from .leaves import Leaf
from .running import array_of, evaluate, is_data, is_leaf, leaves_that_require_grad

SHOWN: dict[str, Any] = {"precision": 4, "threshold": 200, "edgeitems": 3}


class Values:
    """Types and values."""

    @property
    def shape(self: Any) -> Shape:
        """The shape, where it follows from data and declarations; ShapeError else."""
        return shape_of(self)

    @property
    def dtype(self: Any) -> str:
        """The dtype's name, where it follows from data and declarations; DTypeError else."""
        return dtype_of(self)

    @property
    def ndim(self: Any) -> int:
        """The number of axes."""
        return len(shape_of(self))

    @property
    def requires_grad(self: Any) -> bool:
        """Whether `backward` leaves a gradient somewhere. Set it, see `requires_grad_`."""
        known_dtype(self)
        return bool(leaves_that_require_grad(self))

    @requires_grad.setter
    def requires_grad(self: Any, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    @property
    def is_leaf(self: Any) -> bool:
        """Whether the node holds data that no operator computed."""
        return isinstance(self, Parameter)

    def size(self: Any, axis: int | None = None) -> Any:
        """The shape, or its extent along an axis."""
        return self.shape if axis is None else self.shape[axis]

    @property
    def tensor(self: Any) -> Any:
        """The value as a TVM tensor, in its own memory."""
        return array_of(self).tensor

    def dim(self: Any) -> int:
        """The number of axes."""
        return len(shape_of(self))

    def numpy(self: Any) -> np.ndarray:
        """The value, a copy. Computed at the first request, then kept. Raises GraphError for a graph with variables."""
        return array_of(self).numpy()

    def item(self: Any) -> Any:
        """The value of the one element as a Python number. Raises GraphError where there are more or none."""
        value = self.numpy()
        if value.size != 1:
            raise GraphError(f"{self.name} has shape {value.shape}: only one element makes a Python number")
        return value.item()

    def tolist(self: Any) -> Any:
        """The value as nested lists."""
        return self.numpy().tolist()

    def detach(self: Any) -> Parameter:
        """A leaf with this value and no history."""
        (value,) = evaluate([self])
        return Leaf.of(value, f"{self.name}.detach")

    def backward(
        self: Any,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """See `dlsys.eager.backward`. Graphs are always retained."""
        backward(self, gradient, create_graph, inputs)

    def __float__(self: Any) -> float:
        return float(self.item())

    def __int__(self: Any) -> int:
        return int(self.item())

    def __bool__(self: Any) -> bool:
        return bool(self.item())

    def __index__(self: Any) -> int:
        if self.dtype in FLOATS:
            raise TypeError(f"{self.name} of {self.dtype} is no index")
        return int(self.item())

    def __len__(self: Any) -> int:
        if not self.shape:
            raise TypeError("a tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self: Any) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy().astype(dtype or self.dtype, copy=False)

    def __dlpack__(self: Any, **kwargs: Any) -> Any:
        return array_of(self).tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self: Any) -> Any:
        return array_of(self).tensor.__dlpack_device__()

    def __dlsys_array__(self: Any, writing: bool = False) -> Array:
        """The value's memory, for kernels and feeds; to be written, only a leaf's. Raises GraphError."""
        if writing:
            require_writable(self)
            overwritten([self])
        return array_of(self)

    def copyfrom(self: Any, source: Any) -> Any:
        """Set all values of a leaf, cast to its dtype; itself. Raises ShapeError for a source of another shape."""
        self.__dlsys_array__(writing=True).copyfrom(source)
        return self

    def __repr__(self: Any) -> str:
        try:
            if not (is_leaf(self) or is_data(self)):
                return self.name
            self.numpy()
        except DlsysError:  # an error of its own would hide the one that is being told
            return self.name
        values = np.array2string(self.numpy(), separator=", ", prefix="tensor(", **SHOWN)
        own = "" if self.dtype in ("float32", "int64", "bool") else f", dtype={self.dtype}"
        return f"tensor({values}{own}{', requires_grad=True' if self.requires_grad else ''})"

    def __format__(self: Any, spec: str) -> str:
        plain = not spec and not (is_leaf(self) or is_data(self))
        return self.name if plain else format(self.item(), spec) if spec or self.numel() == 1 else repr(self)


class Operators:
    """Operators as methods: those that are not functions as well."""

    @property
    def T(self: Any) -> Node:
        """The axes reversed."""
        return ad.transpose_op(self)

    @property
    def mT(self: Any) -> Node:
        """The last two axes exchanged."""
        return ad.swapaxes_op(self, -2, -1)

    H = mH = mT  # there are no complex numbers

    @property
    def data(self: Any) -> Any:
        """A leaf of this value, without history; what is written to it at once is written to the leaf it is of. Set it,
        of a leaf, from anything of the same shape."""
        (value,) = evaluate([self])
        return Leaf.of(value, f"{self.name}.data", self if isinstance(self, Parameter) else None)

    @data.setter
    def data(self: Any, value: Any) -> None:
        require_writable(self)
        write(self, value)

    def requires_grad_(self: Any, requires_grad: bool = True) -> Any:
        """Set whether `backward` leaves a gradient in a tensor; itself, but of what was computed a leaf of its value,
        from which it then is, so that both get the gradient. Raises DTypeError for what is of no floats, GraphError for
        a history of gradients that would have to end, and for graphs with variables."""
        if requires_grad and self.dtype not in FLOATS:
            raise DTypeError(f"requires_grad_: only floats have gradients, not {self.dtype}")
        if isinstance(self, Parameter):
            self.requires_grad = bool(requires_grad)
        elif requires_grad and not leaves_that_require_grad(self):
            raise GraphError(f"{self.name} is computed: {self.name}.detach().requires_grad_() is a leaf")
        elif bool(requires_grad) != self.requires_grad:
            raise GraphError(f"{self.name} has a history of gradients: {self.name}.detach() has none")
        return self

    def view_as(self: Any, other: Node) -> Node:
        return ad.reshape_like_op(self, other)

    def type_as(self: Any, other: Node) -> Node:
        return ad.cast_like_op(self, other)

    def reshape_as(self: Any, other: Node) -> Node:
        return ad.reshape_like_op(self, other)

    def where(self: Any, condition: Any, other: Any) -> Node:
        return logic.where(condition, self, other)

    def contiguous(self: Any) -> Node:
        return self

    share_memory_ = pin_memory = cpu = contiguous

    def type(self: Any, dtype: Any = None) -> Any:
        """The values in another dtype; for None the dtype's name."""
        return self.dtype if dtype is None else functions.to(self, dtype)


MODULES = (
    *(diagonals, functions, index, inplace, logic, products, reductions, shapes, sorting),
)
METHODS = {functions: ("to",), shapes: ("expand", "expand_as", "repeat", "view")}  # besides those of FUNCTIONS
IN_PLACE = {  # `x.abs_()` and its like
    functions: (
        *("abs", "ceil", "clamp", "clip", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "reciprocal"),
        *("relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh"),
    ),
    logic: ("masked_fill",),
    reductions: ("cumsum",),
    diagonals: ("tril", "triu"),
}
CASTS = {"float": "float32", "double": "float64", "long": "int64", "int": "int32", "bool": "bool", "byte": "uint8"}


def _cast(name: str, dtype: str) -> Any:
    def method(self: Node) -> Node:
        return functions.to(self, dtype)

    method.__name__, method.__doc__ = name, f"The values as {dtype}."
    return method


def _in_place(function: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return changed_in_place(self, function(self, *args, **kwargs))

    method.__name__, method.__doc__ = f"{function.__name__}_", f"`{function.__name__}`, in place; itself."
    return method


def install() -> None:
    """Put the methods on `Node`."""
    for table in (Values, Operators, InPlace, About):
        for name, value in vars(table).items():
            if name not in ("__module__", "__doc__", "__dict__", "__weakref__", "__qualname__"):
                setattr(Node, name, value)
    for module in MODULES:
        for name in (*FUNCTIONS[module.__name__.rpartition(".")[2]], *METHODS.get(module, ())):
            setattr(Node, name, getattr(module, name))
        for name in IN_PLACE.get(module, ()):
            setattr(Node, f"{name}_", _in_place(getattr(module, name)))
    for name, dtype in CASTS.items():
        setattr(Node, name, _cast(name, dtype))
    Node.__abs__ = functions.abs  # type: ignore[attr-defined]
