"""Layers as functions, by the names and in the argument order of torch.nn.functional; all return nodes.

Some need a shape when they are called: of tensors it is known, of a `Variable` where it is declared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import dtype_of, known_shape, tensor
from ..errors import DlsysError, GraphError
from ..graph import Shape
from ..random import default_generator

relu = ad.relu_op
leaky_relu = ad.leaky_relu_op
elu = ad.elu_op
gelu = ad.gelu_op
silu = ad.silu_op
sigmoid = ad.sigmoid_op
tanh = ad.tanh_op
adaptive_avg_pool2d = ad.adaptive_avg_pool2d_op
mse_loss = ad.mse_loss_op
binary_cross_entropy_with_logits = ad.bce_with_logits_op


def _shape(function: str, x: Node) -> Shape:
    """The shape. Raises GraphError where only the run tells it."""
    shape = known_shape(x)
    if shape is None:
        raise GraphError(
            f"{function}: the shape of {x.name} must be known here: declare that of its variables"
        )
    return shape


def softplus(x: Node, beta: float = 1.0) -> Node:
    """log(1 + exp(beta x)) / beta, exact for all x: there is no threshold."""
    return ad.softplus_op(x) if beta == 1 else ad.softplus_op(x * beta) / beta


def softmax(x: Node, dim: int = -1) -> Node:
    """exp(x) / sum(exp(x)) along `dim`."""
    return ad.softmax_op(x, dim)


def log_softmax(x: Node, dim: int = -1) -> Node:
    """The logarithm of softmax along `dim`."""
    return ad.log_softmax_op(x, dim)


def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """x W^T + b: (..., in), (out, in), (out,) -> (..., out)."""
    product = ad.matmul_op(x, weight, trans_B=True)
    return product if bias is None else product + bias


def _per_channel(values: Node, space: int = 2) -> Node:
    """(C,) as (C, 1, ...), which broadcasts against (N, C, *space)."""
    return values if space == 0 else ad.reshape_op(values, (-1, *(1,) * space))


def conv2d(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation of x (N, C, H, W) with weight (O, C / groups, h, w), plus bias (O,): `autodiff.conv2d_op`."""
    y = ad.conv2d_op(x, weight, stride, padding, dilation, groups)
    return y if bias is None else y + _per_channel(bias)


