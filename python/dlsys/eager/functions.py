"""Functions of tensors by PyTorch's names, with its arguments; each is also a method.

They take tensors, arrays and numbers, promote dtypes as PyTorch does, and build the operators of `autodiff`. For an
axis there are PyTorch's words `dim` and `keepdim`, and NumPy's `axis` and `keepdims`.
"""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, INTEGERS
from ..ops import beside_number, dtype_name, known_dtype, operand, pair, shape_of
from ..ops.types import as_float
from .leaves import tensor
from .running import array_of


def node_of(value: Any) -> Node:
    """A tensor as it is, an array or a number as a constant. Raises GraphError for anything else."""
    found = operand(value)
    if found is None:
        raise GraphError(f"{type(value).__name__} is no tensor: make one by tensor()")
    return found if isinstance(found, Node) else tensor(found)


def _pair(a: Any, b: Any) -> tuple[Node, Node]:
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
    """Axes as non-negative numbers, all for None; the shape must be known. Raises ShapeError."""
    rank = len(shape_of(x))
    given = range(rank) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    found = tuple(operator.index(axis) for axis in given)
    for axis in found:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is out of range for {x.name} of shape {shape_of(x)}")
    return tuple(axis % rank for axis in found)


# Of one tensor, at each index -----------------------------------------------------------------------------------


def exp(x: Any) -> Node:
    """e to the power of x."""
    return ad.exp_op(float_of(x))


def expm1(x: Any) -> Node:
    """exp(x) - 1, near 0 without loss of digits."""
    return ad.expm1_op(float_of(x))


def log(x: Any) -> Node:
    """The natural logarithm."""
    return ad.log_op(float_of(x))


def log1p(x: Any) -> Node:
    """log(1 + x), near 0 without loss of digits."""
    return ad.log1p_op(float_of(x))


def log2(x: Any) -> Node:
    """The logarithm of base 2."""
    return log(x) * (1 / math.log(2))


def log10(x: Any) -> Node:
    """The logarithm of base 10."""
    return log(x) * (1 / math.log(10))


def sqrt(x: Any) -> Node:
    """The square root."""
    return ad.sqrt_op(float_of(x))


def rsqrt(x: Any) -> Node:
    """1 / sqrt(x)."""
    return ad.rsqrt_op(float_of(x))


def sin(x: Any) -> Node:
    """The sine."""
    return ad.sin_op(float_of(x))


def cos(x: Any) -> Node:
    """The cosine."""
    return ad.cos_op(float_of(x))


def tanh(x: Any) -> Node:
    """The hyperbolic tangent."""
    return ad.tanh_op(float_of(x))


def erf(x: Any) -> Node:
    """The error function."""
    return ad.erf_op(float_of(x))


def sigmoid(x: Any) -> Node:
    """1 / (1 + exp(-x))."""
    return ad.sigmoid_op(float_of(x))


def relu(x: Any) -> Node:
    """max(x, 0)."""
    node = node_of(x)
    return maximum(node, 0) if known_dtype(node) in INTEGERS else ad.relu_op(node)


def reciprocal(x: Any) -> Node:
    """1 / x."""
    return ad.reciprocal_op(float_of(x))


def square(x: Any) -> Node:
    """x * x."""
    node = node_of(x)
    return node * node


def neg(x: Any) -> Node:
    """-x."""
    return -node_of(x)


def abs(x: Any) -> Node:
    """|x|."""
    return ad.abs_op(node_of(x))


def sign(x: Any) -> Node:
    """-1, 0 or 1; NaN of NaN."""
    return ad.sign_op(node_of(x))


def _is_whole(node: Node) -> bool:
    return known_dtype(node) in INTEGERS


def floor(x: Any) -> Node:
    """The largest integer that is no larger, in x's dtype."""
    node = node_of(x)
    return node if _is_whole(node) else ad.floor_op(node)


def ceil(x: Any) -> Node:
    """The smallest integer that is no smaller, in x's dtype."""
    node = node_of(x)
    return node if _is_whole(node) else -ad.floor_op(-node)


def round(x: Any, decimals: int = 0) -> Node:
    """The nearest integer, of two the even one, in x's dtype; or the nearest number of so many decimals."""
    node = node_of(x)
    if _is_whole(node):
        return node
    if decimals == 0:
        return ad.round_op(node)
    scale = 10.0 ** builtins.abs(decimals)
    return ad.round_op(node * scale) / scale if decimals > 0 else ad.round_op(node / scale) * scale


def isnan(x: Any) -> Node:
    """Whether it is NaN."""
    node = node_of(x)
    return ad.not_equal_op(node, node)


def isinf(x: Any) -> Node:
    """Whether it is infinite."""
    return ad.equal_op(ad.abs_op(float_of(x)), math.inf)


def isfinite(x: Any) -> Node:
    """Whether it is neither infinite nor NaN."""
    return ad.less_op(ad.abs_op(float_of(x)), math.inf)


def logical_not(x: Any) -> Node:
    """Whether it is 0."""
    return ad.logical_not_op(as_bool(x))


