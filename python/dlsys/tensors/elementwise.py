"""Methods of one tensor or two, at each index, by PyTorch's names and with its arguments; and products of matrices.

Each is a function of `dlsys` too, which takes arrays and numbers in place of the tensor. Dtypes are promoted as PyTorch
does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

import numpy as np

from ..errors import DTypeError, GraphError, ShapeError
from ..graph import INTEGERS, Node
from ..ops import beside_number, is_number, known_dtype, operand, shape_of
from .arguments import float_of, node_of, pair_of, require_operand
from .creation import leaf
from .node import TensorNode
from .typing import ArrayLike, ops

if TYPE_CHECKING:
    from .base import Tensor


OfOne: TypeAlias = "Callable[[ArrayLike], Tensor]"
OfTwo: TypeAlias = "Callable[[ArrayLike, ArrayLike], Tensor]"


def _of_floats(function: Callable[[Tensor], Tensor]) -> OfOne:
    """An operator as a method; integers and booleans become float32."""

    def apply(self: ArrayLike) -> Tensor:
        return function(float_of(self))

    apply.__doc__, apply.__name__ = function.__doc__, function.__name__.removesuffix("_op")
    return apply


def _between(symbol: str, function: Callable[..., Tensor]) -> OfTwo:
    """One of Python's operators as a method."""

    def apply(self: ArrayLike, other: ArrayLike) -> Tensor:
        require_operand(self)
        require_operand(other)
        if symbol == "@":
            return function(node_of(self), node_of(other))
        return function(self if isinstance(other, Node) else node_of(self), other)

    apply.__doc__ = (
        f"self {symbol} other, at each index. Raises GraphError for what is neither tensor nor number."
    )
    return apply


def _is_whole(node: Node) -> bool:
    return known_dtype(node) in INTEGERS


def _product(op: str, rank: int, a: ArrayLike, b: ArrayLike) -> Tensor:
    first, second = node_of(a), node_of(b)
    for node in (first, second):
        if len(shape_of(node)) != rank:
            raise ShapeError(
                f"{op}: takes tensors of {rank} axes, not of shape {shape_of(node)} [{node.name}]"
            )
    return ops.matmul_op(first, second)