def conv_transpose2d(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Node:
    """Transposed convolution of x (N, C, H, W) with weight (C, O / groups, h, w), plus bias (O,)."""
    y = ad.conv_transpose2d_op(x, weight, stride, padding, output_padding, dilation, groups)
    return y if bias is None else y + _per_channel(bias)


def max_pool2d(x: Node, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Node:
    """The maxima of windows of images (N, C, H, W)."""
    return ad.max_pool2d_op(x, kernel_size, stride, padding)


def avg_pool2d(
    x: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, *, count_include_pad: bool = True
) -> Node:
    """The means of windows of images (N, C, H, W)."""
    return ad.avg_pool2d_op(x, kernel_size, stride, padding, count_include_pad)


def batch_norm(
    x: Node,
    running_mean: Node | None,
    running_var: Node | None,
    weight: Node | None = None,
    bias: Node | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
    axes: Sequence[int] | None = None,
) -> Node:
    """x (N, C, *space) normalised for each channel, times weight plus bias (C,): Ioffe and Szegedy (2015).

    With `training` by x's own mean and variance; whoever evaluates the result then moves the running ones, Parameters,
    by `momentum`, a number or a node: running = (1 - momentum) running + momentum own, with the unbiased variance.
    Else by the running ones. `axes` are all but that of the channels; None: of x's shape. Raises GraphError.
    """
    if axes is None:
        axes = tuple(axis for axis in range(len(_shape("batch_norm", x))) if axis != 1)
    if not training:
        if running_mean is None or running_var is None:
            raise GraphError("batch_norm: without training it needs running_mean and running_var")
        scale = ad.rsqrt_op(running_var + eps)
        scale = scale if weight is None else scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        space = len(axes) - 1
        return x * _per_channel(scale, space) + _per_channel(shift, space)
    y, mean, var = ad.batch_norm_op(x, weight, bias, axes, eps)
    updates = []
    if running_mean is not None:
        updates.append(ad.assign(running_mean, _moved(running_mean, mean, momentum)))
    if running_var is not None:
        one = ad.oneslike_op(var)
        unbiased = var * (ad.div_by_terms_op(one, x, axes) / ad.div_by_extent_op(one, x, axes))
        updates.append(ad.assign(running_var, _moved(running_var, unbiased, momentum)))
    return ad.with_updates_op(y, updates) if updates else y


def _moved(running: Node, own: Node, momentum: Any) -> Node:
    own = ad.reshape_like_op(own, running)
    if isinstance(momentum, Node):
        return running + (own - running) * momentum
    return running * (1 - momentum) + own * momentum


def layer_norm(
    x: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """x normalised over its last axes, of extents `normalized_shape`, times weight plus bias of that shape."""
    return ad.layer_norm_op(x, weight, bias, tuple(range(-len(normalized_shape), 0)), eps)


def rms_norm(
    x: Node, normalized_shape: Sequence[int], weight: Node | None = None, eps: float | None = None
) -> Node:
    """x / sqrt(mean(x^2) + eps) over its last axes, of extents `normalized_shape`, times weight; eps is by default the
    machine's for x's dtype, which must be known here then."""
    if eps is None:
        eps = float(np.finfo(dtype_of(x)).eps)
    return ad.rms_norm_op(x, weight, tuple(range(-len(normalized_shape), 0)), eps)


def group_norm(
    x: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Node:
    """x (N, C, *space), of known shape, normalised over each of `num_groups` parts of its channels, times weight plus
    bias (C,). Raises GraphError."""
    return ad.group_norm_op(x, num_groups, weight, bias, _shape("group_norm", x), eps)


def dropout(x: Node, p: float = 0.5, training: bool = True, key: Node | None = None) -> Node:
    """x with elements set to 0 with probability p, the others divided by 1 - p; x itself without `training`.

    `key`: see `autodiff.dropout_op`; None takes a stream of `dlsys.random.default_generator`, of which each run draws
    anew. Raises GraphError for a p outside [0, 1].
    """
    if not 0 <= p <= 1:
        raise GraphError(f"dropout: p must be in [0, 1], not {p!r}")
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0.0
    if key is not None:
        return ad.dropout_op(x, key, p)
    return default_generator.drawing(ad.dropout_op(x, default_generator.key(), p))


def embedding(indices: Node, weight: Node, padding_idx: int | None = None) -> Node:
    """The rows of `weight`, (entries, width), with the numbers `indices`: (*indices.shape, width); zeros for the number
    `padding_idx`, so that its row gets no gradient."""
    rows = ad.embedding_op(weight, indices)
    if padding_idx is None:
        return rows
    return ad.where_op(ad.expand_dims_op(ad.equal_op(indices, padding_idx), -1), 0.0, rows)


def one_hot(indices: Node, num_classes: int, dtype: Any = "int64") -> Node:
    """Ones at the indices along a new last axis of extent `num_classes`, zeros elsewhere."""
    return ad.one_hot_op(indices, num_classes, dtype)


def pad(x: Node, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Node:
    """x, of known shape, with `value` around it: pad is (before, after) of the last axis, then of the one before, ...

    Raises GraphError for other modes than "constant", and negative padding.
    """
    if mode != "constant":
        raise GraphError(f'pad: mode must be "constant", not {mode!r}')
    rank = len(_shape("pad", x))
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise GraphError(f"pad: {tuple(pad)} are not pairs for the last of {rank} axes")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return ad.pad_op(x, [*[(0, 0)] * (rank - len(pairs)), *reversed(pairs)], value)


def cross_entropy(
    logits: Node,
    targets: Node,
    weight: None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Node:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with class numbers (N, d1, ...) or probabilities of the
    logits' shape; see `autodiff.cross_entropy_op`. Raises GraphError for weights of classes, which it does not know."""
    if weight is not None:
        raise GraphError("cross_entropy: weights of classes are not supported: weight must be None")
    return ad.cross_entropy_op(logits, targets, ignore_index, label_smoothing, reduction)


def l1_loss(x: Node, y: Node, reduction: str = "mean") -> Node:
    """|x - y|, of each element for "none", else their "mean" or "sum". Raises GraphError for any other `reduction`."""
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(f"l1_loss: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    distances = ad.abs_op(x - y)
    if reduction == "none":
        return distances
    return ad.mean_op(distances) if reduction == "mean" else ad.reducesum_op(distances)


def scaled_dot_product_attention(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Node:
    """softmax(q k^T / sqrt(d)) v: (..., L, d), (..., S, d), (..., S, e) -> (..., L, e): Vaswani et al. (2017).

    Args:
        mask: broadcasts to (..., L, S); booleans of a known dtype say which keys a query sees, where it sees none the
            result is 0; floats are added to q k^T / sqrt(d).
        causal: query i sees the keys up to i alone; the shapes of q and k must be known then.
        dropout_p: with which probability a weight is dropped, see `dropout`.

    Raises GraphError.
    """
    shape = known_shape(q)
    if shape is None:
        one = ad.cast_like_op(ad.full_op((), 1.0), q)
        q = q * ad.sqrt_op(ad.div_by_extent_op(one, q, -1))
    else:
        q = q / math.sqrt(shape[-1])
    scores = ad.matmul_op(q, k, trans_B=True)
    seen = None
    if mask is not None and _is_bool(mask):
        seen = mask
    elif mask is not None:
        scores = scores + mask
    if causal:
        rows, columns = (_shape("scaled_dot_product_attention", x)[-2] for x in (q, k))
        before = tensor(np.tri(rows, columns, dtype=bool), name="causal_mask")
        scores = ad.where_op(before, scores, -math.inf)
    if seen is not None:
        scores = ad.where_op(seen, scores, -math.inf)
    weights = ad.softmax_op(scores)
    if seen is not None:
        weights = ad.where_op(seen, weights, 0.0)  # the softmax of nothing seen is NaN
    return ad.matmul_op(dropout(weights, dropout_p), v)


def _is_bool(node: Node) -> bool:
    try:
        return dtype_of(node) == "bool"
    except DlsysError:
        return False