def clamp(x: Any, min: Any = None, max: Any = None) -> Node:
    """x, no less than `min` and no more than `max`, numbers or tensors; None is no bound. Raises GraphError for two."""
    node = node_of(x)
    if min is None and max is None:
        raise GraphError("clamp: there is neither a min nor a max")
    if operand(min) is min and operand(max) is max and not (isinstance(min, Node) or isinstance(max, Node)):
        for bound in (min, max):
            node = node if bound is None else beside_number(node, bound)
        return ad.clip_op(node, min, max)
    node = node if min is None else maximum(node, min)
    return node if max is None else minimum(node, max)


clip = clamp


# Of two tensors, at each index ----------------------------------------------------------------------------------


def add(a: Any, b: Any) -> Node:
    """a + b."""
    return node_of(a) + b


def sub(a: Any, b: Any) -> Node:
    """a - b."""
    return node_of(a) - b


def mul(a: Any, b: Any) -> Node:
    """a * b."""
    return node_of(a) * b


def div(a: Any, b: Any) -> Node:
    """a / b."""
    return node_of(a) / b


def floor_divide(a: Any, b: Any) -> Node:
    """floor(a / b)."""
    return node_of(a) // b


def remainder(a: Any, b: Any) -> Node:
    """a % b, of b's sign."""
    return node_of(a) % b


def pow(a: Any, b: Any) -> Node:
    """a ** b."""
    return a**b if isinstance(a, Node) or isinstance(b, Node) else node_of(a) ** b


def maximum(a: Any, b: Any) -> Node:
    """The larger; NaN if either is."""
    first, second = _pair(a, b)
    return (ad.logical_or_op if known_dtype(first) == "bool" else ad.maximum_op)(first, second)


def minimum(a: Any, b: Any) -> Node:
    """The smaller; NaN if either is."""
    first, second = _pair(a, b)
    return (ad.logical_and_op if known_dtype(first) == "bool" else ad.minimum_op)(first, second)


def eq(a: Any, b: Any) -> Node:
    """Whether a == b, at each index."""
    return node_of(a) == b


def ne(a: Any, b: Any) -> Node:
    """Whether a != b."""
    return node_of(a) != b


def lt(a: Any, b: Any) -> Node:
    """Whether a < b."""
    return node_of(a) < b


def le(a: Any, b: Any) -> Node:
    """Whether a <= b."""
    return node_of(a) <= b


def gt(a: Any, b: Any) -> Node:
    """Whether a > b."""
    return node_of(a) > b


def ge(a: Any, b: Any) -> Node:
    """Whether a >= b."""
    return node_of(a) >= b


def as_bool(x: Any) -> Node:
    """Whether it is not 0."""
    node = node_of(x)
    return node if known_dtype(node) == "bool" else ad.cast_op(node, "bool")


def logical_and(a: Any, b: Any) -> Node:
    """Whether neither is 0."""
    return ad.logical_and_op(as_bool(a), as_bool(b))


def logical_or(a: Any, b: Any) -> Node:
    """Whether one at least is not 0."""
    return ad.logical_or_op(as_bool(a), as_bool(b))


def logical_xor(a: Any, b: Any) -> Node:
    """Whether exactly one is not 0."""
    return ad.not_equal_op(as_bool(a), as_bool(b))


def where(condition: Any, a: Any, b: Any) -> Node:
    """a where the condition holds, else b."""
    return ad.where_op(node_of(condition), *_pair(a, b))


def masked_fill(x: Any, mask: Any, value: Any) -> Node:
    """x, but `value`, in x's dtype, where the mask holds."""
    node = node_of(x)
    if isinstance(value, Node):
        return ad.where_op(node_of(mask), ad.cast_like_op(value, node), node)
    return ad.where_op(node_of(mask), value, node)


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Node:
    """Whether |a - b| <= atol + rtol |b|, or both are the same infinity; or both NaN with `equal_nan`."""
    first, second = _pair(a, b)
    near = abs(float_of(first - second)) <= atol + rtol * abs(float_of(second))
    found = ad.logical_or_op(ad.equal_op(first, second), ad.logical_and_op(near, isfinite(second)))
    return ad.logical_or_op(found, ad.logical_and_op(isnan(first), isnan(second))) if equal_nan else found


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether `isclose` holds everywhere."""
    return bool(array_of(isclose(a, b, rtol, atol, equal_nan)).numpy().all())


def equal(a: Any, b: Any) -> bool:
    """Whether both have one shape and the same values: a Python bool, unlike `eq`."""
    first, second = node_of(a), node_of(b)
    return bool(np.array_equal(array_of(first).numpy(), array_of(second).numpy()))


# Dtypes -------------------------------------------------------------------------------------------------------


def to(x: Any, dtype: Any) -> Node:
    """x in another dtype; a dlsys tensor's dtype for a tensor. "cpu" is where tensors are."""
    node = node_of(x)
    if isinstance(dtype, Node):
        return ad.cast_like_op(node, dtype)
    if getattr(dtype, "kind", None) == "cpu" or (isinstance(dtype, str) and dtype.split(":")[0] == "cpu"):
        return node
    found = dtype_name("to", dtype)
    return node if known_dtype(node) == found else ad.cast_op(node, found)


def require_float(op: str, x: Any) -> Node:
    """The argument. Raises DTypeError where it is known to be of no floats, as PyTorch does."""
    node = node_of(x)
    dtype = known_dtype(node)
    if dtype is not None and dtype not in FLOATS:
        raise DTypeError(f"{op}: takes floats, and {node.name} is {dtype}: use .float()")
    return node
