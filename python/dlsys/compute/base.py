"""Constants, broadcast reads and the pointwise map, on which the formulas are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr as IRExpr

from ..checks import in_dtype

Shape = tuple[int, ...]
Expr = Any  # of tvm.ir
Pointwise = Callable[..., te.Tensor]
"""A formula of elements, of tensors and immediates."""
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


def immediate(number: np.ndarray) -> Expr:
    """A number, an array of shape (), as an operand of formulas of elements; a floating-point zero by a call, since
    TVM's simplifier makes 0 * x zero, whatever x is."""
    dtype = str(number.dtype)
    found = tirx.const(number.item(), dtype)
    if dtype.startswith("float") and number == 0:
        return tirx.call_intrin(dtype, "tirx.fabs", found) * tirx.const(np.copysign(1.0, number).item(), dtype)
    return found


def read(x: Any, index: Sequence[Any]) -> Expr:
    """x, broadcast, at an index of the broadcast shape: leading axes dropped, axes of extent 1 read at 0; an immediate
    as it is."""
    if not isinstance(x, te.Tensor):
        return x
    shape = shape_of(x)
    own = index[len(index) - len(shape) :]
    return x(*(0 if extent == 1 else i for extent, i in zip(shape, own, strict=True)))


def inside(value: Expr, fill: Expr, index: Sequence[Any], extents: Shape, axes: Shape, padding: Shape) -> Expr:
    """A value where an index lies in images of those extents, else `fill`; along `axes` they have so much padding."""
    tests = []
    for axis in (axis for axis, own in zip(axes, padding, strict=True) if own):
        tests += [index[axis] >= 0, index[axis] < extents[axis]]
    return tirx.if_then_else(tirx.all(*tests), value, fill) if tests else value


def read_padded(x: te.Tensor, index: Sequence[Any], axes: Pair, padding: Pair, fill: float) -> Expr:
    """x at an index; `fill` in the padding of its images."""
    return inside(x(*index), constant(fill, x.dtype), index, shape_of(x), axes, padding)


def pointwise(name: str, function: Callable[..., Expr], *operands: Any) -> te.Tensor:
    """`function` applied at every index, operands, tensors or immediates, broadcast as NumPy does; of a tensor given
    twice it gets one element twice."""
    shape = np.broadcast_shapes(*(shape_of(x) for x in operands if isinstance(x, te.Tensor)))
    first = [next(i for i, x in enumerate(operands) if x.same_as(y)) for y in operands]

    def at(*index: Any) -> Expr:
        elements = [read(x, index) for x in operands]
        return function(*(elements[i] for i in first))

    return te.compute(shape, at, name=name)


def elementwise(function: Callable[..., Expr], name: str = "") -> Pointwise:
    """A formula of elements as one of tensors and immediates, by `pointwise`; what stands behind them, Python's
    numbers, it takes as it is. Also a decorator."""

    def formula(*arguments: Any, **words: Any) -> te.Tensor:
        operands = [x for x in arguments if isinstance(x, IRExpr)]
        rest = arguments[len(operands) :]
        return pointwise(formula.__name__, lambda *elements: function(*elements, *rest, **words), *operands)

    formula.__name__ = formula.__qualname__ = name or function.__name__
    formula.__doc__ = function.__doc__
    return formula


def placeholder(shape: Sequence[int], dtype: str, name: str) -> te.Tensor:
    """An input of a formula."""
    return te.placeholder(tuple(shape), dtype, name=name)


def full(shape: Sequence[int], value: float, dtype: str) -> te.Tensor:
    """`value` at every index."""
    found = immediate(in_dtype(value, dtype))
    return te.compute(tuple(shape), lambda *_: found, name="full")


def copy(x: te.Tensor) -> te.Tensor:
    """x."""
    return pointwise("copy", lambda v: v, x)
