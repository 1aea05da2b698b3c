"""Constants, broadcast reads and the pointwise map, on which the formulas are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from ..checks import in_dtype

Shape = tuple[int, ...]
Tensor = te.Tensor


def shape_of(x: te.Tensor) -> Shape:
    """The tensor's shape as Python integers."""
    return tuple(int(extent) for extent in x.shape)


def type_of(x: Any) -> tuple[Shape, str] | None:
    """The shape and dtype of a tensor; None of what is no tensor of TE."""
    return (shape_of(x), str(x.dtype)) if isinstance(x, te.Tensor) else None


def constant(value: float, dtype: Any) -> tirx.PrimExpr:
    """`value` in a dtype, see `in_dtype`; infinity too, which `tirx.const` makes of no number beyond the range."""
    return tirx.const(in_dtype(value, str(dtype)).item(), str(dtype))


def read(x: te.Tensor, index: Sequence[Any]) -> tirx.PrimExpr:
    """x, broadcast, at an index of the broadcast shape: leading axes dropped, axes of extent 1 read at 0."""
    return x(*broadcast_index(shape_of(x), index))


def broadcast_index(shape: Shape, index: Sequence[Any]) -> list[Any]:
    """Where an array of `shape` is read for an index of the shape to which it is broadcast."""
    own = index[len(index) - len(shape) :]
    return [0 if extent == 1 else i for extent, i in zip(shape, own, strict=True)]


def pointwise(name: str, function: Callable[..., tirx.PrimExpr], *tensors: te.Tensor) -> te.Tensor:
    """`function` applied at every index, operands broadcast as NumPy does; of a tensor given twice it gets one element
    twice."""
    shape = np.broadcast_shapes(*(shape_of(x) for x in tensors))
    first = [next(i for i, x in enumerate(tensors) if x.same_as(y)) for y in tensors]

    def at(*index: Any) -> tirx.PrimExpr:
        elements = [read(x, index) for x in tensors]
        return function(*(elements[i] for i in first))

    return te.compute(shape, at, name=name)


def elementwise(function: Callable[..., tirx.PrimExpr], name: str = "") -> Callable[..., te.Tensor]:
    """A formula of elements as one of tensors, by `pointwise`; what stands behind the tensors, constants, it takes as
    it is. Also a decorator."""

    def formula(*operands: Any) -> te.Tensor:
        tensors = [x for x in operands if isinstance(x, te.Tensor)]
        rest = operands[len(tensors) :]
        return pointwise(formula.__name__, lambda *elements: function(*elements, *rest), *tensors)

    formula.__name__ = formula.__qualname__ = name or function.__name__
    formula.__doc__ = function.__doc__
    return formula


def placeholder(shape: Sequence[int], dtype: str, name: str) -> te.Tensor:
    """An input of a formula."""
    return te.placeholder(tuple(shape), dtype, name=name)


def full(shape: Sequence[int], value: float, dtype: str) -> te.Tensor:
    """`value` at every index; a floating-point zero by a call: TVM's simplifier makes 0 * x and 0 / x zero, whatever x
    is, where a kernel has both."""
    found = constant(value, dtype)
    if dtype.startswith("float") and in_dtype(value, dtype) == 0:
        found = tirx.call_intrin(dtype, "tirx.fabs", found) * constant(np.copysign(1, value), dtype)
    return te.compute(tuple(shape), lambda *_: found, name="full")


def copy(x: te.Tensor) -> te.Tensor:
    """x."""
    return pointwise("copy", lambda v: v, x)


PART = "dlsys.part"
"""The annotation of a stage that says to which part of a function it belongs."""


def part(x: te.Tensor, number: int) -> te.Tensor:
    """x, in a function whose parts have nothing to do with each other."""
    return te.compute(x.shape, lambda *index: x(*index), name=x.op.name, attrs={PART: number})
