"""The mathematics: one TE function per formula, no scheduling.

Every function takes and returns `te.Tensor`, for the dtypes and any rank its operator allows, sizes of 1 and 0
included, with the result's dtype that of the inputs unless its formula says otherwise. Shapes are taken as right: the
operators' `infer_shape` and the factories of `tvm_op` check them.

NaN and infinity come out wherever NumPy gives them. TVM does not do that by itself: its `max` drops a NaN,
and its simplifier turns `x * 0`, `0 / x`, `x - x` and `x != x` into constants, whatever x is. Hence the
selections below, and `tirx.isnan` in place of `x != x`.
"""

from __future__ import annotations

from .. import tvm_import
from .base import Tensor, copy, full, placeholder, shape_of
from .contraction import (
    conv2d, conv2d_filter_gradient, conv2d_input_gradient, matmul, matmul_gradient, matmul_panels, pack_panels,
)
from .elementwise import (
    absolute, add, add_by_const, cast, clip, const_div, cos, div, div_by_const, equal, erf, exp, floor, greater,
    greater_equal, less, less_equal, log, logical_and, logical_not, logical_or, maximum, minimum, mul,
    mul_by_const, nearest, neg, normalize, not_equal, power, power_by_const, relu, relu_gradient, rsqrt,
    sgd_update, sigmoid, sign, sin, sqrt, sub, tanh, where,
)
from .indexing import (
    broadcast_axes, broadcast_to, concatenate, one_hot, reshape, stack, strided, strided_place, strided_slice,
    take, take_along_axis, take_along_axis_gradient, take_gradient, transpose,
)
from .pooling import (
    Windows, max_pool, max_pool_gradient, max_pool_place, max_pool_select, mean_pool, mean_pool_gradient,
)
from .random import dropout, normal, random_bits, uniform
from .reduction import (
    argmax, argmin, cross_entropy, cross_entropy_gradient, log_softmax, logsumexp, reduce_max, reduce_min,
    reduce_sum, softmax, softmax_cross_entropy, sum_to,
)
