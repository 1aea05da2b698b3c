"""Functions of tensors by PyTorch's names, with its arguments; each is also a method.

They take tensors, arrays and numbers, promote dtypes as PyTorch does, and build the operators of `autodiff`. For an
axis there are PyTorch's words `dim` and `keepdim`, and NumPy's `axis` and `keepdims`.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any

from .. import ops
from ..device import Context
from ..errors import DeviceError, DTypeError, GraphError, ShapeError
from ..graph import FLOATS, INTEGERS, Node
from ..ops import beside_number, dtype_name, known_dtype, operand, pair, shape_of
from ..ops.types import as_float
from .leaves import tensor


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
    return ops.exp_op(float_of(x))


def log(x: Any) -> Node:
    """The natural logarithm."""
    return ops.log_op(float_of(x))


def sqrt(x: Any) -> Node:
    """The square root."""
    return ops.sqrt_op(float_of(x))


def rsqrt(x: Any) -> Node:
    """1 / sqrt(x)."""
    return ops.rsqrt_op(float_of(x))


def sin(x: Any) -> Node:
    """The sine."""
    return ops.sin_op(float_of(x))


def cos(x: Any) -> Node:
    """The cosine."""
    return ops.cos_op(float_of(x))


def tanh(x: Any) -> Node:
    """The hyperbolic tangent."""
    return ops.tanh_op(float_of(x))


def erf(x: Any) -> Node:
    """The error function."""
    return ops.erf_op(float_of(x))


def sigmoid(x: Any) -> Node:
    """1 / (1 + exp(-x))."""
    return ops.sigmoid_op(float_of(x))


def relu(x: Any) -> Node:
    """max(x, 0)."""
    node = node_of(x)
    return maximum(node, 0) if known_dtype(node) in INTEGERS else ops.relu_op(node)


def reciprocal(x: Any) -> Node:
    """1 / x."""
    return ops.reciprocal_op(float_of(x))


def square(x: Any) -> Node:
    """x * x."""
    node = node_of(x)
    return node * node


def neg(x: Any) -> Node:
    """-x."""
    return -node_of(x)


def abs(x: Any) -> Node:
    """|x|."""
    return ops.abs_op(node_of(x))


def sign(x: Any) -> Node:
    """-1, 0 or 1; NaN of NaN."""
    return ops.sign_op(node_of(x))


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


def round(x: Any, decimals: int = 0) -> Node:
    """The nearest integer, of two the even one, in x's dtype; or the nearest number of so many decimals."""
    node = node_of(x)
    if _is_whole(node):
        return node
    if decimals == 0:
        return ops.round_op(node)
    scale = 10.0 ** builtins.abs(decimals)
    return ops.round_op(node * scale) / scale if decimals > 0 else ops.round_op(node / scale) * scale


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


def add(a: Any, b: Any, *, alpha: Any = 1) -> Node:
    """a + alpha b."""
    return node_of(a) + (b if alpha == 1 else alpha * b)


def sub(a: Any, b: Any, *, alpha: Any = 1) -> Node:
    """a - alpha b."""
    return node_of(a) - (b if alpha == 1 else alpha * b)


def mul(a: Any, b: Any) -> Node:
    """a * b."""
    return node_of(a) * b


def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Node:
    """a / b; rounded towards 0 with "trunc", down with "floor". Raises GraphError for another mode."""
    if rounding_mode is None:
        return node_of(a) / b
    if rounding_mode not in ("floor", "trunc"):
        raise GraphError(f'div: rounding_mode must be None, "trunc" or "floor", not {rounding_mode!r}')
    down = node_of(a) // b
    if rounding_mode == "floor":
        return down
    first, second = pair_of(a, b)
    is_negative = ops.not_equal_op(first < 0, second < 0)
    return ops.where_op(is_negative, -(-first // second), down)


multiply, divide, subtract, negative, absolute, true_divide = mul, div, sub, neg, abs, div


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
    first, second = pair_of(a, b)
    return (ops.logical_or_op if known_dtype(first) == "bool" else ops.maximum_op)(first, second)


def minimum(a: Any, b: Any) -> Node:
    """The smaller; NaN if either is."""
    first, second = pair_of(a, b)
    return (ops.logical_and_op if known_dtype(first) == "bool" else ops.minimum_op)(first, second)


# Dtypes -------------------------------------------------------------------------------------------------------


def to(x: Any, *given: Any, dtype: Any = None, device: Any = None, copy: bool = False, **unused: Any) -> Node:
    """x in another dtype, given by name, or as that of a tensor. "cpu", where tensors are, changes nothing.

    Raises DTypeError for an unknown dtype, DeviceError for another device, GraphError for other words.
    """
    if set(unused) - {"non_blocking", "memory_format"}:
        raise GraphError(f"to: takes dtype, device and copy, not {', '.join(unused)}")
    node = node_of(x)
    for value in (*given, device, dtype):
        if isinstance(value, Node):
            node = ops.cast_like_op(node, value)
        elif value is not None and not isinstance(value, bool) and not _is_cpu(value):
            found = dtype_name("to", value)
            node = node if known_dtype(node) == found else ops.cast_op(node, found)
    return ops.copy_op(node) if copy and node is x else node


def _is_cpu(value: Any) -> bool:
    """Whether the value names the CPU. Raises DeviceError where it names another device."""
    named = isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda", "gpu", "mps")
    if not named and not isinstance(value, Context):
        return str(value) == "cpu"  # PyTorch's
    if (value.split(":")[0] if isinstance(value, str) else value.kind) != "cpu":
        raise DeviceError(f"to: tensors are on the CPU, not on {value}: an Executor runs a graph on another device")
    return True


def require_float(op: str, x: Any) -> Node:
    """The argument. Raises DTypeError where it is known to be of no floats, as PyTorch does."""
    node = node_of(x)
    dtype = known_dtype(node)
    if dtype is not None and dtype not in FLOATS:
        raise DTypeError(f"{op}: takes floats, and {node.name} is {dtype}: use .float()")
    return node
