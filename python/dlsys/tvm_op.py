"""Kernels that TVM generates: `make_*` returns a compiled function, called with its input arrays, then its output.

    matmul = make_matrix_mul((1000, 784), False, (784, 256), False, "llvm", "llvm", "matmul")
    matmul(a, b, out)  # dlsys or TVM arrays, or NumPy arrays without a copy

Every factory takes the shapes, then `tgt` ("llvm": this CPU; "cuda"; a dict; a TVM Target), `tgt_host` (the CPU
side of a "cuda" kernel, otherwise not used), `func_name` and `dtype` ("float32" or "float64"; "int8" too of
`make_matrix_mul`). It raises
ShapeError for shapes that do not fit, DTypeError for another dtype and TargetError for a target that is unknown
or absent. A kernel is compiled once, and then found in the process or on disk.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from . import compute, kernels
from .checks import pair, too_large
from .errors import DTypeError, ShapeError
from .graph import Shape
from .kernels import Kernel, KernelSpec

DTYPES = ("float32", "float64")
BYTES = ("uint8", "int8", "int32")
"""The dtypes of a product of bytes: the factors' and the result's."""


def make_elemwise_add(
    shape: Sequence[int], tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """a + b -> out, all of `shape`."""
    return _make(func_name, compute.add, [_shape(shape)] * 2, tgt, dtype)


def make_elemwise_mul(
    shape: Sequence[int], tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """a * b -> out, all of `shape`."""
    return _make(func_name, compute.mul, [_shape(shape)] * 2, tgt, dtype)


def make_elemwise_add_by_const(
    shape: Sequence[int], const_k: float, tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """a + const_k -> out, both of `shape`."""
    return _make(func_name, compute.add_by_const, [_shape(shape)], tgt, dtype, _constant(const_k))


def make_elemwise_mul_by_const(
    shape: Sequence[int], const_k: float, tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """a * const_k -> out, both of `shape`."""
    return _make(func_name, compute.mul_by_const, [_shape(shape)], tgt, dtype, _constant(const_k))


def make_relu(
    shape: Sequence[int], tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """max(x, 0) -> out, both of `shape`; NaN stays NaN."""
    return _make(func_name, compute.relu, [_shape(shape)], tgt, dtype)


def make_relu_gradient(
    shape: Sequence[int], tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """(x, grad) -> out, all of `shape`: grad where x > 0, 0 elsewhere, even if grad is NaN there."""
    return _make(func_name, compute.relu_gradient, [_shape(shape)] * 2, tgt, dtype)


def make_matrix_softmax(
    shape: Sequence[int], tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """exp(x) / sum(exp(x)) over the last axis -> out, both of `shape`."""
    found = _shape(shape, least=1)
    return _make(func_name, compute.softmax, [found], tgt, dtype, output=found)


def make_matrix_softmax_cross_entropy(
    shape: Sequence[int], tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """(logits, labels) of `shape`, the classes along the last axis -> out of shape (1,): the mean over the rows of
    -sum(labels * log(softmax(logits)))."""
    return _make(func_name, compute.softmax_cross_entropy, [_shape(shape, least=1)] * 2, tgt, dtype, output=(1,))


def make_reduce_sum_axis_zero(
    shape: Sequence[int], tgt: Any, tgt_host: Any, func_name: str, dtype: str = "float32"
) -> Kernel:
    """The sum over the first axis: x of `shape` -> out of shape[1:]."""
    found = _shape(shape, least=1)
    return _make(func_name, compute.reduce_sum, [found], tgt, dtype, (0,), output=found[1:])


def make_matrix_mul(
    shapeA: Sequence[int],
    transposeA: bool,
    shapeB: Sequence[int],
    transposeB: bool,
    tgt: Any,
    tgt_host: Any,
    func_name: str,
    dtype: str = "float32",
) -> Kernel:
    """(A, B) -> out: the matrix product of A and B, each transposed first if its flag says so; with dtype "int8" of
    A in uint8 and B in int8, out in int32."""
    a, b = _shape(shapeA), _shape(shapeB)
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(f"{func_name}: a matrix product takes two matrices, not {a} and {b}")
    if a[0 if transposeA else 1] != b[1 if transposeB else 0]:
        turned = f"{a}{'^T' * bool(transposeA)} x {b}{'^T' * bool(transposeB)}"
        raise ShapeError(f"{func_name}: inner dimensions differ: {turned}")
    flags, output = (bool(transposeA), bool(transposeB)), (a[bool(transposeA)], b[not transposeB])
    kinds = BYTES if dtype == "int8" else None
    return _make(func_name, compute.matmul, [a, b], tgt, dtype, *flags, output=output, kinds=kinds)


def make_conv2d(
    shapeX: Sequence[int],
    shapeF: Sequence[int],
    tgt: Any,
    tgt_host: Any,
    func_name: str,
    dtype: str = "float32",
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> Kernel:
    """(X, F) -> out: the cross-correlation of images (N, C, H, W) with filters (O, C, FH, FW), of shape
    (N, O, (H + 2 * padding - FH) // stride + 1, (W + 2 * padding - FW) // stride + 1).

    Products with padding may be left out: an infinity or NaN in F need not reach results at the images' borders."""
    x, f = _shape(shapeX), _shape(shapeF)
    strides, pads = pair(func_name, "stride", stride, 1, ShapeError), pair(func_name, "padding", padding, 0, ShapeError)
    if len(x) != 4 or len(f) != 4 or x[1] != f[1]:
        what = "images (N, C, H, W) and filters (O, C, FH, FW) of one depth C"
        raise ShapeError(f"{func_name}: takes {what}, not {x} and {f}")
    if min(f[2:]) < 1 or any(x[i] + 2 * pads[i - 2] < f[i] for i in (2, 3)):
        raise ShapeError(f"{func_name}: filters {f} do not fit into images {x} with padding {pads}")
    extents = ((x[i] + 2 * pads[i - 2] - f[i]) // strides[i - 2] + 1 for i in (2, 3))
    return _make(func_name, compute.conv2d, [x, f], tgt, dtype, strides, pads, output=(x[0], f[0], *extents))


def make_broadcast_to(
    shape: Sequence[int],
    to_shape: Sequence[int],
    tgt: Any,
    tgt_host: Any,
    func_name: str,
    dtype: str = "float32",
) -> Kernel:
    """x of `shape` -> out of `to_shape`, repeated as NumPy broadcasts."""
    source, target = _shape(shape), _shape(to_shape)
    fits = len(source) <= len(target) and all(
        extent in (1, wanted) for extent, wanted in zip(reversed(source), reversed(target), strict=False)
    )
    if not fits:
        raise ShapeError(f"{func_name}: {source} does not broadcast to {target}")
    return _make(func_name, compute.broadcast_to, [source], tgt, dtype, target, output=target)


def make_sgd_update(
    shape: Sequence[int],
    learning_rate: float,
    tgt: Any,
    tgt_host: Any,
    func_name: str,
    dtype: str = "float32",
) -> Kernel:
    """x - learning_rate * grad: called as f(x, grad, out), all of `shape`, where out may be x."""
    rate = _constant(learning_rate)
    return _make(func_name, compute.sgd_update, [_shape(shape)] * 2, tgt, dtype, rate)


def _make(
    name: str,
    formula: Callable[..., compute.Tensor],
    shapes: Sequence[Shape],
    tgt: Any,
    dtype: str,
    *arguments: Hashable,
    output: Shape | None = None,
    kinds: Sequence[str] | None = None,
) -> Kernel:
    """The kernel of `formula(*inputs, *arguments)`. `output` is the result's shape; None for an elementwise formula,
    whose result has the inputs' shape. `kinds`: the dtypes of the inputs and of the result, where they differ."""
    kind = str(np.dtype(dtype)) if isinstance(dtype, (type, np.dtype)) else str(dtype)
    if kinds is None and kind not in DTYPES:
        raise DTypeError(f"{name}: dtype must be one of {', '.join(DTYPES)}, not {kind}")
    *own, result = kinds or [kind] * (len(shapes) + 1)
    inputs = tuple(zip(shapes, own, strict=True))
    key = (formula.__name__, arguments)
    outputs = ((shapes[0] if output is None else output, result),)
    for shape, _ in (*inputs, *outputs):
        if told := too_large(shape):
            raise ShapeError(f"{name}: {told}")
    te = lambda *x: formula(*x, *arguments)  # noqa: E731
    spec = KernelSpec(str(name), key, inputs, te, outputs=outputs, elementwise=output is None)
    return kernels.get([spec], tgt, checked=True)[0]


def _shape(shape: Any, least: int = 0) -> Shape:
    """A tuple of extents, of at least `least` dimensions. Raises ShapeError."""
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError:
        raise ShapeError(f"a shape must be a tuple of integers, not {shape!r}") from None
    if any(extent < 0 for extent in extents):
        raise ShapeError(f"a shape has no negative extents: {extents}")
    if len(extents) < least:
        raise ShapeError(f"a shape of at least {least} dimension is needed, not {extents}")
    return extents


def _constant(value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise DTypeError(f"the constant must be a real number, not {type(value).__name__}")
    return float(value)
