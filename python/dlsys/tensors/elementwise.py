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
from ..graph import INTEGERS, Handle, Node, is_node
from ..ops import beside_number, is_number, known_dtype, operand, replay
from .arguments import float_of, method, node_of, pair_of, require_operand
from .creation import leaf
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
    return method(apply)


def _between(symbol: str, function: Callable[..., Tensor]) -> OfTwo:
    """One of Python's operators as a method."""

    def apply(self: ArrayLike, other: ArrayLike) -> Tensor:
        require_operand(self)
        require_operand(other)
        if symbol == "@":
            return function(node_of(self), node_of(other))
        return function(self if is_node(other) else node_of(self), other)

    apply.__name__ = apply.__qualname__ = function.__name__.removeprefix("true")
    apply.__doc__ = (
        f"self {symbol} other, at each index. Raises GraphError for what is neither tensor nor number."
    )
    return apply


def _is_whole(node: Node) -> bool:
    return node.dtype in INTEGERS


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
    """a / b rounded down; by 0, and from 2^53 on, where it has no fraction, as it is."""
    quotient = ops.floor_op(ops.div_op(a, b))
    if b.op.immediate and not b.attrs["value"]:
        return quotient
    rest, below = _rest(a, b)
    whole = ops.div_op(ops.sub_op(a, rest), b)  # but for rounding
    down = ops.floor_op(whole)
    nearest = down + ops.cast_op(whole - down > 0.5, rest.dtype)
    found = nearest - ops.cast_op(below, rest.dtype)
    is_whole = (ops.abs_op(quotient) >= 2.0**53) & (ops.abs_op(a) < math.inf)
    if not b.op.immediate:
        is_whole = is_whole | ops.equal_op(b, 0.0)
    return ops.where_op(is_whole, quotient, found)


def _product(op: str, rank: int, a: Node, b: ArrayLike) -> Tensor:
    second = node_of(b)
    _require_rank(op, rank, a, second)
    return ops.matmul_op(a, second)


def _require_rank(op: str, rank: int, *nodes: Node) -> None:
    """Raises ShapeError for a node that has not `rank` axes."""
    for node in nodes:
        if len(node.shape) != rank:
            told = f"takes tensors of {rank} axes, not of shape {node.shape} [{node.name}]"
            raise ShapeError(f"{op}: {told}")


_divided = _between("/", operator.truediv)


