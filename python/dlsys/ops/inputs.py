"""Leaves of a graph: variables, which are fed, and numbers beside nodes."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import DTypeError, GraphError
from ..graph import FLOATS, Node, Op, Shape, Type, register, type_of
from .rules import dtype_attribute, real_constant, require_constant, shape_attribute


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


class Constant(Op):
    """The number `attrs["value"]` in the dtype `attrs["dtype"]`, that of what it stands beside; of shape ()."""

    name = "constant"
    constant = immediate = True
    never = "a number stands in the code of what reads it"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return ()


PLACEHOLDER, CONSTANT = register(Placeholder()), register(Constant())


def placeholder(name: str | None = None, shape: Any = None, dtype: Any = None) -> Node:
    """A variable; see `variable`."""
    if name is not None and not isinstance(name, str):
        raise GraphError(f"placeholder: the name must be text, not {type(name).__name__}")
    if shape is not None:
        shape = shape_attribute("placeholder", shape)
    if dtype is not None:
        dtype = dtype_attribute("placeholder", dtype)
    return Node(PLACEHOLDER, [], {"shape": shape, "dtype": dtype}, name)


def variable(name: str, shape: Any = None, dtype: Any = None) -> Node:
    """A value that is fed to `Executor.run`.

    Args:
        name: for printing and errors; need not be unique.
        shape: the shape it will be fed with, an int or a tuple; None where feeds may differ.
        dtype: one of `dlsys.graph.DTYPES`, as "float32" or "int64"; None for what is fed.

    Raises GraphError for a name that is no text, and for a shape or dtype that is none.
    """
    if not isinstance(name, str):
        raise GraphError(f"Variable: the name must be text, not {type(name).__name__}")
    return placeholder(name, shape, dtype)


def variable_of(known: Type | None, name: str) -> Node:
    """A variable of a type; of none where it depends on what is fed."""
    return Node(PLACEHOLDER, [], {"shape": known and known.shape, "dtype": known and known.dtype}, name)


def constant_op(value: Any, dtype: str = "float32") -> Node:
    """A number as an operand, in the dtype of the other one.

    Raises GraphError for what is no real number, DTypeError for one that the dtype does not hold."""
    if type(value) is float and dtype in FLOATS:  # as mostly
        return Node(CONSTANT, [], {"value": value, "dtype": dtype}, repr(value))
    number = bool(value) if isinstance(value, (bool, np.bool_)) else real_constant("constant", value)
    if dtype == "bool" and not isinstance(number, bool):
        raise DTypeError(f"constant: {number:g} is not a boolean, as the other operand is")
    require_constant("constant", number, dtype, "the other operand")
    return Node(CONSTANT, [], {"value": number, "dtype": dtype}, repr(number))


def is_number(value: Any) -> bool:
    """Whether the value is one real number, which takes the dtype of what it meets."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (numbers.Real, np.bool_))
