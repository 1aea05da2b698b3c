"""The table of ONNX's operators, sets 13 to 28, as compositions of the library's functions. The operators of one or two
values at each index have their names in the rows of the primitives, as `onnx`.

A function takes an operator's inputs, then its attributes by name; their defaults are ONNX's. Inputs are nodes, but
for those whose places the row names: these are arrays where they follow from constants and shapes, as a shape does.
An input that is left out is None. See https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import autodiff as ad
from ..errors import DataError, GraphError
from ..graph import FLOATS, INTEGERS, OPS, Node
from ..nn import functional
from ..tensors import dtype_of, elementwise, known_dtype, reductions, shape_of, shapes, tensor, trigonometry
from . import onnx_layers as layers
from .onnx_values import (
    MOST_FOLDED,
    Value,
    axes_of,
    dtype_of_code,
    integers,
    is_number,
    known,
    node,
    number,
    operands,
    pairs_of,
)


class Row(NamedTuple):
    """An operator's function, and the places of the inputs that it takes as arrays where they are known."""

    function: Callable[..., Any]
    arrays: tuple[int, ...] = ()


def row(function: Callable[..., Any], *arrays: int) -> Row:
    """The row of a function that takes the inputs at these places as arrays."""
    return Row(function, arrays)


# Pointwise --------------------------------------------------------------------------------------------------


def _pointwise(function: Callable[..., Any]) -> Row:
    """The row of a function of two values at each index, also for more of them."""
    return row(lambda *xs: functools.reduce(lambda a, b: function(*operands(a, b)), xs), 0, 1)


def _divide(a: Any, b: Any) -> Node:
    """a / b; of integers rounded toward zero."""
    dtype = known_dtype(b if isinstance(a, float) else a)
    return (ad.quotient_op if dtype in INTEGERS else ad.div_op)(a, b)


def _power(a: Value, b: Value) -> Node:
    """a ** b, of a's dtype."""
    base, exponent = node(a), node(b)
    if is_number(b, base):
        return base ** b.item()
    dtype = dtype_of(base)
    wide = "float64" if dtype in INTEGERS and dtype_of(exponent) in FLOATS else dtype
    return ad.cast_op(ad.power_op(ad.cast_op(base, wide), ad.cast_op(exponent, wide)), dtype)


def _clip(x: Node, low: Value = None, high: Value = None) -> Node:
    bounds = [number(bound, "a bound of Clip") for bound in (low, high)]
    return x if bounds == [None, None] else ad.clip_op(x, *bounds)


def _cast_like(x: Value, like: Node, saturate: int = 1) -> Value:
    """x in the dtype of `like`; at once, where x is known."""
    return x.astype(dtype_of(like)) if isinstance(x, np.ndarray) else ad.cast_op(x, dtype_of(like))


def _is_infinite(x: Node, detect_negative: int = 1, detect_positive: int = 1) -> Node:
    """Whether an element is an infinity of one of these signs."""
    of_sign = (x > 0.0) & bool(detect_positive) | (x < 0.0) & bool(detect_negative)
    return elementwise.isinf(x) & of_sign


def _dropout(x: Node, ratio: Value = None, training_mode: Value = None, seed: int = 0) -> tuple[Node, Node]:
    """x itself, and a mask of all: no value is dropped in inference."""
    if number(training_mode, "training_mode", 0):
        raise GraphError("Dropout is read for inference only")
    return x, ad.full_op(shape_of(x), 1, "bool")


# Reductions and places --------------------------------------------------------------------------------------


