"""Properties of tensors, and conversions to other dtypes and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from .. import ops
from ..checks import dtype_named, flag, has_no_effect
from ..devices import Context, array
from ..errors import DeviceError, DTypeError
from ..graph import FLOATS, Handle, Node, is_node
from ..ops import dtype_name, dtype_of, known_dtype, shape_of
from .arguments import node_of
from .creation import context_named, leaf, zeros
from .evaluate import array_of, context_of
from .typing import ArrayLike, Device, DType, Size

if TYPE_CHECKING:
    from .base import Tensor


def numel(x: ArrayLike) -> int:
    """The number of elements."""
    return int(np.prod(shape_of(node_of(x)), dtype=np.int64))


def is_floating_point(x: ArrayLike) -> bool:
    """Whether the elements are floats."""
    return dtype_of(node_of(x)) in FLOATS


def to(
    x: ArrayLike,
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
    node = node_of(x)
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


class About(Handle):
    """Questions to a tensor, and conversions, as methods."""

    __slots__ = ()

    @property
    def device(self) -> Context:
        """The device on which the value is or will be computed: a GPU, if one of the leaves below is there."""
        return context_of(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return numel(self) * np.dtype(dtype_of(self)).itemsize

    numel = numel
    is_floating_point = is_floating_point
    to = to

    def type(self, dtype: DType) -> Tensor:
        """The values in another dtype, as `to`."""
        return to(self, dtype)

    def type_as(self, other: ArrayLike) -> Tensor:
        """The values in the other's dtype."""
        return to(self, node_of(other))

    def new_zeros(
        self, *size: Size, dtype: DType = None, requires_grad: bool = False, device: Device = None
    ) -> Tensor:
        """Zeros of another shape, in x's dtype and on its device for None."""
        own, ctx = dtype_of(self) if dtype is None else dtype, self.device if device is None else device
        return zeros(*size, dtype=own, requires_grad=requires_grad, device=ctx)

    def cpu(self) -> Tensor:
        """`to("cpu")`."""
        return to(self, "cpu")

    def cuda(self, device: Device | int = None) -> Tensor:
        """`to` a GPU, the first for None."""
        return to(self, "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

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
