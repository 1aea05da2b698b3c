"""Functions of tensors by PyTorch's names, with its arguments; each is also a method.

They take tensors, arrays and numbers, promote dtypes as PyTorch does, and build the operators of `autodiff`. For an
axis there are PyTorch's words `dim` and `keepdim`, and NumPy's `axis` and `keepdims`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .. import ops
from ..checks import flag, integer
from ..device import Context
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, INTEGERS, Node
from ..ops import beside_number, dtype_name, is_operand, known_dtype, operand, pair, shape_of
from ..ops.types import as_float
from .creation import context_named, tensor
from .values import moved


def node_of(value: Any) -> Node:
    """A tensor as it is, an array or a number as a constant. Raises GraphError for anything else."""
    found = operand(value)
    if found is None:
        raise GraphError(f"{type(value).__name__} is no tensor: make one by tensor()")
    return found if isinstance(found, Node) else tensor(found)


def pair_of(a: Any, b: Any) -> tuple[Node, Node]:
    """Two operands as nodes of one dtype."""
    if not (isinstance(a, Node) or isinstance(b, Node)):
        a = node_of(a)
    found = pair(a, b)
    if found is None:
        raise GraphError(
            f"{type(b if isinstance(a, Node) else a).__name__} is no tensor: make one by tensor()"
        )
    return found


def float_of(x: Any) -> Node:
    """The argument of a function of floats: integers and booleans become float32."""
    return as_float(node_of(x))


def dims_of(x: Node, dim: Any) -> tuple[int, ...]:
    """Axes as non-negative numbers, all for None; the shape must be known. Raises ShapeError, GraphError."""
    rank = len(shape_of(x))
    given = range(rank) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    found = tuple(integer(x.name, "the axis", axis) for axis in given)
    for axis in found:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is out of range for {x.name} of shape {shape_of(x)}")
    return tuple(axis % rank for axis in found)


def dim_of(op: str, x: Node, dim: Any) -> int:
    """One axis as a non-negative number; the shape must be known. Raises ShapeError, GraphError."""
    (found,) = dims_of(x, integer(op, "the axis", dim))
    return found


# Of one tensor, at each index -----------------------------------------------------------------------------------


def _of_floats(function: Callable[[Node], Node]) -> Callable[[Any], Node]:
    """A function of nodes as one of tensors, arrays and numbers; integers and booleans become float32."""

    def apply(x: Any) -> Node:
        return function(float_of(x))

    apply.__doc__, apply.__name__ = function.__doc__, function.__name__.removesuffix("_op")
    return apply


exp, log = _of_floats(ops.exp_op), _of_floats(ops.log_op)
sqrt, rsqrt = _of_floats(ops.sqrt_op), _of_floats(ops.rsqrt_op)
sin, cos = _of_floats(ops.sin_op), _of_floats(ops.cos_op)
tanh, sigmoid = _of_floats(ops.tanh_op), _of_floats(ops.sigmoid_op)


def relu(x: Any) -> Node:
    """max(x, 0)."""
    node = node_of(x)
    return maximum(node, 0) if known_dtype(node) in INTEGERS else ops.relu_op(node)


def neg(x: Any) -> Node:
    """-x."""
    return -node_of(x)


def abs(x: Any) -> Node:
    """|x|."""
    return ops.abs_op(node_of(x))


def _is_whole(node: Node) -> bool:
    return known_dtype(node) in INTEGERS


def floor(x: Any) -> Node:
    """The largest integer that is no larger, in x's dtype."""
    node = node_of(x)
    return node if _is_whole(node) else ops.floor_op(node)


def ceil(x: Any) -> Node:
    """The smallest integer that is no smaller, in x's dtype."""
    node = node_of(x)
    return node if _is_whole(node) else -ops.floor_op(-node)


def round(x: Any) -> Node:
    """The nearest integer, of two the even one, in x's dtype."""
    node = node_of(x)
    return node if _is_whole(node) else ops.round_op(node)