def _reduction(function: Callable[[Node, Any, bool], Node]) -> Row:
    """The row of a reduction over axes, all where there are none."""

    def reduced(x: Node, axes: Value = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Node:
        along = tuple(axes_of(x, *integers([] if axes is None else axes, "axes")))
        return function(x, along if along or noop_with_empty_axes else None, bool(keepdims))

    return row(reduced, 1)


def _product(x: Node, axes: tuple[int, ...] | None, keep: bool) -> Node:
    """The product over axes."""
    along, dtype = range(len(shape_of(x))) if axes is None else axes, dtype_of(x)
    for axis in along:
        x = reductions.prod(x, axis, True, dtype=dtype)
    return x if keep or not along else ad.squeeze_op(x, tuple(along))


def _extremum_place(function: Callable[..., Node]) -> Row:
    """The row of ArgMax or ArgMin; the last of equal places is the first from the end."""

    def place(x: Node, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Node:
        if select_last_index:
            (axis,) = axes_of(x, axis)
            return shape_of(x)[axis] - 1 - place(shapes.flip(x, (axis,)), axis, keepdims)
        return ad.cast_op(function(x, axis, bool(keepdims)), "int64")

    return row(place)


def _are_at(indices: Node, axis: int, count: int) -> Node:
    """Whether each of `count` places along an axis, of which the indices have one, is the index there."""
    places = np.arange(count).reshape(-1, *(1,) * (len(shape_of(indices)) - 1 - axis))
    return ad.equal_op(ad.cast_op(indices, "int64"), tensor(places))


def _hardmax(x: Node, axis: int = -1) -> Node:
    """1 at the first maximum along an axis, 0 elsewhere."""
    (axis,) = axes_of(x, axis)
    return ad.cast_op(_are_at(ad.argmax_op(x, axis, True), axis, shape_of(x)[axis]), dtype_of(x))


def _one_hot(indices: Node, depth: Value, values: Node, axis: int = -1) -> Node:
    """The second of two values at the indices along a new axis, the first elsewhere."""
    count = int(number(depth, "the depth of OneHot"))
    indices = ad.expand_dims_op(ad.cast_op(indices, "int64"), axis)
    (axis,) = axes_of(indices, axis)
    return ad.where_op(_are_at(ad.where_op(indices < 0, indices + count, indices), axis, count), values[1], values[0])


# Shapes -----------------------------------------------------------------------------------------------------


def _reshape(x: Node, shape: Value, allowzero: int = 0) -> Node:
    """x in another shape: 0 is x's extent, -1 what remains."""
    old, wanted = shape_of(x), integers(shape, "the shape of Reshape")
    if not allowzero:
        if 0 in wanted[len(old) :]:
            raise DataError(f"the shape {wanted} keeps an extent that {old} has not")
        wanted = [old[axis] if extent == 0 else extent for axis, extent in enumerate(wanted)]
    if -1 in wanted and 0 in wanted:
        wanted[wanted.index(-1)] = 0
    return ad.reshape_op(x, tuple(wanted))


def _flatten(x: Node, axis: int = 1) -> Node:
    """x as a matrix: the axes before `axis`, and the others."""
    shape = shape_of(x)
    return ad.reshape_op(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _expand(x: Node, shape: Value) -> Node:
    wanted = integers(shape, "the shape of Expand")
    return ad.broadcast_shape_op(x, ad.broadcast_rule(shape_of(x), tuple(wanted)))


def _tile(x: Node, repeats: Value) -> Node:
    counts = integers(repeats, "repeats")
    if len(counts) != len(shape_of(x)):
        raise DataError(f"repeats must be a number for each of {len(shape_of(x))} axes, not {counts}")
    return shapes.repeat(x, *counts)


def _split(x: Node, sizes: Value = None, axis: int = 0, num_outputs: int | None = None, outputs: int = 1) -> Any:
    """Parts of x along an axis, of these sizes, or equal ones."""
    (axis,) = axes_of(x, axis)
    extent = shape_of(x)[axis]
    if sizes is None:
        each = math.ceil(extent / outputs)
        widths = [max(min(each, extent - each * i), 0) for i in range(outputs)]
    else:
        widths = integers(sizes, "the sizes of Split")
    if len(widths) != outputs or min(widths) < 0 or sum(widths) != extent or num_outputs not in (None, outputs):
        raise DataError(f"Split of extent {extent} into {outputs} outputs of sizes {widths}")
    return shapes.split(x, widths, axis)


def _split_to_sequence(x: Node, sizes: Value = None, axis: int = 0, keepdims: int = 1) -> list[list[Node]]:
    """Parts of x along an axis, of these sizes, of one size, or of extent 1, as one value."""
    (axis,) = axes_of(x, axis)
    width = [1] if sizes is None else integers(sizes, "the sizes of SplitToSequence")
    parts: list[Node] = list(shapes.split(x, width[0] if np.ndim(sizes) == 0 else width, axis))
    return [[ad.squeeze_op(part, axis) for part in parts] if sizes is None and not keepdims else parts]


def _slice(x: Node, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Node:
    first, last = integers(starts, "starts"), integers(ends, "ends")
    along = range(len(first)) if axes is None else integers(axes, "axes")
    step = [1] * len(first) if steps is None else integers(steps, "steps")
    if not len(first) == len(last) == len(along) == len(step):
        raise DataError(f"{len(first)} starts, {len(last)} ends, {len(along)} axes and {len(step)} steps")
    key = [slice(None)] * len(shape_of(x))
    for axis, start, end, by in zip(axes_of(x, *along), first, last, step, strict=True):
        key[axis] = slice(max(start, -shape_of(x)[axis]), end, by)  # of a start before the first ONNX takes the first
    return x[tuple(key)]


def _pad(x: Node, pads: Value, value: Value = None, axes: Value = None, mode: str = "constant") -> Node:
    """x with a constant around it, or with its elements: the last, mirrored, or from the other end."""
    shape = shape_of(x)
    along = axes_of(x, *(range(len(shape)) if axes is None else integers(axes, "axes")))
    pairs = dict(zip(along, pairs_of(integers(pads, "pads"), len(along)), strict=True))
    if min((width for pair in pairs.values() for width in pair), default=0) < 0:
        raise GraphError("negative pads are not supported")
    if mode == "constant":
        widths = [pairs.get(axis, (0, 0)) for axis in range(len(shape))]
        return layers.padded(x, widths, number(value, "the value of Pad", 0.0))
    for axis, pair in pairs.items():
        if any(pair):
            places = np.pad(np.arange(shape[axis]), pair, mode=mode)  # type: ignore[call-overload]
            x = ad.take_op(x, tensor(places), axis)
    return x


# Constants --------------------------------------------------------------------------------------------------


def _constant(
    value: np.ndarray | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> np.ndarray:
    """The value of the one attribute. Raises DataError for several, or none."""
    stated = [(value, None), (value_float, "f4"), (value_floats, "f4"), (value_int, "i8"), (value_ints, "i8")]
    stated = [(number, dtype) for number, dtype in stated if number is not None]
    if len(stated) != 1:
        raise DataError(f"a Constant has one attribute, its value, not {len(stated)}")
    return np.asarray(*stated[0])


def _constant_of_shape(shape: Value, value: np.ndarray | None = None) -> Node:
    """One value at every index of a shape."""
    extents = integers(shape, "the shape")
    if min(extents, default=0) < 0:
        raise DataError(f"a shape has no negative extent: {extents}")
    one = np.zeros((), "float32") if value is None else value.reshape(())
    return ad.broadcast_shape_op(tensor(one), tuple(extents))


def _range(*bounds: Value) -> np.ndarray:
    """start, start + delta, ... before limit."""
    dtype = known(bounds[0], "a bound of Range").dtype
    first, last, step = (number(bound, "a bound of Range") for bound in bounds)
    if step == 0 or not np.isfinite([first, last, step]).all():
        raise DataError(f"Range from {first} to {last} by {step} has no end")
    count = max(math.ceil((last - first) / step), 0)
    if count * dtype.itemsize > MOST_FOLDED:
        raise DataError(f"Range of {count} numbers has more than {MOST_FOLDED} bytes")
    return np.asarray(np.arange(count) * bounds[2] + bounds[0], dtype)


_NAMED: list[Any] = [op for op in OPS.values() if op.builtin and op.kind == "elementwise" and op.onnx]
"""The primitives of values at each index whose rows have the name of ONNX's operator."""
OPERATORS: dict[str, Row] = {
    **{op.onnx: row(op) for op in _NAMED if op.count == 1},
    **{op.onnx: _pointwise(op) for op in _NAMED if op.count == 2},
    # of one value at each index
    "Identity": row(lambda x: x),
    "Reciprocal": row(lambda x: 1.0 / x),
    "Ceil": row(lambda x: -ad.floor_op(-x)),
    "Tan": row(trigonometry.tan),
    "Asin": row(trigonometry.asin),
    "Acos": row(trigonometry.acos),
    "Atan": row(trigonometry.atan),
    "Cosh": row(trigonometry.cosh),
    "Sinh": row(trigonometry.sinh),
    "Acosh": row(trigonometry.acosh),
    "Asinh": row(trigonometry.asinh),
    "Atanh": row(trigonometry.atanh),
    "Not": row(ad.logical_not_op),
    "IsNaN": row(lambda x: ad.not_equal_op(x, x)),
    "IsInf": row(_is_infinite),
    "Softplus": row(functional.softplus),
    "HardSwish": row(functional.hardswish),
    "HardSigmoid": row(lambda x, alpha=0.2, beta=0.5: ad.clip_op(x * alpha + beta, 0.0, 1.0)),
    "LeakyRelu": row(lambda x, alpha=0.01: functional.leaky_relu(x, alpha)),
    "Gelu": row(lambda x, approximate="none": ad.gelu_op(x, approximate)),
    "Clip": row(_clip, 1, 2),
    "Cast": row(lambda x, to, saturate=1: ad.cast_op(x, dtype_of_code(to))),
    "CastLike": row(_cast_like, 0),
    "Dropout": row(_dropout, 1, 2),
    # of several
    "Div": _pointwise(_divide),
    "Pow": row(_power, 0, 1),
    "Mod": row(lambda a, b, fmod=0: (ad.fmod_op if fmod else elementwise.remainder)(a, b)),
    "Sum": _pointwise(ad.add_op),
    "Mean": row(lambda *xs: functools.reduce(ad.add_op, xs) / float(len(xs))),
    "Min": _pointwise(ad.minimum_op),
    "Greater": _pointwise(ad.greater_op),
    "GreaterOrEqual": _pointwise(ad.greater_equal_op),
    "And": _pointwise(ad.logical_and_op),
    "Or": _pointwise(ad.logical_or_op),
    "Xor": _pointwise(ad.not_equal_op),
    "Where": row(ad.where_op),
    # along axes
    "ReduceSum": _reduction(ad.sum_op),
    "ReduceMean": _reduction(ad.mean_op),
    "ReduceMax": _reduction(ad.max_op),
    "ReduceMin": _reduction(ad.min_op),
    "ReduceProd": _reduction(_product),
    "ReduceLogSumExp": _reduction(ad.logsumexp_op),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: ad.sum_op(x * x, axes, keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: ad.sqrt_op(ad.sum_op(x * x, axes, keep))),
    "ArgMax": _extremum_place(ad.argmax_op),
    "ArgMin": _extremum_place(ad.argmin_op),
    "Softmax": row(lambda x, axis=-1: ad.softmax_op(x, axis)),
    "LogSoftmax": row(lambda x, axis=-1: ad.log_softmax_op(x, axis)),
    "Hardmax": row(_hardmax),
    "LpNormalization": row(lambda x, axis=-1, p=2: functional.normalize(x, p, axis, layers.TINY)),
    "CumSum": row(
        lambda x, axis, exclusive=0, reverse=0: ad.cumsum_op(
            x, axes_of(x, number(axis, "the axis of CumSum"))[0], bool(exclusive), bool(reverse)
        ), 1,
    ),
    "TopK": row(lambda x, k, axis=-1, largest=1, sorted=1: ad.topk_op(x, number(k, "k"), axis, bool(largest)), 1),
    # places
    "Gather": row(lambda x, indices, axis=0: ad.take_op(x, indices, axis)),
    "GatherElements": row(lambda x, indices, axis=0: ad.take_along_axis_op(x, indices, axis)),
    "OneHot": row(_one_hot, 1),
    "Trilu": row(lambda x, k=None, upper=1: (shapes.triu if upper else shapes.tril)(x, number(k, "k", 0)), 1),
    # shapes
    "Shape": row(lambda x, start=0, end=None: np.asarray(shape_of(x)[start:end], "int64")),
    "Size": row(lambda x: np.asarray(math.prod(shape_of(x)), "int64")),
    "Reshape": row(_reshape, 1),
    "Flatten": row(_flatten),
    "Transpose": row(lambda x, perm=None: ad.transpose_op(x, None if perm is None else tuple(perm))),
    "Unsqueeze": row(lambda x, axes: ad.expand_dims_op(x, tuple(integers(axes, "axes"))), 1),
    "Squeeze": row(lambda x, axes=None: ad.squeeze_op(x, None if axes is None else tuple(integers(axes, "axes"))), 1),
    "Expand": row(_expand, 1),
    "Tile": row(_tile, 1),
    "Concat": row(lambda *xs, axis: xs[0] if len(xs) == 1 else ad.concatenate_op(list(xs), axis)),
    "Split": row(_split, 1),
    "SplitToSequence": row(_split_to_sequence, 1),
    "SequenceAt": row(lambda parts, place: parts[number(place, "the place of SequenceAt")], 1),
    "Slice": row(_slice, 1, 2, 3, 4),
    "Pad": row(_pad, 1, 2, 3),
    # constants
    "Constant": row(_constant),
    "ConstantOfShape": row(_constant_of_shape, 0),
    "Range": row(_range, 0, 1, 2),
    # products, windows, norms and recurrences
    "MatMul": row(ad.matmul_op),
    "Gemm": row(layers.gemm),
    "Conv": row(layers.of_images(layers.conv)),
    "ConvTranspose": row(layers.of_images(layers.conv_transposed)),
    "MaxPool": row(layers.of_images(layers.max_pool)),
    "AveragePool": row(layers.of_images(layers.mean_pool)),
    "GlobalAveragePool": row(lambda x: ad.mean_op(x, layers.space_of(x), True)),
    "GlobalMaxPool": row(lambda x: ad.max_op(x, layers.space_of(x), True)),
    "Resize": row(layers.resize, 1, 2, 3),
    "BatchNormalization": row(layers.batch_norm),
    "LayerNormalization": row(layers.layer_norm),
    "InstanceNormalization": row(
        lambda x, weight, bias, epsilon=1e-5: functional.group_norm(x, shape_of(x)[1], weight, bias, epsilon)
    ),
    "RNN": row(functools.partial(layers.recurrent, "RNN"), 4),
    "LSTM": row(functools.partial(layers.recurrent, "LSTM"), 4),
    "GRU": row(functools.partial(layers.recurrent, "GRU"), 4),
}  # fmt: skip
"""ONNX's operators by name."""
