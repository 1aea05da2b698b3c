"""The operators: primitives, one row each, and functions, which are composed of them.

Users call the lower-case functions `..._op`. `OPS` is the registry, by name; importing this package says what `Node`
arithmetic (`+ - * / @ **`) means.
"""

from __future__ import annotations

from ..graph import OPS, Op, register
from . import operators
from .conv import conv2d_filter_gradient_op, conv2d_input_gradient_op, conv2d_op
from .cross_entropy import cross_entropy_op
from .cumulative import cumprod_op, cumsum_op, recurrence_op
from .elementwise import (
    abs_op, add_byconst_op, add_op, bitwise_and_op, bitwise_not_op, bitwise_or_op, bitwise_xor_op, cast_like_op,
    cast_op, clip_op, const_div_op, copy_op, cos_op, div_byconst_op, div_op, equal_op, erf_op, exp_op, floor_op,
    fmod_op, full_op, gelu_op, greater_equal_op, greater_op, less_equal_op, less_op, log_op, logical_and_op,
    logical_not_op, logical_or_op, maximum_op, minimum_op, mul_byconst_op, mul_op, neg_op, not_equal_op, oneslike_op,
    power_byconst_op, power_op, quotient_op, relu_gradient_op, relu_op, round_op, rsqrt_op, sigmoid_op, sign_op, sin_op,
    sqrt_op, sub_op, tanh_op, where_op, zeroslike_op,
)
from .indexing import (
    argsort_op, embedding_op, in_range_op, one_hot_op, scatter_add_op, sort_op, take_along_axis_op, take_op, topk_op,
)
from .linalg import matmul_op
from .loss import log_softmax_op, mse_loss_op, softmax_func, softmax_op, softmaxcrossentropy_op
from .moves import (
    broadcast_shape_op, broadcastto_op, concatenate_op, expand_dims_op, flatten_op, flip_op, pad_op, reshape_like_op,
    reshape_op, slice_op, split_op, squeeze_op, stack_op, sum_to_like_op, swapaxes_op, transpose_op,
)
from .norm import batch_norm_op, layer_norm_op, statistics_op
from .operators import is_number, is_operand, operand, pair
from .primitive import primitive
from .pooling import adaptive_avg_pool2d_op, avg_pool2d_op, max_pool2d_op
from .random import dropout_op, random_bits_op, random_normal_op, random_uniform_op
from .reduction import (
    argmax_op, argmin_op, logsumexp_op, max_op, mean_op, min_op, reducesum_op, reducesumaxiszero_op, std_op, sum_op,
    var_op,
)
from .rules import broadcast_rule, dtype_name
from .scan import scan_op
from .state import assign_op, constant_op, group_op, leaf, placeholder, variable
from .types import beside_number, dtype_of, joint_dtype, known_dtype, known_shape, promoted, shape_of
