"""The public graph API: variables, operators, gradients, the executor."""

from __future__ import annotations

from .executor import Executor
from .gradients import gradients, sum_node_list
from .graph import Node, Op, find_topo_sort
from .inspect.text import format_graph
from .ops import (
    OPS, Variable, abs_op, adaptive_avg_pool2d_op, add_byconst_op, add_op, argmax_op, argmin_op,
    argsort_op, assign_op, avg_pool2d_op, batch_norm_op, broadcast_axes_op, broadcast_rule, broadcast_shape_op,
    bitwise_and_op, bitwise_not_op, bitwise_or_op, bitwise_xor_op,
    broadcastto_op, cast_like_op, cast_op, clip_op, concatenate_op, const_div_op, conv2d_filter_gradient_op,
    conv2d_input_gradient_op, conv2d_op, copy_op, cos_op, cross_entropy_op, div_by_extent_op, div_byconst_op, div_op,
    dropout_op, embedding_op, equal_op, erf_op, exp_op, expand_dims_op, flatten_op, flip_op, floor_op, full_op,
    gelu_op, greater_equal_op, greater_op, group_op, layer_norm_op, less_equal_op, less_op, log_op, log_softmax_op,
    logical_and_op, logical_not_op, logical_or_op, logsumexp_op, matmul_gradient_op, matmul_op, max_op, max_pool2d_op,
    maximum_op, mean_op, min_op, minimum_op, mse_loss_op, mul_byconst_op, mul_op, neg_op, not_equal_op, one_hot_op,
    oneslike_op, pad_op, placeholder_op, power_byconst_op, power_op, random_bits_like_op, random_bits_op,
    random_normal_op, random_uniform_op, reducesum_op, reducesumaxiszero_op, relu_gradient_op, relu_op,
    reshape_like_op, reshape_op, round_op, rsqrt_op, scan_op, scatter_add_op, sigmoid_op, sign_op,
    sin_op, slice_op, softmax_func, softmax_op, softmaxcrossentropy_op, sort_op, split_op, sqrt_op, squeeze_op,
    stack_op, statistics_op, std_op, sub_op, sum_op, sum_to_like_op, swapaxes_op, take_along_axis_op, take_op, tanh_op,
    topk_op, transpose_op, var_op, where_op, zeroslike_op,
)
from .tensors import Parameter
from .tensors.state import advance_op, with_updates_op

assign, group = assign_op, group_op
