"""What a node can do as a tensor: types, values, conversions, and operators as methods by PyTorch's names.

`install` puts them on `Node`, which lies too far down to import what they need.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..errors import DlsysError, GraphError
from ..graph import FLOATS, Shape
from .differentiate import backward
from .running import dtype_of, evaluate, is_data, is_leaf, leaves_that_require_grad, shape_of

SHOWN: dict[str, Any] = {"precision": 4, "threshold": 200, "edgeitems": 3, "suppress_small": True}


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
        """Whether `backward` leaves a gradient somewhere."""
        return bool(leaves_that_require_grad(self))

    @property
    def is_leaf(self: Any) -> bool:
        """Whether the node holds data that no operator computed."""
        return isinstance(self, Parameter)

    def size(self: Any, axis: int | None = None) -> Any:
        """The shape, or its extent along an axis."""
        return self.shape if axis is None else self.shape[axis]

    def numel(self: Any) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def numpy(self: Any) -> np.ndarray:
        """The value, a copy. Computed at the first request, then kept. Raises GraphError for a graph with variables."""
        (value,) = evaluate([self])
        if value is None:
            raise GraphError(f"{self.name} has no value (made at {self.location})")
        return value.numpy()

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
        return Parameter.sharing(value, f"{self.name}.detach")

    def backward(self: Any, gradient: Any = None) -> None:
        """See `dlsys.eager.backward`."""
        backward(self, gradient)

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
        return _shared(self).__dlpack__(**kwargs)

    def __dlpack_device__(self: Any) -> Any:
        return _shared(self).__dlpack_device__()

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
        return format(self.item(), spec) if spec else self.name


def _shared(node: Node) -> Any:
    """The node's value as who takes part in DLPack."""
    (value,) = evaluate([node])
    if value is None:
        raise GraphError(f"{node.name} has no value (made at {node.location})")
    return value.tensor


def _axes(axis: Any, dim: Any) -> Any:
    return axis if dim is None else dim


