"""The public graph API: variables, operators, gradients, the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .executor import Executor as Executor
from .gradients import gradients as gradients, sum_node_list as sum_node_list
from .graph import Op as Op, find_topo_sort as find_topo_sort
from .inspect.text import format_graph as format_graph
from .ops import (
    OPS as OPS, abs_op as abs_op, adaptive_avg_pool2d_op as adaptive_avg_pool2d_op, add_byconst_op as add_byconst_op,
    add_op as add_op, argmax_op as argmax_op, argmin_op as argmin_op, argsort_op as argsort_op,
    assign_op as assign_op, avg_pool2d_op as avg_pool2d_op, batch_norm_op as batch_norm_op,
    bitwise_and_op as bitwise_and_op, bitwise_not_op as bitwise_not_op, bitwise_or_op as bitwise_or_op,
    bitwise_xor_op as bitwise_xor_op, broadcast_rule as broadcast_rule, broadcast_shape_op as broadcast_shape_op,
    broadcastto_op as broadcastto_op, cast_like_op as cast_like_op, cast_op as cast_op, clip_op as clip_op,
    concatenate_op as concatenate_op, const_div_op as const_div_op,
    conv2d_filter_gradient_op as conv2d_filter_gradient_op, conv2d_input_gradient_op as conv2d_input_gradient_op,
    conv2d_op as conv2d_op, copy_op as copy_op, cos_op as cos_op, cross_entropy_op as cross_entropy_op,
    cumprod_op as cumprod_op, cumsum_op as cumsum_op, div_byconst_op as div_byconst_op, div_op as div_op,
    dropout_op as dropout_op, embedding_op as embedding_op, equal_op as equal_op, erf_op as erf_op, exp_op as exp_op,
    expand_dims_op as expand_dims_op, flatten_op as flatten_op, flip_op as flip_op, floor_op as floor_op,
    fmod_op as fmod_op, gelu_op as gelu_op, greater_equal_op as greater_equal_op, greater_op as greater_op,
    group_op as group_op, layer_norm_op as layer_norm_op, less_equal_op as less_equal_op, less_op as less_op,
    log_op as log_op, log_softmax_op as log_softmax_op, logical_and_op as logical_and_op,
    logical_not_op as logical_not_op, logical_or_op as logical_or_op, logsumexp_op as logsumexp_op,
    matmul_op as matmul_op, max_op as max_op, max_pool2d_op as max_pool2d_op, maximum_op as maximum_op,
    mean_op as mean_op, min_op as min_op, minimum_op as minimum_op, mse_loss_op as mse_loss_op,
    mul_byconst_op as mul_byconst_op, mul_op as mul_op, neg_op as neg_op, not_equal_op as not_equal_op,
    one_hot_op as one_hot_op, oneslike_op as oneslike_op, pad_op as pad_op, power_byconst_op as power_byconst_op,
    power_op as power_op, primitive as primitive, quotient_op as quotient_op, random_bits_op as random_bits_op,
    random_normal_op as random_normal_op, random_uniform_op as random_uniform_op, recurrence_op as recurrence_op,
    reducesum_op as reducesum_op, reducesumaxiszero_op as reducesumaxiszero_op, relu_gradient_op as relu_gradient_op,
    relu_op as relu_op, reshape_like_op as reshape_like_op, reshape_op as reshape_op, round_op as round_op,
    rsqrt_op as rsqrt_op, scan_op as scan_op, scatter_add_op as scatter_add_op, sigmoid_op as sigmoid_op,
    sign_op as sign_op, sin_op as sin_op, slice_op as slice_op, softmax_func as softmax_func,
    softmax_op as softmax_op, softmaxcrossentropy_op as softmaxcrossentropy_op, sort_op as sort_op,
    split_op as split_op, sqrt_op as sqrt_op, squeeze_op as squeeze_op, stack_op as stack_op,
    statistics_op as statistics_op, std_op as std_op, sub_op as sub_op, sum_op as sum_op,
    sum_to_like_op as sum_to_like_op, swapaxes_op as swapaxes_op, take_along_axis_op as take_along_axis_op,
    take_op as take_op, tanh_op as tanh_op, topk_op as topk_op, transpose_op as transpose_op, var_op as var_op,
    where_op as where_op, zeroslike_op as zeroslike_op,
)
from .tensors import Parameter as Parameter, Tensor
from .tensors.creation import Variable as Variable, full_op as full_op, placeholder_op as placeholder_op
from .tensors.inplace import advance_op as advance_op, with_updates_op as with_updates_op

assign = assign_op
group = group_op

if TYPE_CHECKING:
    from .graph import Node as Node
else:
    Node = Tensor  # what users hold; for a checker tensors are nodes, see `dlsys.node`
