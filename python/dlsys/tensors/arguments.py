"""Arguments of functions, as tensors, numbers and axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .. import ops
from ..checks import integer
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, Handle, Node, is_node
from ..ops import is_operand, known_dtype, operand, pair, shape_of
from .creation import tensor
from .typing import ArrayLike, Axis

if TYPE_CHECKING:
    from .base import Tensor


def node_of(value: ArrayLike) -> Tensor:
    """A tensor as it is, an array or a number as a constant. Raises GraphError for anything else."""
    found = operand(value)
    if found is None:
        raise _no_tensor(value)
    if isinstance(found, Handle):
        return cast("Tensor", found)
    return Handle.results.of(found) if isinstance(found, Node) else tensor(found)


def pair_of(a: ArrayLike, b: ArrayLike) -> tuple[Tensor, Tensor]:
    """Two operands as nodes of one dtype."""
    if not (is_node(a) or is_node(b)):
        a = node_of(a)
    found = pair(a, b)
    if found is None:
        raise _no_tensor(b if is_node(a) else a)
    return cast("tuple[Tensor, Tensor]", found)


def _no_tensor(value: object) -> GraphError:
    return GraphError(f"{type(value).__name__} is no tensor: make one by tensor()")


def float_of(x: ArrayLike) -> Tensor:
    """The argument of a function of floats: integers and booleans become float32."""
    node = node_of(x)
    return node if known_dtype(node) in (None, *FLOATS) else ops.cast_op(node, "float32")


def bool_of(x: ArrayLike) -> Tensor:
    """Whether it is not 0."""
    node = node_of(x)
    return node if known_dtype(node) == "bool" else ops.cast_op(node, "bool")


def require_float(op: str, x: ArrayLike) -> Tensor:
    """The argument. Raises DTypeError where it is known to be of no floats, as PyTorch does."""
    node = node_of(x)
    dtype = known_dtype(node)
    if dtype is not None and dtype not in FLOATS:
        raise DTypeError(f"{op}: takes floats, and {node.name} is {dtype}: use .float()")
    return node


def require_operand(value: object) -> None:
    """Raises GraphError for what is neither tensor, array nor number."""
    if not is_operand(value):
        raise _no_tensor(value)


def require_rank(op: str, rank: int, *nodes: Node) -> None:
    """Raises ShapeError for a node that has not `rank` axes."""
    for node in nodes:
        if len(node.shape) != rank:
            raise ShapeError(f"{op}: takes tensors of {rank} axes, not of shape {node.shape} [{node.name}]")


def dims_of(x: Node, dim: Axis) -> tuple[int, ...]:
    """Axes as non-negative numbers, all for None; the shape must be known. Raises ShapeError, GraphError."""
    rank = len(shape_of(x))
    given = range(rank) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    found = tuple(integer(x.name, "the axis", axis) for axis in given)
    for axis in found:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is out of range for {x.name} of shape {shape_of(x)}")
    return tuple(axis % rank for axis in found)


def dim_of(op: str, x: Node, dim: int) -> int:
    """One axis as a non-negative number; the shape must be known. Raises ShapeError, GraphError."""
    (found,) = dims_of(x, integer(op, "the axis", dim))
    return found