def clamp(x: Any, min: Any = None, max: Any = None) -> Node:
    """x, no less than `min` and no more than `max`, numbers or tensors; None is no bound. Raises GraphError for two."""
    node = node_of(x)
    if min is None and max is None:
        raise GraphError("clamp: there is neither a min nor a max")
    if operand(min) is min and operand(max) is max and not (isinstance(min, Node) or isinstance(max, Node)):
        for bound in (min, max):
            node = node if bound is None else beside_number(node, bound)
        return ops.clip_op(node, min, max)
    node = node if min is None else maximum(node, min)
    return node if max is None else minimum(node, max)


clip = clamp


# Of two tensors, at each index ----------------------------------------------------------------------------------


def _between(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Node]:
    """One of Python's operators as a function of tensors, arrays and numbers."""

    def apply(a: Any, b: Any) -> Node:
        for value in (a, b):
            if not is_operand(value):
                raise GraphError(f"{type(value).__name__} is no tensor: make one by tensor()")
        if symbol == "@":
            return function(node_of(a), node_of(b))
        return function(a if isinstance(b, Node) else node_of(a), b)

    apply.__doc__ = f"a {symbol} b, at each index. Raises GraphError for what is neither tensor nor number."
    return apply


add, sub = _between("+", operator.add), _between("-", operator.sub)
mul, div = _between("*", operator.mul), _between("/", operator.truediv)
pow, matmul = _between("**", operator.pow), _between("@", operator.matmul)
eq, ne = _between("==", operator.eq), _between("!=", operator.ne)
lt, le = _between("<", operator.lt), _between("<=", operator.le)
gt, ge = _between(">", operator.gt), _between(">=", operator.ge)


def maximum(a: Any, b: Any) -> Node:
    """The larger; NaN if either is."""
    first, second = pair_of(a, b)
    return (ops.logical_or_op if known_dtype(first) == "bool" else ops.maximum_op)(first, second)


def minimum(a: Any, b: Any) -> Node:
    """The smaller; NaN if either is."""
    first, second = pair_of(a, b)
    return (ops.logical_and_op if known_dtype(first) == "bool" else ops.minimum_op)(first, second)


# Dtypes -------------------------------------------------------------------------------------------------------


def to(x: Any, *given: Any, dtype: Any = None, device: Any = None, copy: bool = False, **unused: Any) -> Node:
    """x in another dtype, given by name, or as that of a tensor; or on another device, "cpu", "cuda:0" or a context.

    Raises DTypeError for an unknown dtype, DeviceError for a device that is not there and for what cannot move (see
    `values.moved`), GraphError for other words.
    """
    if set(unused) - {"non_blocking", "memory_format"}:
        raise GraphError(f"to: takes dtype, device and copy, not {', '.join(unused)}")
    node = node_of(x)
    for value in (*given, device, dtype):
        if isinstance(value, Node):
            node = ops.cast_like_op(node, value)
        elif _is_device(value):
            node = moved(node, context_named(value))
        elif value is not None and not isinstance(value, bool):
            found = dtype_name("to", value)
            node = node if known_dtype(node) == found else ops.cast_op(node, found)
    return ops.copy_op(node) if flag("to", "copy", copy) and node is x else node


def _is_device(value: Any) -> bool:
    """Whether the value names a device: a Context, its name, or PyTorch's object."""
    named = value if isinstance(value, str) else str(value) if type(value).__name__ == "device" else ""
    return isinstance(value, Context) or named.split(":")[0] in ("cpu", "cuda", "gpu", "mps")


def require_float(op: str, x: Any) -> Node:
    """The argument. Raises DTypeError where it is known to be of no floats, as PyTorch does."""
    node = node_of(x)
    dtype = known_dtype(node)
    if dtype is not None and dtype not in FLOATS:
        raise DTypeError(f"{op}: takes floats, and {node.name} is {dtype}: use .float()")
    return node


def _product(op: str, rank: int, a: Any, b: Any) -> Node:
    first, second = node_of(a), node_of(b)
    for node in (first, second):
        if len(shape_of(node)) != rank:
            raise ShapeError(
                f"{op}: takes tensors of {rank} axes, not of shape {shape_of(node)} [{node.name}]"
            )
    return ops.matmul_op(first, second)


def mm(a: Any, b: Any) -> Node:
    """The product of two matrices. Raises ShapeError for others."""
    return _product("mm", 2, a, b)


def bmm(a: Any, b: Any) -> Node:
    """The products of two batches of matrices. Raises ShapeError for others."""
    return _product("bmm", 3, a, b)
