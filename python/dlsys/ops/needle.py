"""The operators by the names and arguments of needle, the framework of the CMU course 10-414: `dl.ops.summation(x,
axes=(0,))`. What needle calls `axes` and `scalar` goes by these names.

Those that mean the same in PyTorch, or do not exist there, are `dl.<name>` too. Of the others `dl.<name>` is PyTorch's:
`dl.transpose(x, 0, 1)`, `dl.split(x, 2)`, `dl.flip(x, (0, 1))`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ..errors import GraphError
from ..graph import Node
from .activation import log_softmax_op, relu_op
from .conv import conv2d_op
from .elementary import exp_op, log_op, tanh_op
from .joining import split_op, stack_op
from .operators import is_number
from .reduction import logsumexp_op, reducesum_op
from .rules import axes_attribute
from .shape import broadcast_shape_op, reshape_op, squeeze_op, swapaxes_op, transpose_op
from .slicing import dilate_op, flip_op, undilate_op
from .types import shape_of


def _number(name: str, scalar: Any) -> Any:
    """The number, which may be an array of one element. Raises GraphError for anything else."""
    if getattr(scalar, "size", None) == 1 and not isinstance(scalar, Node):
        scalar = scalar.item()
    if not is_number(scalar):
        raise GraphError(f"{name}: scalar must be a number, not {type(scalar).__name__}")
    return scalar


def add(a: Node, b: Node) -> Node:
    """a + b, broadcast."""
    return a + b


def add_scalar(a: Node, scalar: Any) -> Node:
    """a + scalar, a number."""
    return a + _number("add_scalar", scalar)


def multiply(a: Node, b: Node) -> Node:
    """a * b, broadcast."""
    return a * b


def mul_scalar(a: Node, scalar: Any) -> Node:
    """a * scalar, a number."""
    return a * _number("mul_scalar", scalar)


def divide(a: Node, b: Node) -> Node:
    """a / b, broadcast."""
    return a / b


def divide_scalar(a: Node, scalar: Any) -> Node:
    """a / scalar, a number."""
    return a / _number("divide_scalar", scalar)


def power(a: Node, b: Node) -> Node:
    """a ** b, broadcast."""
    return a**b


def power_scalar(a: Node, scalar: Any) -> Node:
    """a ** scalar, a number."""
    return a ** _number("power_scalar", scalar)


def negate(a: Node) -> Node:
    """-a."""
    return -a


def matmul(a: Node, b: Node) -> Node:
    """a @ b; axes before the last two are broadcast."""
    return a @ b


def transpose(a: Node, axes: Any = None) -> Node:
    """The two axes exchanged, the last two for None. Raises GraphError for axes that are not two integers."""
    pair = axes_attribute("transpose", (-1, -2) if axes is None else axes)
    if pair is None or len(pair) != 2:
        raise GraphError(f"transpose: axes must be two, which change places, not {axes!r}")
    return swapaxes_op(a, *pair)


def reshape(a: Node, shape: Any) -> Node:
    """a under another shape."""
    return reshape_op(a, shape)


def broadcast_to(a: Node, shape: Any) -> Node:
    """a broadcast to a shape."""
    return broadcast_shape_op(a, shape)


def summation(a: Node, axes: Any = None) -> Node:
    """The sum over axes, all for None."""
    return reducesum_op(a, axes)


def logsumexp(a: Node, axes: Any = None) -> Node:
    """log(sum(exp(a))) over axes, all for None, without overflow."""
    return logsumexp_op(a, axes)


def logsoftmax(a: Node) -> Node:
    """a - logsumexp(a), along the last axis."""
    return log_softmax_op(a)


def log(a: Node) -> Node:
    """The natural logarithm."""
    return log_op(a)


def exp(a: Node) -> Node:
    """e to the power of a."""
    return exp_op(a)


def relu(a: Node) -> Node:
    """max(a, 0)."""
    return relu_op(a)


def tanh(a: Node) -> Node:
    """The hyperbolic tangent."""
    return tanh_op(a)


def stack(args: Sequence[Node], axis: int) -> Node:
    """Nodes of one shape along a new axis."""
    return stack_op(args, axis)


def split(a: Node, axis: int) -> tuple[Node, ...]:
    """The inverse of `stack`: what lies along an axis, which goes away; its extent must be known. Raises GraphError,
    ShapeError."""
    (along,) = axes_attribute("split", axis) or (0,)
    shape = shape_of(a)
    if not -len(shape) <= along < len(shape):
        raise GraphError(f"split: axis {along} of {a.name}, whose shape is {shape}")
    return tuple(squeeze_op(part, along) for part in split_op(a, shape[along], along)) if shape[along] else ()


def flip(a: Node, axes: Any) -> Node:
    """a turned round along axes."""
    return flip_op(a, axes)


def dilate(a: Node, axes: Any, dilation: int) -> Node:
    """a with `dilation` zeros behind every element along axes."""
    return dilate_op(a, axes, dilation)


def undilate(a: Node, axes: Any, dilation: int) -> Node:
    """Every (1 + dilation)th element of a along axes."""
    return undilate_op(a, axes, dilation)


def conv(a: Node, b: Node, stride: int = 1, padding: int = 1) -> Node:
    """Cross-correlation of images a (N, H, W, C) with filters b (h, w, C, O) -> (N, H', W', O); see `conv2d_op`, which
    takes NCHW and OIHW."""
    images, filters = transpose_op(a, (0, 3, 1, 2)), transpose_op(b, (3, 2, 0, 1))
    return transpose_op(conv2d_op(images, filters, stride, padding), (0, 2, 3, 1))


def make_tuple(*args: Node) -> tuple[Node, ...]:
    """The nodes as a tuple, which is Python's here."""
    return args


def tuple_get_item(value: Sequence[Node], index: int) -> Node:
    """Item number `index` of a tuple. Raises GraphError for one that is not there."""
    at = operator.index(index)
    if not -len(value) <= at < len(value):
        raise GraphError(f"tuple_get_item: item {at} of a tuple of {len(value)}")
    return value[at]
