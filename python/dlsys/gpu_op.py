"""The operations of the course's assignment of 2017, on arrays that are all on one GPU or on the CPU: inputs first,
then the output. Each is a kernel of `tvm_op`, compiled at the first call with new shapes.

They raise ShapeError for shapes that do not fit, DTypeError for other dtypes than float32 and float64, DeviceError for
arrays on several devices.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

from . import compute, kernels, tvm_op
from .devices import Array
from .errors import DeviceError, DTypeError
from .kernels import Kernel, KernelSpec

__all__ = [
    "array_set", "broadcast_to", "matrix_elementwise_add", "matrix_elementwise_add_by_const",
    "matrix_elementwise_multiply", "matrix_elementwise_multiply_by_const", "matrix_multiply", "reduce_sum_axis_zero",
    "relu", "relu_gradient", "softmax", "softmax_cross_entropy",
]  # fmt: skip


def _run(name: str, make: Callable[..., Kernel], arguments: tuple[Any, ...], *arrays: Array) -> None:
    """Make the kernel, `make(*arguments, ...)`, for the arrays' device, and call it with the arrays."""
    for array in arrays:
        if not isinstance(array, Array):
            raise DTypeError(f"{name}: takes arrays of dlsys.ndarray, not {type(array).__name__}")
    places = {array.context for array in arrays}
    if len(places) > 1:
        raise DeviceError(f"{name}: the arrays are on several devices: {', '.join(map(str, places))}")
    target = "cuda" if places.pop().kind == "cuda" else "llvm"
    make(*arguments, target, "llvm", name, dtype=arrays[-1].dtype)(*arrays)


def _make_full(
    shape: tuple[int, ...], value: float, target: str, host: str, name: str, dtype: str = "float32"
) -> Kernel:
    """A kernel that fills an array with one value, `kernel(out)`."""
    key, outputs = ("full", shape, value, dtype), ((shape, dtype),)
    spec = KernelSpec(name, key, (), lambda: compute.full(shape, value, dtype), outputs=outputs)
    return kernels.get([spec], target, checked=True)[0]


def array_set(arr: Array, value: float) -> None:
    """arr[...] = value."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise DTypeError(f"array_set: the value must be a number, not {value!r}")
    _run("array_set", _make_full, (arr.shape, float(value)), arr)


def broadcast_to(in_arr: Array, out_arr: Array) -> None:
    """out_arr[i, ...] = in_arr[...], shapes (...) and (n, ...)."""
    _run("broadcast_to", tvm_op.make_broadcast_to, (in_arr.shape, out_arr.shape), in_arr, out_arr)


def reduce_sum_axis_zero(in_arr: Array, out_arr: Array) -> None:
    """out_arr[...] = sum over i of in_arr[i, ...]."""
    _run("reduce_sum_axis_zero", tvm_op.make_reduce_sum_axis_zero, (in_arr.shape,), in_arr, out_arr)


def matrix_elementwise_add(matA: Array, matB: Array, matC: Array) -> None:
    """C = A + B, of one shape."""
    _run("matrix_elementwise_add", tvm_op.make_elemwise_add, (matA.shape,), matA, matB, matC)


def matrix_elementwise_add_by_const(in_mat: Array, val: float, out_mat: Array) -> None:
    """out = in + val."""
    _run("matrix_elementwise_add_by_const", tvm_op.make_elemwise_add_by_const, (in_mat.shape, val), in_mat, out_mat)


def matrix_elementwise_multiply(matA: Array, matB: Array, matC: Array) -> None:
    """C = A * B, elementwise, of one shape."""
    _run("matrix_elementwise_multiply", tvm_op.make_elemwise_mul, (matA.shape,), matA, matB, matC)


def matrix_elementwise_multiply_by_const(in_mat: Array, val: float, out_mat: Array) -> None:
    """out = in * val."""
    make = tvm_op.make_elemwise_mul_by_const
    _run("matrix_elementwise_multiply_by_const", make, (in_mat.shape, val), in_mat, out_mat)


def matrix_multiply(matA: Array, transA: bool, matB: Array, transB: bool, matC: Array) -> None:
    """C = A B, with A or B transposed where their flags say so."""
    shapes = (matA.shape, transA, matB.shape, transB)
    _run("matrix_multiply", tvm_op.make_matrix_mul, shapes, matA, matB, matC)


def relu(in_arr: Array, out_arr: Array) -> None:
    """out = max(in, 0)."""
    _run("relu", tvm_op.make_relu, (in_arr.shape,), in_arr, out_arr)


def relu_gradient(in_arr: Array, in_grad_arr: Array, out_arr: Array) -> None:
    """out = in_grad where in > 0, else 0."""
    _run("relu_gradient", tvm_op.make_relu_gradient, (in_arr.shape,), in_arr, in_grad_arr, out_arr)


def softmax(in_arr: Array, out_arr: Array) -> None:
    """out = exp(in) / sum(exp(in)) over the last axis."""
    _run("softmax", tvm_op.make_matrix_softmax, (in_arr.shape,), in_arr, out_arr)


def softmax_cross_entropy(in_arr_a: Array, in_arr_b: Array, out_arr: Array) -> None:
    """out, of shape (1,): the mean over the rows of -sum(b * log(softmax(a))), a being logits and b labels."""
    make = tvm_op.make_matrix_softmax_cross_entropy
    _run("softmax_cross_entropy", make, (in_arr_a.shape,), in_arr_a, in_arr_b, out_arr)