class Elementwise(Handle):
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

    @method
    def relu(self) -> Tensor:
        """max(x, 0)."""
        return ops.relu_op(self)

    @method
    def neg(self) -> Tensor:
        """-x."""
        return -self

    @method
    def abs(self) -> Tensor:
        """|x|."""
        return ops.abs_op(self)

    __abs__ = abs

    @method
    def sign(self) -> Tensor:
        """-1, 0 or 1, as x's sign, in x's dtype."""
        return cast("Tensor", self) if self.dtype == "bool" else ops.sign_op(self)

    @method
    def square(self) -> Tensor:
        """x * x."""
        return self**2

    @method
    def log10(self) -> Tensor:
        """The logarithm to base 10."""
        return ops.log_op(float_of(self)) * (1 / math.log(10))

    @method
    def log1p(self) -> Tensor:
        """log(1 + x), without loss of digits near 0."""
        x = float_of(self)
        small = ops.where_op(ops.abs_op(x) < 1.0, x, 0.0)
        rounded = small + 1.0  # the sum lost small - (rounded - 1), and log's slope there is 1 / rounded
        return ops.log_op(x + 1.0) + (small - (rounded - 1.0)) / rounded

    @method
    def expm1(self) -> Tensor:
        """exp(x) - 1, without loss of digits near 0."""
        x = float_of(self)
        is_small = ops.abs_op(x) < 1.0
        half = ops.tanh_op(ops.where_op(is_small, x, 0.0) * 0.5)
        return ops.where_op(is_small, half * 2.0 / (1.0 - half), ops.exp_op(x) - 1.0)

    @method
    def floor(self) -> Tensor:
        """The largest integer that is no larger, in x's dtype."""
        return cast("Tensor", self) if _is_whole(self) else ops.floor_op(self)

    @method
    def ceil(self) -> Tensor:
        """The smallest integer that is no smaller, in x's dtype."""
        return cast("Tensor", self) if _is_whole(self) else -ops.floor_op(-self)

    @method
    def round(self) -> Tensor:
        """The nearest integer, of two the even one, in x's dtype."""
        return cast("Tensor", self) if _is_whole(self) else ops.round_op(self)

    @method
    def clamp(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
        """x, no less than `min` and no more than `max`, numbers or tensors; None is no bound. Raises GraphError for
        two."""
        if min is None and max is None:
            raise GraphError("clamp: there is neither a min nor a max")
        bounds = [bound for bound in (min, max) if bound is not None]
        if all(operand(bound) is bound and not is_node(bound) for bound in bounds):
            low, high = cast("tuple[float | None, float | None]", (min, max))
            return ops.clip_op(functools.reduce(beside_number, bounds, cast(Node, self)), low, high)
        found = cast("Tensor", self) if min is None else Elementwise.maximum(self, min)
        return found if max is None else found.minimum(max)

    clip = clamp

    @method
    def fmod(self, other: ArrayLike) -> Tensor:
        """The rest of x after the whole times of `other` in it, with x's sign; see `autodiff.fmod_op`. Raises
        GraphError for integers by the number 0."""
        return ops.fmod_op(*_dividend_and_divisor("fmod", self, other))

    @method
    def div(self, other: ArrayLike, *, rounding_mode: str | None = None) -> Tensor:
        """self / other; with `rounding_mode` "floor" rounded down, with "trunc" towards 0, in the operands' dtype.
        Raises GraphError for what is neither tensor nor number, and what `floor_divide` raises."""
        if rounding_mode is None:
            return _divided(self, other)
        if word("div", "rounding_mode", rounding_mode, ("floor", "trunc")) == "floor":
            return Elementwise.floor_divide(self, other)
        if _is_whole(pair_of(self, other)[0]):
            return ops.quotient_op(*_dividend_and_divisor("div", self, other))
        found = _divided(self, other)
        return where(found < 0, found.ceil(), found.floor())

    @method
    def floor_divide(self, other: ArrayLike) -> Tensor:
        """The quotient, rounded down; of integers in their dtype, in which -self wraps around, and by a 0 in a tensor
        0, as NumPy's. Raises GraphError for integers by the number 0."""
        a, b = _dividend_and_divisor("floor_divide", self, other)
        if not _is_whole(a):
            return _float_quotient(a, b)
        _, below = _rest(a, b)
        return ops.quotient_op(a, b) - ops.cast_op(below, a.dtype)

    @method
    def remainder(self, other: ArrayLike) -> Tensor:
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

    @method
    def maximum(self, other: ArrayLike) -> Tensor:
        """The larger; NaN if either is."""
        first, second = pair_of(self, other)
        return (ops.logical_or_op if first.dtype == "bool" else ops.maximum_op)(first, second)

    @method
    def minimum(self, other: ArrayLike) -> Tensor:
        """The smaller; NaN if either is."""
        first, second = pair_of(self, other)
        return (ops.logical_and_op if first.dtype == "bool" else ops.minimum_op)(first, second)

    @method
    def mm(self, other: ArrayLike) -> Tensor:
        """The product of two matrices. Raises ShapeError for others."""
        return _product("mm", 2, self, other)

    @method
    def bmm(self, other: ArrayLike) -> Tensor:
        """The products of two batches of matrices. Raises ShapeError for others."""
        return _product("bmm", 3, self, other)

    @method
    def mv(self, vec: ArrayLike) -> Tensor:
        """The product of a matrix and a vector. Raises ShapeError for others."""
        vector = node_of(vec)
        _require_rank("mv", 2, self)
        _require_rank("mv", 1, vector)
        return ops.matmul_op(self, vector)

    @method
    def dot(self, tensor: ArrayLike) -> Tensor:
        """The sum of the products of two vectors' elements. Raises ShapeError for others."""
        return _product("dot", 1, self, tensor)

    @method
    def outer(self, vec2: ArrayLike) -> Tensor:
        """The products of each element of a vector with each of another. Raises ShapeError for others."""
        second = node_of(vec2)
        _require_rank("outer", 1, self, second)
        return ops.expand_dims_op(self, 1) * second

    @method
    def logical_not(self) -> Tensor:
        """Whether it is 0."""
        return ops.logical_not_op(as_bool(self))

    @method
    def logical_and(self, other: ArrayLike) -> Tensor:
        """Whether neither is 0."""
        return ops.logical_and_op(as_bool(self), as_bool(other))

    @method
    def logical_or(self, other: ArrayLike) -> Tensor:
        """Whether one at least is not 0."""
        return ops.logical_or_op(as_bool(self), as_bool(other))

    @method
    def isnan(self) -> Tensor:
        """Whether it is NaN."""
        return ops.not_equal_op(self, self)

    @method
    def isinf(self) -> Tensor:
        """Whether it is infinite."""
        return ops.equal_op(ops.abs_op(float_of(self)), math.inf)

    @method
    def isclose(
        self, other: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """Whether |self - other| <= atol + rtol |other| or both are equal; or both NaN with `equal_nan`."""
        a, b = cast("tuple[Tensor, Tensor]", pair_of(self, node_of(other)))
        apart, least = (a - b).abs(), number("isclose", "atol", atol)
        near = apart.isfinite() & (apart <= b.abs() * number("isclose", "rtol", rtol) + least) | (a == b)
        return near | (a.isnan() & b.isnan()) if flag("isclose", "equal_nan", equal_nan) else near

    @method
    def isfinite(self) -> Tensor:
        """Whether it is neither infinite nor NaN."""
        return ops.less_op(ops.abs_op(float_of(self)), math.inf)

    @method
    def masked_fill(self, mask: ArrayLike, value: ArrayLike) -> Tensor:
        """x, but `value`, cast to x's dtype, where the mask holds: fractions are cut off beside integers. Raises
        DTypeError for a number that x's dtype does not hold, as infinity beside integers."""
        if is_node(value):
            return ops.where_op(node_of(mask), ops.cast_like_op(value, self), self)
        if not is_number(value):
            raise GraphError(f"masked_fill: the value must be a number or a tensor, not {value!r}")
        of, filling = cast(float, value), value
        if self.dtype == "bool":
            filling = leaf(np.asarray(bool(of)))
        elif _is_whole(self):
            limits = np.iinfo(self.dtype)
            if not limits.min <= of <= limits.max:
                raise DTypeError(f"masked_fill: {value!r} is no {self.dtype}, which {self.name} is")
            filling = leaf(np.asarray(int(of), self.dtype))
        return ops.where_op(node_of(mask), filling, self)


def as_bool(x: ArrayLike) -> Tensor:
    """Whether it is not 0."""
    node = node_of(x)
    return node if known_dtype(node) == "bool" else ops.cast_op(node, "bool")


def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> Tensor:
    """a where the condition holds, else b."""
    return _chosen(node_of(condition), a, b)


@replay.function(on_tensors=True)
def _chosen(condition: Node, a: ArrayLike, b: ArrayLike) -> Tensor:
    return ops.where_op(condition, *pair_of(a, b))
