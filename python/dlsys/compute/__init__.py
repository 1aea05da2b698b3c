"""The mathematics: one TE function per formula, no scheduling.

Every function takes and returns `te.Tensor`, for float32 and float64, for any rank its operator allows,
sizes of 1 and 0 included, with the result's dtype that of the inputs. Shapes are taken as right: the
operators' `infer_shape` and the factories of `tvm_op` check them.

NaN and infinity come out wherever NumPy gives them. TVM does not do that by itself: its `max` drops a NaN,
and its simplifier turns `x * 0`, `0 / x`, `x - x` and `x != x` into constants, whatever x is. Hence the
selections below, and `tirx.isnan` in place of `x != x`.
"""

from __future__ import annotations

from .base import Tensor, copy, full, placeholder, shape_of
from .contraction import conv2d, conv2d_filter_gradient, conv2d_input_gradient, matmul
from .elementwise import (
    add,
    add_by_const,
    const_div,
    div,
    div_by_const,
    exp,
    log,
    mul,
    mul_by_const,
    neg,
    power_by_const,
    relu,
    relu_gradient,
    sgd_update,
    sigmoid,
    sqrt,
    sub,
    tanh,
)
from .layout import broadcast_axes, broadcast_to, reshape, transpose
from .reduction import log_softmax, reduce_sum, softmax, softmax_cross_entropy, sum_to

__all__ = [
    "Tensor",
    "add",
    "add_by_const",
    "broadcast_axes",
    "broadcast_to",
    "const_div",
    "conv2d",
    "conv2d_filter_gradient",
    "conv2d_input_gradient",
    "copy",
    "div",
    "div_by_const",
    "exp",
    "full",
    "log",
    "log_softmax",
    "matmul",
    "mul",
    "mul_by_const",
    "neg",
    "placeholder",
    "power_by_const",
    "reduce_sum",
    "relu",
    "relu_gradient",
    "reshape",
    "sgd_update",
    "shape_of",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "sqrt",
    "sub",
    "sum_to",
    "tanh",
    "transpose",
]
