"""Kernels that TVM generates: `make_*` gives a compiled function of arrays, called with inputs, then output.

    matmul = make_matrix_mul((1000, 784), False, (784, 256), False, "llvm", "llvm", "matmul")
    matmul(a, b, out)  # dlsys or TVM arrays, or NumPy arrays without a copy

Every factory takes the shapes, then `tgt` ("llvm": this CPU; "cuda"; a dict; a TVM Target), `tgt_host` (the CPU
side of a "cuda" kernel, otherwise not used), `func_name` and `dtype` ("float32" or "float64"). It raises
ShapeError for shapes that do not fit, DTypeError for another dtype and TargetError for a target that is unknown
or that this machine lacks. A kernel once built is not built again.
"""

from __future__ import annotations

from .build import (
    KernelSpec,
    build,
    cache_size,
    default_schedules,
    panel_columns,
    runnable_target,
    symbol_of,
    uses_own_schedules,
)
from .factories import (
    make_broadcast_to,
    make_conv2d,
    make_elemwise_add,
    make_elemwise_add_by_const,
    make_elemwise_mul,
    make_elemwise_mul_by_const,
    make_matrix_mul,
    make_matrix_softmax,
    make_matrix_softmax_cross_entropy,
    make_reduce_sum_axis_zero,
    make_relu,
    make_relu_gradient,
    make_sgd_update,
)
from .kernel import Kernel, Lowered
from .library import linker, load_library, write_library

__all__ = [
    "Kernel",
    "KernelSpec",
    "Lowered",
    "build",
    "cache_size",
    "default_schedules",
    "linker",
    "load_library",
    "make_broadcast_to",
    "make_conv2d",
    "make_elemwise_add",
    "make_elemwise_add_by_const",
    "make_elemwise_mul",
    "make_elemwise_mul_by_const",
    "make_matrix_mul",
    "make_matrix_softmax",
    "make_matrix_softmax_cross_entropy",
    "make_reduce_sum_axis_zero",
    "make_relu",
    "make_relu_gradient",
    "make_sgd_update",
    "panel_columns",
    "runnable_target",
    "symbol_of",
    "uses_own_schedules",
    "write_library",
]
