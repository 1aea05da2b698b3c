"""Constants, broadcast reads and the pointwise map, on which the formulas are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from ..checks import in_dtype

Shape = tuple[int, ...]
Expr = Any  # of tvm.ir
Pair = tuple[int, int]

FIRST, LAST = (-2, -1), (-3, -2)  # the axes of images' rows and columns, where channels come before and behind


def shape_of(x: Any) -> Shape:
    """The shape of a tensor or a buffer as Python integers."""
    return tuple(int(extent) for extent in x.shape)


def type_of(x: Any) -> tuple[Shape, str] | None:
    """The shape and dtype of a tensor; None of what is no tensor of TE."""
    return (shape_of(x), str(x.dtype)) if isinstance(x, te.Tensor) else None


def constant(value: float, dtype: Any) -> Expr:
    """`value` in a dtype, see `in_dtype`; infinity too, which `tirx.const` makes of no number beyond the range."""
    return tirx.const(in_dtype(value, str(dtype)).item(), str(dtype))


def read(x: te.Tensor, index: Sequence[Any]) -> Expr:
    """x, broadcast, at an index of the broadcast shape: leading axes dropped, axes of extent 1 read at 0."""
    shape = shape_of(x)
    own = index[len(index) - len(shape) :]
    return x(*(0 if extent == 1 else i for extent, i in zip(shape, own, strict=True)))


def inside(value: Expr, fill: Expr, index: Sequence[Any], extents: Shape, axes: Pair, padding: Pair) -> Expr:
    """A value where an index lies in images of those extents, else `fill`; rows and columns have so much padding."""
    tests = []
    for axis in (axis for axis, own in zip(axes, padding, strict=True) if own):
        tests += [index[axis] >= 0, index[axis] < extents[axis]]
    return tirx.if_then_else(tirx.all(*tests), value, fill) if tests else value


def read_padded(x: te.Tensor, index: Sequence[Any], axes: Pair, padding: Pair, fill: float) -> Expr:
    """x at an index; `fill` in the padding of its images."""
    return inside(x(*index), constant(fill, x.dtype), index, shape_of(x), axes, padding)


def pointwise(name: str, function: Callable[..., Expr], *tensors: te.Tensor) -> te.Tensor:
    """`function` applied at every index, operands broadcast as NumPy does; of a tensor given twice it gets one element
    twice."""
    shape = np.broadcast_shapes(*(shape_of(x) for x in tensors))
    first = [next(i for i, x in enumerate(tensors) if x.same_as(y)) for y in tensors]

    def at(*index: Any) -> Expr:
        elements = [read(x, index) for x in tensors]
        return function(*(elements[i] for i in first))

    return te.compute(shape, at, name=name)


def elementwise(function: Callable[..., Expr], name: str = "") -> Callable[..., te.Tensor]:
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
