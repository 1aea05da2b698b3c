"""Methods of one tensor or two, at each index, by PyTorch's names and with its arguments; and products of matrices.

Each is a function of `dlsys` too, which takes arrays and numbers in place of the tensor. Dtypes are promoted as PyTorch
does.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

import numpy as np

from .. import ops
from ..checks import flag, number, word
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import INTEGERS, Node
from ..ops import beside_number, is_number, known_dtype, operand, shape_of
from .arguments import float_of, node_of, pair_of, require_operand
from .creation import leaf
from .node import TensorNode
from .typing import ArrayLike

if TYPE_CHECKING:
    from .base import Tensor


OfOne: TypeAlias = "Callable[[ArrayLike], Tensor]"
OfTwo: TypeAlias = "Callable[[ArrayLike, ArrayLike], Tensor]"


def _of_floats(function: Callable[[Tensor], Tensor]) -> OfOne:
    """An operator as a method; integers and booleans become float32."""

    def apply(self: ArrayLike) -> Tensor:
        return function(float_of(self))

    apply.__doc__, apply.__name__ = function.__doc__, function.__name__.removesuffix("_op")
    apply.__qualname__ = apply.__name__
    return apply


def _between(symbol: str, function: Callable[..., Tensor]) -> OfTwo:
    """One of Python's operators as a method."""

    def apply(self: ArrayLike, other: ArrayLike) -> Tensor:
        require_operand(self)
        require_operand(other)
        if symbol == "@":
            return function(node_of(self), node_of(other))
        return function(self if isinstance(other, Node) else node_of(self), other)

    apply.__name__ = apply.__qualname__ = function.__name__.removeprefix("true")
    apply.__doc__ = (
        f"self {symbol} other, at each index. Raises GraphError for what is neither tensor nor number."
    )
    return apply


def _is_whole(node: Node) -> bool:
    return known_dtype(node) in INTEGERS


def _are_whole(a: Node, b: Node) -> bool:
    """Whether two operands of one dtype, of which one may be a number, are integers."""
    return _is_whole(b if a.op.immediate else a)


def _dividend_and_divisor(op: str, a: ArrayLike, b: ArrayLike) -> tuple[Node, Node]:
    """Two operands as nodes of one dtype. Raises GraphError for integers by the number 0."""
    first, second = pair_of(a, b)
    if second.op.immediate and not second.attrs["value"] and _is_whole(first):
        raise GraphError(f"{op}: {first.name} by 0")
    return first, second


def _rest(a: Node, b: Node) -> tuple[Tensor, Tensor]:
    """fmod(a, b), and where its sign is not b's."""
    rest = ops.fmod_op(a, b)
    if b.op.immediate:
        return rest, rest > 0 if b.attrs["value"] < 0 else rest < 0
    return rest, (rest != 0) & ((rest < 0) != (b < 0))


def _float_quotient(a: Node, b: Node) -> Tensor:
    """a / b rounded down, where b is 0 unrounded."""
    rest, below = _rest(a, b)
    whole = ops.div_op(ops.sub_op(a, rest), b)  # but for rounding
    down = ops.floor_op(whole)
    nearest = down + ops.cast_like_op(whole - down > 0.5, rest)
    found = nearest - ops.cast_like_op(below, rest)
    if b.op.immediate:
        return found if b.attrs["value"] else ops.div_op(a, b)
    return ops.where_op(ops.equal_op(b, 0.0), ops.div_op(a, b), found)


def _product(op: str, rank: int, a: ArrayLike, b: ArrayLike) -> Tensor:
    first, second = node_of(a), node_of(b)
    _require_rank(op, rank, first, second)
    return ops.matmul_op(first, second)


def _require_rank(op: str, rank: int, *nodes: Node) -> None:
    """Raises ShapeError for a node that has not `rank` axes."""
    for node in nodes:
        if len(shape_of(node)) != rank:
            told = f"takes tensors of {rank} axes, not of shape {shape_of(node)} [{node.name}]"
            raise ShapeError(f"{op}: {told}")


