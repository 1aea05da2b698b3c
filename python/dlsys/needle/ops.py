"""needle's operators by its names and arguments; what it calls `axes` and `scalar` goes by these names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .. import ops
from ..checks import integer
from ..errors import GraphError
from ..graph import Node, is_node
from ..ops.moves import place, sliced
from ..ops.operators import is_number
from ..ops.rules import axes_in
from ..ops.state import with_gradient
from .autograd import MakeTensorTuple, Tensor, TensorTuple

Method: TypeAlias = Callable[..., Node]
summation: Method = Tensor.sum
transpose: Method = Tensor.transpose
reshape: Method = Tensor.reshape
broadcast_to: Method = Tensor.broadcast_to
add: Method = operator.add
multiply: Method = operator.mul
divide: Method = operator.truediv
power: Method = operator.pow
negate: Method = operator.neg
matmul: Method = operator.matmul
exp: Method = Tensor.exp
log: Method = Tensor.log
relu: Method = Tensor.relu
tanh: Method = Tensor.tanh
sigmoid: Method = Tensor.sigmoid
logsoftmax: Method = Tensor.log_softmax
logsumexp: Method = ops.logsumexp_op
flip: Method = ops.flip_op


def _with_scalar(name: str, function: Any) -> Any:
    """needle's operator of a tensor and a number, which is checked."""
    def apply(a: Node, scalar: Any) -> Node:
        if getattr(scalar, "size", None) == 1 and not is_node(scalar):
            scalar = scalar.item()
        if not is_number(scalar):
            raise GraphError(f"{name}: scalar must be a number, not {type(scalar).__name__}")
        return function(a, scalar)

    apply.__name__, apply.__doc__ = name, f"`{function.__name__}` of a tensor and a number, or an array of one."
    return apply


add_scalar: Any = _with_scalar("add_scalar", add)
mul_scalar: Any = _with_scalar("mul_scalar", multiply)
divide_scalar: Any = _with_scalar("divide_scalar", divide)
power_scalar: Any = _with_scalar("power_scalar", power)


def _of_stack(g: Node, y: Node, *args: Node, axis: int) -> Sequence[Node]:
    """The slices of g, one for each tensor."""
    return split(g, axis)


def stack(args: Sequence[Node], axis: int = 0) -> Node:
    """Tensors of one shape along a new axis. Raises GraphError, ShapeError. Its gradient is stated, so that
    `gradient_as_tuple` gives those of the tensors."""
    return with_gradient(ops.stack_op(args, axis), list(args), _of_stack, axis=axis)


def split(a: Node, axis: int) -> TensorTuple:
    """The inverse of `stack`: the slices along an axis, which is removed. Raises GraphError for an axis that is not
    there, ShapeError."""
    along = integer("split", "the axis", axis)
    shape = ops.shape_of(a)
    if not -len(shape) <= along < len(shape):
        raise GraphError(f"split: axis {along} of {a.name}, whose shape is {shape}")
    parts = ops.split_op(a, shape[along], along) if shape[along] else ()
    return make_tuple(*(ops.squeeze_op(part, along) for part in parts))


def dilate(a: Node, axes: Any, dilation: int) -> Node:
    """a with `dilation` zeros behind every element along axes, all for None: what `undilate` reads put back. Raises
    GraphError, ShapeError."""
    step = 1 + integer("dilate", "dilation", dilation, 0)
    along = axes_in("dilate", axes, len(a.shape))
    steps = tuple(step if axis in along else 1 for axis in range(len(a.shape)))
    wide = tuple(extent * step for extent, step in zip(a.shape, steps, strict=True))
    return place(a, shape=wide, starts=(0,) * len(wide), steps=steps, value=0.0)


def undilate(a: Node, axes: Any, dilation: int) -> Node:
    """Every (1 + dilation)th element of a along axes, all for None. Raises GraphError."""
    step = 1 + integer("undilate", "dilation", dilation, 0)
    along = axes_in("undilate", axes, len(a.shape))
    return sliced(a, [range(0, n, step if axis in along else 1) for axis, n in enumerate(a.shape)])


def conv(a: Node, b: Node, stride: int = 1, padding: int = 1) -> Node:
    """Cross-correlation of images a (N, H, W, C) with filters b (h, w, C, O): (N, H', W', O)."""
    images, filters = ops.transpose_op(a, (0, 3, 1, 2)), ops.transpose_op(b, (3, 2, 0, 1))
    return ops.transpose_op(ops.conv2d_op(images, filters, stride, padding), (0, 2, 3, 1))


def make_tuple(*args: Node) -> TensorTuple:
    """The tensors as a tuple. Raises GraphError for what is no tensor."""
    return MakeTensorTuple()(*args)


def tuple_get_item(value: Sequence[Node], index: int) -> Node:
    """Item number `index` of a tuple. Raises GraphError for one that is not there."""
    if not -len(value) <= operator.index(index) < len(value):
        raise GraphError(f"tuple_get_item: item {index} of a tuple of {len(value)}")
    return value[index]