def _numbers(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments given one by one, or as one tuple."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else values


class Operators:
    """Operators as methods; `dim` and `keepdim` are PyTorch's words for `axis` and `keepdims`."""

    @property
    def T(self: Any) -> Node:
        """The axes reversed."""
        return ad.transpose_op(self)

    def logsumexp(self: Any, axis: Any = None, keepdims: bool = False, *, dim: Any = None) -> Node:
        return ad.logsumexp_op(self, _axes(axis, dim), keepdims)

    def softmax(self: Any, axis: int = -1, *, dim: Any = None) -> Node:
        return ad.softmax_op(self, _axes(axis, dim))

    def log_softmax(self: Any, axis: int = -1, *, dim: Any = None) -> Node:
        return ad.log_softmax_op(self, _axes(axis, dim))

    def reshape(self: Any, *shape: Any) -> Node:
        return ad.reshape_op(self, _numbers(shape))

    def view(self: Any, *shape: Any) -> Node:
        return ad.reshape_op(self, _numbers(shape))

    def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Node:
        return ad.flatten_op(self, start_dim, end_dim)

    def permute(self: Any, *axes: Any) -> Node:
        return ad.transpose_op(self, _numbers(axes))

    def transpose(self: Any, *axes: Any) -> Node:
        """Two axes: they change places, as in PyTorch; else all axes in that order, reversed for none."""
        axes = _numbers(axes)
        return ad.swapaxes_op(self, *axes) if len(axes) == 2 else ad.transpose_op(self, axes or None)

    def squeeze(self: Any, axis: Any = None) -> Node:
        return ad.squeeze_op(self, axis)

    def unsqueeze(self: Any, axis: Any) -> Node:
        return ad.expand_dims_op(self, axis)

    def broadcast_to(self: Any, *shape: Any) -> Node:
        return ad.broadcast_shape_op(self, _numbers(shape))

    def to(self: Any, dtype: Any) -> Node:
        return ad.cast_op(self, dtype)

    def matmul(self: Any, other: Node) -> Node:
        return self @ other

    def pow(self: Any, exponent: Any) -> Node:
        return self**exponent

    def square(self: Any) -> Node:
        return self * self

    def ravel(self: Any) -> Node:
        return ad.flatten_op(self)

    def t(self: Any) -> Node:
        return ad.transpose_op(self)

    def swapaxes(self: Any, a: int, b: int) -> Node:
        return ad.swapaxes_op(self, a, b)

    def flip(self: Any, *axes: Any) -> Node:
        return ad.flip_op(self, _numbers(axes))

    def split(self: Any, size: int, dim: int = 0) -> list[Node]:
        """Parts of `size` elements along `dim`, the last one smaller; the shape must be known."""
        extent = self.shape[dim]
        return ad.split_op(self, list(range(size, extent, size)), dim)

    def chunk(self: Any, chunks: int, dim: int = 0) -> list[Node]:
        """At most `chunks` parts of one size along `dim`, the last one smaller; the shape must be known."""
        return self.split(max(-(-self.shape[dim] // chunks), 1), dim)

    def gather(self: Any, dim: int, index: Node) -> Node:
        return ad.take_along_axis_op(self, index, dim)

    def index_select(self: Any, dim: int, index: Node) -> Node:
        return ad.take_op(self, index, dim)

    def masked_fill(self: Any, mask: Node, value: float) -> Node:
        return ad.where_op(mask, value, self)

    def clone(self: Any) -> Node:
        return ad.copy_op(self)

    def contiguous(self: Any) -> Node:
        return self

    def cpu(self: Any) -> Node:
        return self

    def clamp(self: Any, min: float | None = None, max: float | None = None) -> Node:
        return ad.clip_op(self, min, max)


UNARY = (
    *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "abs", "sign", "tanh", "sigmoid", "relu", "erf"),
    *("sin", "cos", "floor"),
)
BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "mm": "matmul", "bmm": "matmul",
    "maximum": "maximum", "minimum": "minimum", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}
REDUCTIONS = ("sum", "mean", "max", "min", "argmax", "argmin", "var", "std")
CASTS = {"float": "float32", "double": "float64", "long": "int64", "int": "int32", "bool": "bool"}
ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


def _unary(name: str) -> Any:
    def method(self: Node) -> Node:
        return getattr(ad, f"{name}_op")(self)

    method.__name__, method.__doc__ = name, f"See `autodiff.{name}_op`."
    return method


def _binary(name: str, op: str) -> Any:
    function = ARITHMETIC.get(name) or getattr(ad, f"{op}_op")

    def method(self: Node, other: Any) -> Node:
        return function(self, other)

    method.__name__, method.__doc__ = name, f"See `autodiff.{op}_op`."
    return method


def _reduction(name: str) -> Any:
    function = getattr(ad, f"{name}_op")

    def method(
        self: Node,
        axis: Any = None,
        keepdims: bool = False,
        *args: Any,
        dim: Any = None,
        keepdim: bool = False,
        **more: Any,
    ) -> Node:
        return function(self, _axes(axis, dim), keepdims or keepdim, *args, **more)

    method.__name__, method.__doc__ = name, f"See `autodiff.{name}_op`; `dim` and `keepdim` are `axes` and `keepdims`."
    return method


def _cast(name: str, dtype: str) -> Any:
    def method(self: Node) -> Node:
        return ad.cast_op(self, dtype)

    method.__name__, method.__doc__ = name, f"The values as {dtype}."
    return method


def install() -> None:
    """Put the methods on `Node`."""
    for table in (Values, Operators):
        for name, value in vars(table).items():
            if name not in ("__module__", "__doc__", "__dict__", "__weakref__", "__qualname__"):
                setattr(Node, name, value)
    for name in UNARY:
        setattr(Node, name, _unary(name))
    for name in REDUCTIONS:
        setattr(Node, name, _reduction(name))
    for name, dtype in CASTS.items():
        setattr(Node, name, _cast(name, dtype))
    for name, op in BINARY.items():
        setattr(Node, name, _binary(name, op))
    Node.__abs__ = _unary("abs")  # type: ignore[attr-defined]
