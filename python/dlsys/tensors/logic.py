"""What holds and what is chosen: comparisons, logic and selections of tensors, by PyTorch's names; see `functions`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops
from ..errors import DTypeError
from ..graph import INTEGERS, Node
from ..ops import known_dtype
from . import functions
from .functions import float_of, node_of, pair_of
from .leaves import leaf
from .values import array_of


def isnan(x: Any) -> Node:
    """Whether it is NaN."""
    node = node_of(x)
    return ops.not_equal_op(node, node)


def isinf(x: Any) -> Node:
    """Whether it is infinite."""
    return ops.equal_op(ops.abs_op(float_of(x)), math.inf)


def isfinite(x: Any) -> Node:
    """Whether it is neither infinite nor NaN."""
    return ops.less_op(ops.abs_op(float_of(x)), math.inf)


def logical_not(x: Any) -> Node:
    """Whether it is 0."""
    return ops.logical_not_op(as_bool(x))


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


not_equal, less, less_equal, greater, greater_equal = ne, lt, le, gt, ge


def as_bool(x: Any) -> Node:
    """Whether it is not 0."""
    node = node_of(x)
    return node if known_dtype(node) == "bool" else ops.cast_op(node, "bool")


def logical_and(a: Any, b: Any) -> Node:
    """Whether neither is 0."""
    return ops.logical_and_op(as_bool(a), as_bool(b))


def logical_or(a: Any, b: Any) -> Node:
    """Whether one at least is not 0."""
    return ops.logical_or_op(as_bool(a), as_bool(b))


def logical_xor(a: Any, b: Any) -> Node:
    """Whether exactly one is not 0."""
    return ops.not_equal_op(as_bool(a), as_bool(b))


def where(condition: Any, a: Any = None, b: Any = None) -> Any:
    """a where the condition holds, else b; of the condition alone the indices at which it holds, see `nonzero`."""
    if a is None and b is None:
        return tuple(
            leaf(places) for places in np.nonzero(np.atleast_1d(array_of(node_of(condition)).numpy()))
        )
    return ops.where_op(node_of(condition), *pair_of(a, b))


def masked_fill(x: Any, mask: Any, value: Any) -> Node:
    """x, but `value`, cast to x's dtype, where the mask holds: fractions are cut off beside integers.

    Raises DTypeError for a number that x's dtype does not hold, as infinity beside integers.
    """
    node = node_of(x)
    if isinstance(value, Node):
        return ops.where_op(node_of(mask), ops.cast_like_op(value, node), node)
    dtype = known_dtype(node)
    if dtype == "bool":
        value = leaf(np.asarray(bool(value)))
    elif dtype in INTEGERS:
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise DTypeError(f"masked_fill: {value!r} is no {dtype}, which {node.name} is")
        value = leaf(np.asarray(int(value), dtype))
    return ops.where_op(node_of(mask), value, node)


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Node:
    """Whether |a - b| <= atol + rtol |b|, or both are the same infinity; or both NaN with `equal_nan`."""
    first, second = pair_of(a, b)
    near = functions.abs(float_of(first - second)) <= atol + rtol * functions.abs(float_of(second))
    found = ops.logical_or_op(ops.equal_op(first, second), ops.logical_and_op(near, isfinite(second)))
    return ops.logical_or_op(found, ops.logical_and_op(isnan(first), isnan(second))) if equal_nan else found


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether `isclose` holds everywhere."""
    return bool(array_of(isclose(a, b, rtol, atol, equal_nan)).numpy().all())


def equal(a: Any, b: Any) -> bool:
    """Whether both have one shape and the same values: a Python bool, unlike `eq`."""
    first, second = node_of(a), node_of(b)
    return bool(np.array_equal(array_of(first).numpy(), array_of(second).numpy()))
