"""What holds and what is chosen: logic and selections of tensors, by PyTorch's names; see `functions`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops
from ..errors import DTypeError
from ..graph import INTEGERS, Node
from ..ops import known_dtype
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


def where(condition: Any, a: Any, b: Any) -> Node:
    """a where the condition holds, else b."""
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


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether |a - b| <= atol + rtol |b| everywhere, or both are the same infinity; or both NaN with `equal_nan`."""
    first, second = pair_of(a, b)
    return bool(np.allclose(array_of(first).numpy(), array_of(second).numpy(), rtol, atol, equal_nan))


def equal(a: Any, b: Any) -> bool:
    """Whether both have one shape and the same values: a Python bool, unlike `eq`."""
    return bool(np.array_equal(array_of(node_of(a)).numpy(), array_of(node_of(b)).numpy()))