class Elementwise(TensorNode):
    """Methods at each index."""

    __slots__ = ()

    exp: ClassVar[OfOne] = _of_floats(ops.exp_op)
    log: ClassVar[OfOne] = _of_floats(ops.log_op)
    sqrt: ClassVar[OfOne] = _of_floats(ops.sqrt_op)
    rsqrt: ClassVar[OfOne] = _of_floats(ops.rsqrt_op)
    sin: ClassVar[OfOne] = _of_floats(ops.sin_op)
    cos: ClassVar[OfOne] = _of_floats(ops.cos_op)
    tanh: ClassVar[OfOne] = _of_floats(ops.tanh_op)
    sigmoid: ClassVar[OfOne] = _of_floats(ops.sigmoid_op)

    add: ClassVar[OfTwo] = _between("+", operator.add)
    sub: ClassVar[OfTwo] = _between("-", operator.sub)
    mul: ClassVar[OfTwo] = _between("*", operator.mul)
    div: ClassVar[OfTwo] = _between("/", operator.truediv)
    pow: ClassVar[OfTwo] = _between("**", operator.pow)
    matmul: ClassVar[OfTwo] = _between("@", operator.matmul)
    eq: ClassVar[OfTwo] = _between("==", operator.eq)
    ne: ClassVar[OfTwo] = _between("!=", operator.ne)
    lt: ClassVar[OfTwo] = _between("<", operator.lt)
    le: ClassVar[OfTwo] = _between("<=", operator.le)
    gt: ClassVar[OfTwo] = _between(">", operator.gt)
    ge: ClassVar[OfTwo] = _between(">=", operator.ge)

    def relu(self: ArrayLike) -> Tensor:
        """max(x, 0)."""
        node = node_of(self)
        return node.maximum(0) if _is_whole(node) else ops.relu_op(node)

    def neg(self: ArrayLike) -> Tensor:
        """-x."""
        return -node_of(self)

    def abs(self: ArrayLike) -> Tensor:
        """|x|."""
        return ops.abs_op(node_of(self))

    __abs__ = abs

    def floor(self: ArrayLike) -> Tensor:
        """The largest integer that is no larger, in x's dtype."""
        node = node_of(self)
        return node if _is_whole(node) else ops.floor_op(node)

    def ceil(self: ArrayLike) -> Tensor:
        """The smallest integer that is no smaller, in x's dtype."""
        node = node_of(self)
        return node if _is_whole(node) else -ops.floor_op(-node)

    def round(self: ArrayLike) -> Tensor:
        """The nearest integer, of two the even one, in x's dtype."""
        node = node_of(self)
        return node if _is_whole(node) else ops.round_op(node)

    def clamp(self: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
        """x, no less than `min` and no more than `max`, numbers or tensors; None is no bound. Raises GraphError for
        two."""
        node = node_of(self)
        if min is None and max is None:
            raise GraphError("clamp: there is neither a min nor a max")
        if (
            operand(min) is min
            and operand(max) is max
            and not (isinstance(min, Node) or isinstance(max, Node))
        ):
            beside: Node = node
            for bound in (min, max):
                beside = beside if bound is None else beside_number(beside, bound)
            return ops.clip_op(beside, min, max)
        node = node if min is None else node.maximum(min)
        return node if max is None else node.minimum(max)

    clip = clamp

    def maximum(self: ArrayLike, other: ArrayLike) -> Tensor:
        """The larger; NaN if either is."""
        first, second = pair_of(self, other)
        return (ops.logical_or_op if known_dtype(first) == "bool" else ops.maximum_op)(first, second)

    def minimum(self: ArrayLike, other: ArrayLike) -> Tensor:
        """The smaller; NaN if either is."""
        first, second = pair_of(self, other)
        return (ops.logical_and_op if known_dtype(first) == "bool" else ops.minimum_op)(first, second)

    def mm(self: ArrayLike, other: ArrayLike) -> Tensor:
        """The product of two matrices. Raises ShapeError for others."""
        return _product("mm", 2, self, other)

    def bmm(self: ArrayLike, other: ArrayLike) -> Tensor:
        """The products of two batches of matrices. Raises ShapeError for others."""
        return _product("bmm", 3, self, other)

    def logical_not(self: ArrayLike) -> Tensor:
        """Whether it is 0."""
        return ops.logical_not_op(as_bool(self))

    def logical_and(self: ArrayLike, other: ArrayLike) -> Tensor:
        """Whether neither is 0."""
        return ops.logical_and_op(as_bool(self), as_bool(other))

    def logical_or(self: ArrayLike, other: ArrayLike) -> Tensor:
        """Whether one at least is not 0."""
        return ops.logical_or_op(as_bool(self), as_bool(other))

    def isnan(self: ArrayLike) -> Tensor:
        """Whether it is NaN."""
        node = node_of(self)
        return ops.not_equal_op(node, node)

    def isinf(self: ArrayLike) -> Tensor:
        """Whether it is infinite."""
        return ops.equal_op(ops.abs_op(float_of(self)), math.inf)

    def isfinite(self: ArrayLike) -> Tensor:
        """Whether it is neither infinite nor NaN."""
        return ops.less_op(ops.abs_op(float_of(self)), math.inf)

    def masked_fill(self: ArrayLike, mask: ArrayLike, value: ArrayLike) -> Tensor:
        """x, but `value`, cast to x's dtype, where the mask holds: fractions are cut off beside integers.

        Raises DTypeError for a number that x's dtype does not hold, as infinity beside integers.
        """
        node = node_of(self)
        if isinstance(value, Node):
            return ops.where_op(node_of(mask), ops.cast_like_op(value, node), node)
        if not is_number(value):
            raise GraphError(f"masked_fill: the value must be a number or a tensor, not {value!r}")
        number, dtype = cast(float, value), known_dtype(node)
        if dtype == "bool":
            value = leaf(np.asarray(bool(number)))
        elif dtype in INTEGERS:
            limits = np.iinfo(dtype)
            if not limits.min <= number <= limits.max:
                raise DTypeError(f"masked_fill: {value!r} is no {dtype}, which {node.name} is")
            value = leaf(np.asarray(int(number), dtype))
        return ops.where_op(node_of(mask), value, node)


def as_bool(x: ArrayLike) -> Tensor:
    """Whether it is not 0."""
    node = node_of(x)
    return node if known_dtype(node) == "bool" else ops.cast_op(node, "bool")


def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> Tensor:
    """a where the condition holds, else b."""
    return ops.where_op(node_of(condition), *pair_of(a, b))
