"""Leaves of a graph: variables, which are fed, and constants of a shape."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import in_dtype
from ..compute import Tensor
from ..errors import DTypeError, GraphError
from ..graph import DTYPES, INTEGERS, OPS, Formula, Made, Node, Op, Shape, Type, register, type_of
from .rules import dtype_attribute, holds, real_constant, shape_attribute
from .types import dtype_of


@register
class Placeholder(Op):
    """A value that `Executor.run` is fed. It may declare its shape and dtype."""

    name = "placeholder"
    variable = True
    never = "a variable has no value but the one it is fed"

    def type_of(self, node: Node) -> Type | None:
        """The declared type; None where a part of it is not declared."""
        shape, dtype = node.attrs["shape"], node.attrs["dtype"]
        return None if shape is None or dtype is None else type_of(shape, dtype)

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.placeholder(shape, dtype, node.name)


class _Constant(Op):
    """A constant of its input's shape and dtype, whose values are not read."""

    shape_only: ClassVar[Sequence[int]] = (0,)
    dtypes = DTYPES
    flat = True
    value: ClassVar[float]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return full_op(shapes[0], self.value, dtypes[0])


@register
class OnesLike(_Constant):
    """1 at every index of the input's shape."""

    name = "oneslike"
    value = 1.0


@register
class ZerosLike(_Constant):
    """0 at every index of the input's shape."""

    name = "zeroslike"
    value = 0.0


@register
class Full(Op):
    """`value` at every index of the shape."""

    name = "full"
    constant = True
    flops = 0
    kind = "elementwise"
    lifts = True
    formula: ClassVar[Formula] = compute.full
    reference: ClassVar[Formula] = np.full
    takes: ClassVar[Sequence[str]] = ("shape", "value", "dtype")

    def numbers(self, node: Node) -> tuple[Any, Sequence[Any]]:
        return (node.attrs["shape"], node.attrs["dtype"]), (node.attrs["value"],)

    def number(self, node: Node, which: int) -> np.ndarray:
        return np.asarray(node.attrs["value"], node.attrs["dtype"])

    def lifted(self, node: Node, inputs: list[Node], numbers: Mapping[int, Node]) -> Node:
        return OPS["broadcast_shape"].make([numbers[0]], {"shape": node.attrs["shape"]})


@register
class Constant(Op):
    """The number `attrs["value"]` in the dtype `attrs["dtype"]`, that of what it stands beside; of shape ()."""

    name = "constant"
    constant = immediate = True
    never = "a number stands in the code of what reads it"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return ()


def placeholder_op(name: str | None = None, shape: Any = None, dtype: Any = None) -> Made:
    """A variable; see `Variable`."""
    if name is not None and not isinstance(name, str):
        raise GraphError(f"placeholder: the name must be text, not {type(name).__name__}")
    if shape is not None:
        shape = shape_attribute("placeholder", shape)
    if dtype is not None:
        dtype = dtype_attribute("placeholder", dtype)
    return Placeholder.make([], {"shape": shape, "dtype": dtype}, name)


def Variable(name: str, shape: Any = None, dtype: Any = None) -> Made:
    """A value that is fed to `Executor.run`.

    Args:
        name: for printing and errors; need not be unique.
        shape: the shape it will be fed with, an int or a tuple; None where feeds may differ.
        dtype: one of `dlsys.graph.DTYPES`, as "float32" or "int64"; None for what is fed.

    Raises GraphError for a name that is no text, and for a shape or dtype that is none.
    """
    if not isinstance(name, str):
        raise GraphError(f"Variable: the name must be text, not {type(name).__name__}")
    return placeholder_op(name, shape, dtype)


def oneslike_op(node: Node) -> Made:
    """Ones of the node's shape and dtype."""
    return OnesLike.make([node])


def zeroslike_op(node: Node) -> Made:
    """Zeros of the node's shape and dtype."""
    return ZerosLike.make([node])


def constant_op(value: Any, dtype: str = "float32") -> Made:
    """A number as an operand, in the dtype of the other one.

    Raises GraphError for what is no real number, DTypeError for one that the dtype does not hold."""
    number = bool(value) if isinstance(value, (bool, np.bool_)) else real_constant("constant", value)
    if dtype == "bool" and not isinstance(number, bool):
        raise DTypeError(f"constant: {number:g} is not a boolean, as the other operand is")
    if not holds(dtype, number) or (dtype in INTEGERS and number != int(number)):
        raise DTypeError(f"constant: {number:g} is no {dtype}, which the other operand is")
    return Constant.make([], {"value": number, "dtype": dtype}, repr(number))


def is_number(value: Any) -> bool:
    """Whether the value is one real number, which takes the dtype of what it meets."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (numbers.Real, np.bool_))


def number_pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands, of which one may be a number beside a node."""
    if isinstance(a, Node) and is_number(b):
        return a, constant_op(b, dtype_of(a))
    if isinstance(b, Node) and is_number(a):
        return constant_op(a, dtype_of(b)), b
    return a, b


def full_op(shape: Any, value: float, dtype: Any = "float32") -> Made:
    """`value`, rounded to the dtype, at every index of the shape; of integers a fraction is cut off.

    Raises GraphError for a shape or dtype that is none, and a value that is no real number, DTypeError for one beyond
    the range of integers.
    """
    known, number = dtype_attribute("full", dtype), real_constant("full", value)
    if not holds(known, number):
        raise DTypeError(f"full: {value} is no {known}")
    held = in_dtype(number, known).item()
    return Full.make([], {"shape": shape_attribute("full", shape), "value": held, "dtype": known})