_divided = _between("/", operator.truediv)


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
    erf: ClassVar[OfOne] = _of_floats(ops.erf_op)

    add: ClassVar[OfTwo] = _between("+", operator.add)
    sub: ClassVar[OfTwo] = _between("-", operator.sub)
    mul: ClassVar[OfTwo] = _between("*", operator.mul)
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

    def sign(self: ArrayLike) -> Tensor:
        """-1, 0 or 1, as x's sign, in x's dtype."""
        node = node_of(self)
        return node if known_dtype(node) == "bool" else ops.sign_op(node)

    def square(self: ArrayLike) -> Tensor:
        """x * x."""
        return node_of(self) ** 2

    def log10(self: ArrayLike) -> Tensor:
        """The logarithm to base 10."""
        return float_of(self).log() * (1 / math.log(10))

    def log1p(self: ArrayLike) -> Tensor:
        """log(1 + x), without loss of digits near 0."""
        node = float_of(self)
        small = ops.where_op(ops.abs_op(node) < 1.0, node, 0.0)
        rounded = small + 1.0  # the sum lost small - (rounded - 1), and log's slope there is 1 / rounded
        return ops.log_op(node + 1.0) + (small - (rounded - 1.0)) / rounded

    def expm1(self: ArrayLike) -> Tensor:
        """exp(x) - 1, without loss of digits near 0."""
        node = float_of(self)
        is_small = ops.abs_op(node) < 1.0
        half = ops.tanh_op(ops.where_op(is_small, node, 0.0) * 0.5)
        return ops.where_op(is_small, half * 2.0 / (1.0 - half), ops.exp_op(node) - 1.0)

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
        bounds = [bound for bound in (min, max) if bound is not None]
        if all(operand(bound) is bound and not isinstance(bound, Node) for bound in bounds):
            low, high = cast("tuple[float | None, float | None]", (min, max))
            return ops.clip_op(functools.reduce(beside_number, bounds, cast(Node, node)), low, high)
        node = node if min is None else node.maximum(min)
        return node if max is None else node.minimum(max)

    clip = clamp

    def fmod(self: ArrayLike, other: ArrayLike) -> Tensor:
        """The rest of x after the whole times of `other` in it, with x's sign; see `autodiff.fmod_op`. Raises
        GraphError for integers by the number 0."""
        return ops.fmod_op(*_dividend_and_divisor("fmod", self, other))

    def div(self: ArrayLike, other: ArrayLike, *, rounding_mode: str | None = None) -> Tensor:
        """self / other; with `rounding_mode` "floor" rounded down, with "trunc" towards 0, in the operands' dtype.
        Raises GraphError for what is neither tensor nor number, and what `floor_divide` raises."""
        if rounding_mode is None:
            return _divided(self, other)
        if word("div", "rounding_mode", rounding_mode, ("floor", "trunc")) == "floor":
            return Elementwise.floor_divide(self, other)
        if _are_whole(*pair_of(self, other)):
            return ops.quotient_op(*_dividend_and_divisor("div", self, other))
        found = _divided(self, other)
        return where(found < 0, found.ceil(), found.floor())

    def floor_divide(self: ArrayLike, other: ArrayLike) -> Tensor:
        """The quotient, rounded down; of integers in their dtype, in which -self wraps around, and by a 0 in a tensor
        0, as NumPy's. Raises GraphError for integers by the number 0."""
        a, b = _dividend_and_divisor("floor_divide", self, other)
        if not _are_whole(a, b):
            return _float_quotient(a, b)
        _, below = _rest(a, b)
        whole = ops.quotient_op(a, b)
        return whole - ops.cast_like_op(below, whole)

    def remainder(self: ArrayLike, other: ArrayLike) -> Tensor:
        """The remainder of `floor_divide`, which has the other's sign; of integers by a 0 in a tensor 0. Raises
        GraphError for integers by the number 0."""
        a, b = _dividend_and_divisor("remainder", self, other)
        rest, below = _rest(a, b)
        return ops.where_op(below, ops.add_op(rest, b), rest)

    __floordiv__ = floor_divide
    __mod__ = remainder

    def __rfloordiv__(self, other: ArrayLike) -> Tensor:
        return Elementwise.floor_divide(other, self)

    def __rmod__(self, other: ArrayLike) -> Tensor:
        return Elementwise.remainder(other, self)

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

    def mv(self: ArrayLike, vec: ArrayLike) -> Tensor:
        """The product of a matrix and a vector. Raises ShapeError for others."""
        matrix, vector = node_of(self), node_of(vec)
        _require_rank("mv", 2, matrix)
        _require_rank("mv", 1, vector)
        return ops.matmul_op(matrix, vector)

    def dot(self: ArrayLike, tensor: ArrayLike) -> Tensor:
        """The sum of the products of two vectors' elements. Raises ShapeError for others."""
        return _product("dot", 1, self, tensor)

    def outer(self: ArrayLike, vec2: ArrayLike) -> Tensor:
        """The products of each element of a vector with each of another. Raises ShapeError for others."""
        first, second = node_of(self), node_of(vec2)
        _require_rank("outer", 1, first, second)
        return first.unsqueeze(1) * second

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

    def isclose(
        self: ArrayLike, other: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """Whether |self - other| <= atol + rtol |other| or both are equal; or both NaN with `equal_nan`."""
        a, b = cast("tuple[Tensor, Tensor]", pair_of(node_of(self), node_of(other)))
        apart, least = (a - b).abs(), number("isclose", "atol", atol)
        near = apart.isfinite() & (apart <= b.abs() * number("isclose", "rtol", rtol) + least) | (a == b)
        return near | (a.isnan() & b.isnan()) if flag("isclose", "equal_nan", equal_nan) else near

    def isfinite(self: ArrayLike) -> Tensor:
        """Whether it is neither infinite nor NaN."""
        return ops.less_op(ops.abs_op(float_of(self)), math.inf)

    def masked_fill(self: ArrayLike, mask: ArrayLike, value: ArrayLike) -> Tensor:
        """x, but `value`, cast to x's dtype, where the mask holds: fractions are cut off beside integers. Raises
        DTypeError for a number that x's dtype does not hold, as infinity beside integers."""
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
