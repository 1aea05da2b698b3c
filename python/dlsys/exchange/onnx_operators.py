"""ONNX's operators by ours, opsets 13 to 28: functions of an operator's inputs and, by name, its attributes. Those of
one or several values at each index have their names on our operators' classes, as `Op.onnx`.

Inputs are nodes, but for those whose places `operator` names: these are taken as they are, `np.ndarray`s where they do
not depend on inputs or parameters, as a shape. An input that is left out is None. The default of an attribute is
ONNX's. See https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DataError, GraphError
from ..graph import DTYPES, FLOATS, INTEGERS, OPS, Op
from ..nn import functional
from ..ops import constant_op
from ..ops.primitive import Primitive
from ..ops.rules import broadcast_rule
from ..ops.types import known_dtype
from ..tensors import Tensor, dtype_of, shape_of, tensor
from . import composed

Value = Any
"""An input: an `np.ndarray` where it follows from constants and shapes, else a node; None where it is left out."""
MOST_FOLDED = 2**28
"""Bytes and operations of a value that is computed while a model's nodes are applied."""
OPERATORS: dict[str, Callable[..., Any]] = {}
STATIC: dict[str, frozenset[int]] = {}
"""Of an operator the places of the inputs that it takes as they are."""


def operator(name: str, *static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a function is ONNX's operator of this name."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name], STATIC[name] = function, frozenset(static)
        return function

    return enter


def dtype_of_code(code: int) -> str:
    """The dtype of ONNX's number for it. Raises DataError for a number that is none, GraphError for a dtype that is not
    ours."""
    import onnx

    try:
        found = str(onnx.helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        raise DataError(f"there is no dtype of number {code}") from None
    if found not in DTYPES:
        raise GraphError(f"the dtype {found} is not one of {', '.join(DTYPES)}")
    return found


def known(value: Value, what: str) -> np.ndarray:
    """The value of an input that must follow from constants and shapes. Raises GraphError."""
    if isinstance(value, Node) and value.cell is not None:
        return np.asarray(value.value)  # type: ignore[attr-defined]
    if not isinstance(value, np.ndarray):
        raise GraphError(f"{what} must follow from constants and shapes")
    return value


def integers(value: Value, what: str) -> list[int]:
    """An input that must be known, as integers; also an attribute. Raises DataError for other numbers."""
    if isinstance(value, (int, list, tuple)):
        return [int(item) for item in np.atleast_1d(value)]
    found = known(value, what)
    if str(found.dtype) not in INTEGERS:
        raise DataError(f"{what} must be integers, not {found.dtype}")
    return [int(item) for item in found.reshape(-1)]


def one_of(value: Value, what: str) -> Any:
    """The one element of an input that must be known. Raises DataError for more or none."""
    found = known(value, what)
    if found.size != 1:
        raise DataError(f"{what} must be one number, not {found.size}")
    return found.reshape(-1)[0]


def number(value: Value, default: float, what: str) -> float:
    """An input of one element that must be known; the default where it is left out."""
    return default if value is None else one_of(value, what).item()


def axes_of(rank: int, axes: Sequence[int]) -> list[int]:
    """Axes of so many, counted from the first. Raises DataError for one beyond them, or twice."""
    if not all(-rank <= axis < rank for axis in axes):
        raise DataError(f"there are {rank} axes, and it names {', '.join(map(str, axes))}")
    found = [axis % rank for axis in axes]
    if len(set(found)) < len(found):
        raise DataError(f"it names one of the axes {', '.join(map(str, axes))} twice")
    return found


def node(value: Value) -> Node:
    return tensor(value) if isinstance(value, np.ndarray) else value


def operands(a: Value, b: Value) -> list[Node]:
    """Two operands; one alone that is a known number of floats is a constant in the kernels' code."""

    def alone(value: Value, other: Value) -> bool:
        known = isinstance(value, np.ndarray) and value.size == 1 and isinstance(other, Node)
        is_float = known and value.dtype in FLOATS and value.ndim <= len(shape_of(other))
        return is_float and bool(np.isfinite(value).all())

    return [constant_op(x.item()) if alone(x, other) else node(x) for x, other in ((a, b), (b, a))]


# Pointwise --------------------------------------------------------------------------------------------------


def _elementwise(op: Op) -> None:
    """ONNX's operator of one value, or of two and more, whose name is on the class of ours."""

    if isinstance(op, Primitive) and op.count == 1:
        operator(op.onnx)(lambda x: op.make([x]))
    else:
        operator(op.onnx, 0, 1)(lambda *xs: functools.reduce(lambda a, b: op.make(operands(a, b)), xs))


for _op in OPS.values():
    if _op.kind == "elementwise" and len(_op.onnx.split()) == 1:
        _elementwise(_op)


@operator("Div", 0, 1)
def _quotient(a: Value, b: Value) -> Node:
    """a / b; of integers rounded toward zero."""
    a, b = operands(a, b)
    if a.op.immediate or b.op.immediate or known_dtype(a) not in INTEGERS:
        return ad.div_op(a, b)
    return ad.quotient_op(a, b)


_FAR = 1e8
"""From here on the square root of x^2 + 1 is x, for numbers of 53 bits too."""


def _cosh(x: Node) -> Node:
    """(e^x + e^-x) / 2 by squares of e^(x/2), so that it overflows only where the result does."""
    up, down = ad.exp_op(x * 0.5), ad.exp_op(x * -0.5)
    return up * 0.5 * up + down * 0.5 * down


def _sinh(x: Node) -> Node:
    """2 sinh(x/2) cosh(x/2), for the same reason."""
    half = x * 0.5
    return (Tensor.expm1(half) - Tensor.expm1(-half)) * ((ad.exp_op(half) + ad.exp_op(-half)) * 0.5)


def _of_far(size: Node, near: Node) -> Node:
    """log(2 size) from `_FAR` on, `near` before. The one that is not taken is computed of a clipped size, so that its
    gradient is finite."""
    far = ad.log_op(ad.clip_op(size, _FAR, None)) + math.log(2.0)
    return ad.where_op(size > _FAR, far, near)


def _asinh(x: Node) -> Node:
    """log(x + sqrt(x^2 + 1)), with the sign of x; by log1p, which is exact around 0."""
    size = ad.abs_op(x)
    a = ad.clip_op(size, 0.0, _FAR)
    near = Tensor.log1p(a + a * a / (1.0 + ad.sqrt_op(a * a + 1.0)))
    return ad.sign_op(x) * _of_far(size, near)


def _acosh(x: Node) -> Node:
    """log(x + sqrt(x^2 - 1)), NaN below 1; by log1p of what is above 1."""
    above = ad.clip_op(x, None, _FAR) - 1.0
    return _of_far(x, Tensor.log1p(above + ad.sqrt_op(above) * ad.sqrt_op(above + 2.0)))


_OTHERS: dict[str, Callable[..., Any]] = {
    "Sum": OPERATORS["Add"],
    "Identity": lambda x: x,
    "Ceil": lambda x: -ad.floor_op(-x),
    "Reciprocal": lambda x: 1.0 / x,
    "Softplus": functional.softplus,
    "IsNaN": lambda x: ad.not_equal_op(x, x),
    "IsInf": lambda x, detect_negative=1, detect_positive=1: _infinite(x, detect_negative, detect_positive),
    "Mean": lambda *xs: functools.reduce(ad.add_op, xs) / float(len(xs)),
    "Tan": lambda x: ad.sin_op(x) / ad.cos_op(x),
    "Cosh": _cosh,
    "Sinh": _sinh,
    "Atanh": lambda x: (Tensor.log1p(x) - Tensor.log1p(-x)) / 2.0,
    "Acosh": _acosh,
    "Asinh": _asinh,
    "HardSwish": functional.hardswish,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: ad.clip_op(x * alpha + beta, 0.0, 1.0),
    "LeakyRelu": lambda x, alpha=0.01: functional.leaky_relu(x, alpha),
    "Gelu": lambda x, approximate="none": ad.gelu_op(x, approximate),
    "Where": ad.where_op,
    "Xor": ad.not_equal_op,
}
for _name, _function in _OTHERS.items():
    operator(_name)(_function)


def _infinite(x: Node, negative: int, positive: int) -> Node:
    """Whether an element is an infinity of one of these signs."""
    found = Tensor.isinf(x)
    return found if negative and positive else found & (x > 0.0 if positive else x < 0.0) & bool(negative or positive)


@operator("Mod", 0, 1)
def modulo(a: Value, b: Value, fmod: int = 0) -> Node:
    """The remainder, of the second operand's sign, or with `fmod` of the first one's."""
    if isinstance(b, np.ndarray) and str(b.dtype) in INTEGERS and not b.all():
        raise DataError("Mod by 0")
    return (ad.fmod_op if fmod else Tensor.remainder)(node(a), node(b))


@operator("Pow", 0, 1)
def power(a: Value, b: Value) -> Node:
    """a ** b, of a's dtype."""
    base, exponent = node(a), node(b)
    if isinstance(b, np.ndarray) and b.size == 1 and known_dtype(base) not in INTEGERS:
        return base ** b.item()
    kind = dtype_of(base)
    wide = "float64" if kind in INTEGERS and dtype_of(exponent) in FLOATS else kind
    return ad.cast_op(ad.power_op(ad.cast_op(base, wide), ad.cast_op(exponent, wide)), kind)


@operator("Clip", 1, 2)
def clip(x: Node, low: Value = None, high: Value = None) -> Node:
    """x within [low, high]."""
    bounds = [None if bound is None else number(bound, 0, "a bound of Clip") for bound in (low, high)]
    return x if bounds == [None, None] else ad.clip_op(x, *bounds)


operator("Cast")(lambda x, to, saturate=1: ad.cast_op(x, dtype_of_code(to)))
operator("CastLike", 0)(
    lambda x, like, saturate=1: x.astype(dtype_of(like)) if isinstance(x, np.ndarray) else ad.cast_op(x, dtype_of(like))
)


@operator("Dropout", 1, 2)
def dropout(x: Node, ratio: Value = None, training_mode: Value = None, seed: int = 0) -> tuple[Node, Node]:
    """x itself, and a mask of all: no value is dropped in inference."""
    if number(training_mode, 0, "training_mode"):
        raise GraphError("Dropout is read for inference only")
    return x, ad.full_op(shape_of(x), 1, "bool")


# Reductions -------------------------------------------------------------------------------------------------


def _axes(x: Node, axes: Value, noop: int) -> tuple[int, ...] | None:
    """The axes to reduce along; None for all."""
    found = () if axes is None else tuple(axes_of(len(shape_of(x)), integers(axes, "axes")))
    return found if found or noop else None


def _product(x: Node, axes: tuple[int, ...] | None, keep: bool) -> Node:
    """The product over axes."""
    along, dtype = range(len(shape_of(x))) if axes is None else axes, dtype_of(x)
    for axis in along:
        x = Tensor.prod(x, axis, True, dtype=dtype)
    return x if keep or not along else ad.squeeze_op(x, tuple(along))


def _reduction(name: str, function: Callable[[Node, Any, bool], Node]) -> None:
    """Enters a reduction over axes, which newer versions give as an input, by ONNX's name."""

    def reduced(x: Node, axes: Value = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Node:
        return function(x, _axes(x, axes, noop_with_empty_axes), bool(keepdims))

    operator(name, 1)(reduced)


for _name, _reduce in {
    "ReduceSum": ad.sum_op,
    "ReduceMean": ad.mean_op,
    "ReduceMax": ad.max_op,
    "ReduceMin": ad.min_op,
    "ReduceLogSumExp": ad.logsumexp_op,
    "ReduceL2": lambda x, axes, keep: ad.sqrt_op(ad.sum_op(x * x, axes, keep)),
    "ReduceSumSquare": lambda x, axes, keep: ad.sum_op(x * x, axes, keep),
}.items():
    _reduction(_name, _reduce)
_reduction("ReduceProd", _product)


def _place(name: str, function: Callable[..., Node]) -> None:
    """Enters ArgMax or ArgMin; the last of equal places is the first from the end."""

    def found(x: Node, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Node:
        if select_last_index:
            (axis,) = axes_of(len(shape_of(x)), [axis])
            last = found(Tensor.flip(x, (axis,)), axis, keepdims)
            return shape_of(x)[axis] - 1 - last
        return ad.cast_op(function(x, axis, bool(keepdims)), "int64")

    operator(name)(found)


_place("ArgMax", ad.argmax_op)
_place("ArgMin", ad.argmin_op)


@operator("TopK", 1)
def topk(x: Node, k: Value, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """The k largest elements along an axis, or the smallest, in order; and their places."""
    (count,) = integers(one_of(k, "k").reshape(1), "k")
    return ad.topk_op(x, count, axis, bool(largest))


@operator("CumSum", 1)
def cumsum(x: Node, axis: Value, exclusive: int = 0, reverse: int = 0) -> Node:
    """The sums of all elements up to each along an axis."""
    (along,) = axes_of(len(shape_of(x)), integers(axis, "the axis of CumSum"))
    return ad.cumsum_op(x, along, bool(exclusive), bool(reverse))


operator("Softmax")(lambda x, axis=-1: ad.softmax_op(x, axis))
operator("LogSoftmax")(lambda x, axis=-1: ad.log_softmax_op(x, axis))


# Shapes and places ------------------------------------------------------------------------------------------


operator("Shape")(lambda x, start=0, end=None: np.asarray(shape_of(x)[start:end], "int64"))
operator("Size")(lambda x: np.asarray(math.prod(shape_of(x)), "int64"))
operator("Transpose")(lambda x, perm=None: ad.transpose_op(x, None if perm is None else tuple(perm)))
operator("Unsqueeze", 1)(lambda x, axes: ad.expand_dims_op(x, tuple(integers(axes, "axes"))))
operator("Squeeze", 1)(
    lambda x, axes=None: ad.squeeze_op(x, None if axes is None else tuple(integers(axes, "axes")))
)
operator("Concat")(
    lambda *values, axis: values[0] if len(values) == 1 else ad.concatenate_op(list(values), axis)
)
operator("Gather")(lambda x, indices, axis=0: ad.take_op(x, indices, axis))
operator("GatherElements")(lambda x, indices, axis=0: ad.take_along_axis_op(x, indices, axis))
operator("Trilu", 1)(
    lambda x, k=None, upper=1: (Tensor.triu if upper else Tensor.tril)(x, int(number(k, 0, "k")))
)


@operator("Reshape", 1)
def reshape(x: Node, shape: Value, allowzero: int = 0) -> Node:
    """x in another shape: 0 is x's extent, -1 what remains."""
    old, wanted = shape_of(x), integers(shape, "the shape of Reshape")
    if not allowzero:
        if 0 in wanted[len(old) :]:
            raise DataError(f"the shape {wanted} keeps an extent that {old} has not")
        wanted = [old[axis] if extent == 0 else extent for axis, extent in enumerate(wanted)]
    if -1 in wanted and 0 in wanted:
        wanted[wanted.index(-1)] = 0
    return ad.reshape_op(x, tuple(wanted))


@operator("Hardmax")
def hardmax(x: Node, axis: int = -1) -> Node:
    """1 at the first maximum along an axis, 0 elsewhere."""
    rank = len(shape_of(x))
    (axis,) = axes_of(rank, [axis])
    found = ad.one_hot_op(ad.argmax_op(x, axis), shape_of(x)[axis], dtype_of(x))
    return ad.transpose_op(found, (*range(axis), rank - 1, *range(axis, rank - 1)))


@operator("OneHot", 1, 2)
def one_hot(indices: Node, depth: Value, values: Value, axis: int = -1) -> Node:
    """The second of two values at the indices along a new axis, the first elsewhere."""
    classes, rank = int(one_of(depth, "the depth of OneHot")), len(shape_of(indices)) + 1
    (axis,) = axes_of(rank, [axis])
    off, on = (node(values)[i] for i in (0, 1))
    whole = ad.cast_op(indices, "int64")
    whole = ad.where_op(whole < 0, whole + classes, whole)
    steps = tensor(np.arange(classes).reshape(-1, *(1,) * (rank - 1 - axis)))
    return ad.where_op(ad.equal_op(ad.expand_dims_op(whole, axis), steps), on, off)


@operator("Flatten")
def flatten(x: Node, axis: int = 1) -> Node:
    """x as a matrix: the axes before `axis`, and the others."""
    extents = shape_of(x)
    if not -len(extents) <= axis <= len(extents):
        raise DataError(f"there are {len(extents)} axes, and it names {axis}")
    at = axis if axis >= 0 else axis + len(extents)
    return ad.reshape_op(x, (math.prod(extents[:at]), math.prod(extents[at:])))


@operator("Expand", 1)
def expand(x: Node, shape: Value) -> Node:
    """x broadcast with a shape."""
    wanted = integers(shape, "the shape of Expand")
    if min(wanted, default=0) < 0:
        raise DataError(f"a shape has no negative extent: {wanted}")
    return ad.broadcast_shape_op(x, broadcast_rule(shape_of(x), tuple(wanted)))


@operator("Tile", 1)
def tile(x: Node, repeats: Value) -> Node:
    """x many times along each axis."""
    counts = integers(repeats, "repeats")
    if len(counts) != len(shape_of(x)) or min(counts, default=0) < 0:
        raise DataError(f"repeats must be a number for each of {len(shape_of(x))} axes, not {counts}")
    return Tensor.repeat(x, *counts)


@operator("Split", 1)
def split(
    x: Node, sizes: Value = None, axis: int = 0, num_outputs: int | None = None, outputs: int = 1
) -> list[Node]:
    """Parts of x along an axis, of these sizes, or equal ones."""
    (axis,) = axes_of(len(shape_of(x)), [axis])
    extent = shape_of(x)[axis]
    if sizes is None:
        if num_outputs not in (None, outputs):
            raise DataError(f"Split into {num_outputs} has {outputs} outputs")
        each = math.ceil(extent / outputs)
        widths = [max(min(each, extent - each * i), 0) for i in range(outputs)]
    else:
        widths = integers(sizes, "the sizes of Split")
        if len(widths) != outputs or min(widths) < 0 or sum(widths) != extent:
            raise DataError(f"Split of extent {extent} into {outputs} outputs of sizes {widths}")
    return list(Tensor.split(x, widths, axis))


@operator("SplitToSequence", 1)
def split_to_sequence(x: Node, sizes: Value = None, axis: int = 0, keepdims: int = 1) -> list[list[Node]]:
    """Parts of x along an axis, of these sizes, of one size, or of extent 1, as one value."""
    (axis,) = axes_of(len(shape_of(x)), [axis])
    extent = shape_of(x)[axis]
    widths = [1] if sizes is None else integers(sizes, "the sizes of SplitToSequence")
    if sizes is None or np.ndim(sizes) == 0:
        widths = [min(widths[0], extent - start) for start in range(0, extent, widths[0])]
    parts: list[Node] = list(Tensor.split(x, widths, axis))
    return [[ad.squeeze_op(part, axis) for part in parts] if sizes is None and not keepdims else parts]


operator("SequenceAt", 1)(lambda parts, place: parts[int(one_of(place, "the place of SequenceAt"))])


@operator("Slice", 1, 2, 3, 4)
def slice_(x: Node, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Node:
    """A part of x."""
    first, last = integers(starts, "starts"), integers(ends, "ends")
    along = range(len(first)) if axes is None else integers(axes, "axes")
    step = [1] * len(first) if steps is None else integers(steps, "steps")
    extents = shape_of(x)
    if not len(first) == len(last) == len(along) == len(step):
        raise DataError(f"{len(first)} starts, {len(last)} ends, {len(along)} axes and {len(step)} steps")
    along = axes_of(len(extents), along)
    key: list[Any] = [slice(None)] * len(extents)
    for axis, start, end, by in zip(along, first, last, step, strict=True):
        extent = extents[axis]
        low, high = (0, extent) if by > 0 else (-1, extent - 1)  # ONNX's own rule of clamping
        start = min(max(start + extent * (start < 0), 0), high if by < 0 else extent)
        end = min(max(end + extent * (end < 0), low), extent)
        if (start, end, by) != (0, extent, 1):
            key[axis] = slice(start, None if end < 0 else end, by)
    return x[tuple(key)]


def pairs_of(pads: Sequence[int] | None, space: int) -> list[tuple[int, int]]:
    """ONNX's pads, all before, then all behind, as pairs."""
    found = list(pads or (0,) * (2 * space))
    if len(found) != 2 * space:
        raise DataError(f"pads must be {2 * space} numbers, not {len(found)}")
    return list(zip(found[:space], found[space:], strict=True))


@operator("Pad", 1, 2, 3)
def pad(x: Node, pads: Value, value: Value = None, axes: Value = None, mode: str = "constant") -> Node:
    """x with a constant around it, or with its own elements: the last, mirrored, or from the other end."""
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise GraphError(f"Pad: mode {mode} is not supported")
    rank = len(shape_of(x))
    given = axes_of(rank, range(rank) if axes is None else integers(axes, "axes"))
    pairs = dict(zip(given, pairs_of(integers(pads, "pads"), len(given)), strict=True))
    widths = [pairs.get(axis, (0, 0)) for axis in range(rank)]
    if min(map(min, widths), default=0) < 0:
        raise GraphError("Pad: negative pads are not supported")
    if mode != "constant":
        for axis, (extent, width) in enumerate(zip(shape_of(x), widths, strict=True)):
            if any(width):
                places = np.pad(np.arange(extent), width, mode=mode)  # type: ignore[call-overload]
                x = ad.take_op(x, tensor(places), axis)
        return x
    return composed.padded(x, widths, number(value, 0.0, "the value of Pad"))


@operator("ConstantOfShape", 0)
def constant_of_shape(shape: Value, value: np.ndarray | None = None) -> Node:
    """One value at every index of a shape."""
    given = np.zeros(1, "float32") if value is None else value
    extents = integers(shape, "the shape")
    if min(extents, default=0) < 0:
        raise DataError(f"a shape has no negative extent: {extents}")
    return ad.broadcast_shape_op(tensor(np.asarray(one_of(given, "the value"))), tuple(extents))


@operator("Range", 0, 1, 2)
def range_(start: Value, limit: Value, delta: Value) -> np.ndarray:
    """start, start + delta, ... before limit."""
    first, last, step = (one_of(value, "a bound of Range") for value in (start, limit, delta))
    if step == 0 or not np.isfinite([first, last, step]).all():
        raise DataError(f"Range from {first} to {last} by {step} has no end")
    count = max(math.ceil((last.item() - first.item()) / step.item()), 0)
    if count * first.itemsize > MOST_FOLDED:
        raise DataError(f"Range of {count} numbers has more than {MOST_FOLDED} bytes")
    return (np.arange(count) * step + first).astype(first.dtype)
