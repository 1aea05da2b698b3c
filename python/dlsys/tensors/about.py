"""Properties of tensors, and conversions to other dtypes and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np

from .. import ops
from ..checks import dtype_named, flag, has_no_effect
from ..devices import Context, array, copied
from ..errors import DeviceError, DTypeError
from ..graph import FLOATS, INTEGERS, Handle, Node, is_node
from ..ops import dtype_name, dtype_of, known_dtype, shape_of
from ..ops.state import is_array
from ..scopes import is_grad_enabled, scopes
from .arguments import node_of
from .creation import Options, context_named, full, leaf, leaf_by, ones, values_of, zeros
from .evaluate import array_of, context_of
from .table import function
from .typing import ArrayLike, Device, DType, Nested, Size

if TYPE_CHECKING:
    from .base import Tensor


@function(at_once=True)
def numel(x: Tensor) -> int:
    """The number of elements."""
    return int(np.prod(shape_of(x), dtype=np.int64))


@function(at_once=True)
def is_floating_point(x: Tensor) -> bool:
    """Whether the elements are floats."""
    return dtype_of(x) in FLOATS


@function(at_once=True)
def to(
    x: Tensor,
    *given: DType | Device | Node,
    dtype: DType = None,
    device: Device = None,
    copy: bool = False,
    non_blocking: bool = False,
) -> Tensor:
    """x in another dtype, given by name, or as that of a tensor; or on another device, "cpu", "cuda:0" or a context.
    Raises DTypeError for an unknown dtype, DeviceError for a device that is not there and for what cannot move (see
    `_moved`)."""
    if non_blocking:
        has_no_effect("to", "non_blocking=True", "what is computed afterwards waits for the copy")
    node = x
    for value in (*given, device, dtype):
        if is_node(value):
            node = ops.cast_like_op(node, value)
        elif _is_device(value):
            node = _moved(node, context_named(cast(Device, value)))
        elif value is not None and not isinstance(value, bool):
            if isinstance(value, str) and dtype_named(value) is None:
                raise DTypeError(f"to: {value!r} names no dtype and no device")
            found = dtype_name("to", value)
            node = node if known_dtype(node) == found else ops.cast_op(node, found)
    return ops.copy_op(node) if flag("to", "copy", copy) and node is x else node


def _moved(x: Tensor, ctx: Context) -> Tensor:
    """The tensor where its value lies on the context, else a leaf there that holds a copy of it. Raises DeviceError for
    a computed tensor with a history: what is on its way to a gradient stays on one device."""
    if context_of(x) == ctx:
        return x
    if x.requires_grad and not x.is_leaf:
        where = f"to: {x.name} has a history of gradients on {context_of(x)}"
        raise DeviceError(f"{where}: move the leaves that it is made of, or {x.name}.detach()")
    return leaf(array(array_of(x), ctx))


def _is_device(value: object) -> bool:
    """Whether the value names a device: a Context, its name, or PyTorch's object."""
    named = value if isinstance(value, str) else str(value) if type(value).__name__ == "device" else ""
    return isinstance(value, Context) or named.split(":")[0] in ("cpu", "cuda", "gpu", "mps")


@function(at_once=True)
def type_as(x: Tensor, other: ArrayLike) -> Tensor:
    """The values in the other's dtype."""
    return to(x, node_of(other))


def _beside(x: Tensor, options: Options) -> Options:
    """The options of a tensor that has x's dtype and device for None."""
    named: Any = {name: value for name, value in options.items() if value is not None}
    return {"dtype": dtype_of(x), "device": x.device, **named}


@function(at_once=True)
def new_zeros(x: Tensor, *size: Size, **options: Unpack[Options]) -> Tensor:
    """Zeros of another shape, in x's dtype and on its device for None."""
    return zeros(*size, **_beside(x, options))


@function(at_once=True)
def new_ones(x: Tensor, *size: Size, **options: Unpack[Options]) -> Tensor:
    """Ones of another shape, in x's dtype and on its device for None."""
    return ones(*size, **_beside(x, options))


@function(at_once=True)
def new_full(x: Tensor, size: Size, fill_value: float, **options: Unpack[Options]) -> Tensor:
    """A number at every index of another shape, in x's dtype and on its device for None."""
    return full(size, fill_value, **_beside(x, options))


@function(at_once=True)
def new_tensor(x: Tensor, data: Nested, **options: Unpack[Options]) -> Tensor:
    """A leaf that holds a copy of the data, in x's dtype and on its device for None."""
    own = _beside(x, options)
    return leaf_by(own, values_of(data, own["dtype"]))


@function(at_once=True)
def cpu(x: Tensor) -> Tensor:
    """`to("cpu")`."""
    return to(x, "cpu")


@function(at_once=True)
def cuda(x: Tensor, device: Device | int = None) -> Tensor:
    """`to` a GPU, the first for None."""
    return to(x, "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)


@function(at_once=True)
def contiguous(x: Tensor) -> Tensor:
    """x itself: values lie in row-major order."""
    return x


@function(at_once=True)
def clone(x: Tensor) -> Tensor:
    """The values in memory of their own: of a leaf whose gradients nobody asks for a leaf that holds a copy now."""
    node: Node = x.node
    if is_array(node) and scopes.recording is None and not (is_grad_enabled() and node.tracks):
        return leaf(copied(node.held), name=f"{node.name}.clone")
    return ops.copy_op(x)


def finfo(dtype: DType) -> np.finfo:
    """The limits of a dtype of floats: `eps`, `max`, `min`, `tiny`. Raises DTypeError for another."""
    known = dtype_name("finfo", dtype)
    if known not in FLOATS:
        raise DTypeError(f"finfo: takes a dtype of floats, not {known}: iinfo takes integers")
    return np.finfo(known)


def iinfo(dtype: DType) -> np.iinfo:
    """The limits of a dtype of integers: `max`, `min`. Raises DTypeError for another."""
    known = dtype_name("iinfo", dtype)
    if known not in INTEGERS:
        raise DTypeError(f"iinfo: takes a dtype of integers, not {known}: finfo takes floats")
    return np.iinfo(known)


class About(Handle):
    """Questions to a tensor."""

    __slots__ = ()

    @property
    def device(self) -> Context:
        """The device on which the value is or will be computed: a GPU, if one of the leaves below is there."""
        return context_of(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return numel(self) * np.dtype(dtype_of(self)).itemsize

    def type(self, dtype: DType) -> Tensor:
        """The values in another dtype, as `to`."""
        return to(self, dtype)

    def __contains__(self, value: ArrayLike) -> bool:
        return bool((array_of(self).numpy() == np.asarray(value)).any())


class Conversions(Handle):
    """`to` by the names of dtypes: a class of its own, as inside of it `float` is no type."""

    __slots__ = ()

    def float(self) -> Tensor:
        """The values as float32."""
        return to(self, "float32")

    def double(self) -> Tensor:
        """The values as float64."""
        return to(self, "float64")

    def long(self) -> Tensor:
        """The values as int64."""
        return to(self, "int64")

    def int(self) -> Tensor:
        """The values as int32."""
        return to(self, "int32")

    def bool(self) -> Tensor:
        """The values as booleans."""
        return to(self, "bool")
