"""The operators: one class each, stating formula, shapes, gradient, tensor expression and NumPy reference.

Users call the lower-case functions. `OPS` is the registry, by name; `Node` arithmetic (`+ - * / @ **`) is
installed by importing this package.
"""

from __future__ import annotations

from ..graph import OPS, Op, register
from .activation import (
    exp_op,
    log_op,
    log_softmax_op,
    relu_gradient_op,
    relu_op,
    sigmoid_op,
    softmax_func,
    softmax_op,
    sqrt_op,
    tanh_op,
)
from .arithmetic import (
    add_byconst_op,
    add_op,
    const_div_op,
    div_byconst_op,
    div_op,
    mul_byconst_op,
    mul_op,
    neg_op,
    power_byconst_op,
    reciprocal_op,
    sub_op,
)
from .conv import conv2d_filter_gradient_op, conv2d_input_gradient_op, conv2d_op
from .inputs import Variable, full_op, oneslike_op, placeholder_op, zeroslike_op
from .linalg import matmul_op
from .loss import sgd_update_op, softmaxcrossentropy_op
from .reduction import broadcast_axes_op, div_by_extent_op, reducesum_op, reducesumaxiszero_op
from .rules import broadcast_rule
from .shape import (
    broadcast_shape_op,
    broadcastto_op,
    reshape_like_op,
    reshape_op,
    sum_to_like_op,
    transpose_op,
)
from .state import Parameter, assign_op, copy_op, group_op, with_updates_op

__all__ = [
    "OPS",
    "Op",
    "Parameter",
    "Variable",
    "add_byconst_op",
    "add_op",
    "assign_op",
    "broadcast_axes_op",
    "broadcast_rule",
    "broadcast_shape_op",
    "broadcastto_op",
    "const_div_op",
    "conv2d_filter_gradient_op",
    "conv2d_input_gradient_op",
    "conv2d_op",
    "copy_op",
    "div_by_extent_op",
    "div_byconst_op",
    "div_op",
    "exp_op",
    "full_op",
    "group_op",
    "log_op",
    "log_softmax_op",
    "matmul_op",
    "mul_byconst_op",
    "mul_op",
    "neg_op",
    "oneslike_op",
    "placeholder_op",
    "power_byconst_op",
    "reciprocal_op",
    "reducesum_op",
    "reducesumaxiszero_op",
    "register",
    "relu_gradient_op",
    "relu_op",
    "reshape_like_op",
    "reshape_op",
    "sgd_update_op",
    "sigmoid_op",
    "softmax_func",
    "softmax_op",
    "softmaxcrossentropy_op",
    "sqrt_op",
    "sub_op",
    "sum_to_like_op",
    "tanh_op",
    "transpose_op",
    "with_updates_op",
    "zeroslike_op",
]
