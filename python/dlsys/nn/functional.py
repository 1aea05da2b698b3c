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
from . import functional_loss as losses
from . import functional_windows as windows
from .checks import checked_share, pair
from .functional_windows import per_channel

relu = ad.relu_op
leaky_relu = ad.leaky_relu_op
elu = ad.elu_op
gelu = ad.gelu_op
silu = ad.silu_op
sigmoid = ad.sigmoid_op
tanh = ad.tanh_op

adaptive_avg_pool1d = windows.adaptive_avg_pool1d
adaptive_avg_pool2d = windows.adaptive_avg_pool2d
adaptive_max_pool1d = windows.adaptive_max_pool1d
adaptive_max_pool2d = windows.adaptive_max_pool2d
avg_pool1d = windows.avg_pool1d
avg_pool2d = windows.avg_pool2d
conv1d = windows.conv1d
conv2d = windows.conv2d
conv_transpose2d = windows.conv_transpose2d
max_pool1d = windows.max_pool1d
max_pool2d = windows.max_pool2d

binary_cross_entropy = losses.binary_cross_entropy
binary_cross_entropy_with_logits = losses.binary_cross_entropy_with_logits
cosine_embedding_loss = losses.cosine_embedding_loss
cosine_similarity = losses.cosine_similarity
cross_entropy = losses.cross_entropy
huber_loss = losses.huber_loss
kl_div = losses.kl_div
l1_loss = losses.l1_loss
mse_loss = losses.mse_loss
nll_loss = losses.nll_loss
smooth_l1_loss = losses.smooth_l1_loss


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


def hardtanh(x: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    """x within [min_val, max_val]; the derivative is 0 on the bounds. Raises GraphError for bounds that cross."""
    if not min_val < max_val:
        raise GraphError(f"hardtanh: min_val must be less than max_val, not {min_val!r} and {max_val!r}")
    return ad.where_op(x >= max_val, max_val, ad.where_op(x <= min_val, min_val, x))


def relu6(x: Node) -> Node:
    """x within [0, 6]."""
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Node) -> Node:
    """relu6(x + 3) / 6."""
    return relu6(x + 3.0) / 6.0


def hardswish(x: Node) -> Node:
    """x relu6(x + 3) / 6."""
    return x * relu6(x + 3.0) / 6.0


def mish(x: Node) -> Node:
    """x tanh(log(1 + exp(x))): Misra (2019)."""
    return x * ad.tanh_op(ad.softplus_op(x))


def selu(x: Node) -> Node:
    """1.0507 elu(x, 1.6733), which keeps mean 0 and variance 1: Klambauer et al. (2017)."""
    return ad.elu_op(x, 1.6732632423543772848170429916717) * 1.0507009873554804934193349852946


def logsigmoid(x: Node) -> Node:
    """The logarithm of sigmoid."""
    return -ad.softplus_op(-x)


def softsign(x: Node) -> Node:
    """x / (1 + |x|)."""
    return x / (ad.abs_op(x) + 1.0)


def prelu(x: Node, weight: Node) -> Node:
    """x where x > 0, else weight x; weight is (1,), or (C,) for x (N, C, ...) of known shape: He et al. (2015)."""
    if known_shape(weight) != (1,):
        rank = len(_shape("prelu", x))
        weight = per_channel(weight, max(rank - 2, 0))
    return ad.where_op(x > 0.0, x, x * weight)


def normalize(x: Node, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Node:
    """x / max(|x|, eps), where |x| is the p-norm along `dim`. Raises GraphError for a p below 1."""
    if not isinstance(p, (int, float)) or p < 1:
        raise GraphError(f"normalize: p must be a number >= 1, not {p!r}")
    if p == 2:
        length = ad.sqrt_op(ad.clip_op(ad.reducesum_op(x * x, dim, keepdims=True), eps * eps))
    elif p == math.inf:
        length = ad.clip_op(ad.max_op(ad.abs_op(x), dim, keepdims=True), eps)
    else:
        size = ad.abs_op(x) if p == 1 else ad.power_byconst_op(ad.abs_op(x), p)
        total = ad.reducesum_op(size, dim, keepdims=True)
        length = ad.clip_op(total if p == 1 else ad.power_byconst_op(ad.clip_op(total, eps**p), 1 / p), eps)
    return x / length


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
        return x * per_channel(scale, space) + per_channel(shift, space)
    y, mean, var = ad.batch_norm_op(x, weight, bias, axes, eps)
    updates = []
    if running_mean is not None:
        updates.append(ad.advance_op(running_mean, lambda before: _moved(before, mean, momentum)))
    if running_var is not None:
        one = ad.oneslike_op(var)
        unbiased = var * (ad.div_by_terms_op(one, x, axes) / ad.div_by_extent_op(one, x, axes))
        updates.append(ad.advance_op(running_var, lambda before: _moved(before, unbiased, momentum)))
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


def instance_norm(x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5) -> Node:
    """x (N, C, *space), of known shape, normalised over the space of each channel of each example, times weight plus
    bias (C,): Ulyanov et al. (2016). Raises GraphError."""
    return ad.group_norm_op(x, _shape("instance_norm", x)[1], weight, bias, _shape("instance_norm", x), eps)


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
    p = checked_share("dropout", "p", p)
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0.0
    if key is not None:
        return ad.dropout_op(x, key, p)
    return default_generator.drawing(ad.dropout_op(x, default_generator.key(), p))


def dropout2d(x: Node, p: float = 0.5, training: bool = True) -> Node:
    """`dropout` of whole channels of x (N, C, *space), of known shape and dtype."""
    if not training or p == 0:
        return dropout(x, p, training)
    shape = _shape("dropout2d", x)
    if len(shape) < 3:
        raise GraphError(f"dropout2d: x must be (N, C, ...), not {shape}")
    return x * dropout(ad.full_op((*shape[:2], *(1,) * (len(shape) - 2)), 1.0, dtype_of(x)), p)


def embedding(indices: Node, weight: Node, padding_idx: int | None = None) -> Node:
    """The rows of `weight`, (entries, width), with the numbers `indices`: (*indices.shape, width); zeros for the number
    `padding_idx`, so that its row gets no gradient."""
    rows = ad.embedding_op(weight, indices)
    if padding_idx is None:
        return rows
    return ad.where_op(ad.expand_dims_op(ad.equal_op(indices, padding_idx), -1), 0.0, rows)


def one_hot(indices: Node, num_classes: int = -1, dtype: Any = "int64") -> Node:
    """Ones at the indices along a new last axis of extent `num_classes`, zeros elsewhere; -1: one more than the largest
    of the indices, which must hold data then."""
    if num_classes == -1:
        num_classes = int(np.asarray(indices).max(initial=-1)) + 1
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


def interpolate(x: Node, size: Any = None, scale_factor: Any = None, mode: str = "nearest") -> Node:
    """Images x (N, C, H, W), of known shape, with every element repeated `scale_factor` times, an integer or a pair
    (rows, columns). Raises GraphError; also for a size and for other modes, which are not supported."""
    if size is not None or mode != "nearest":
        raise GraphError('interpolate: only scale_factor and mode="nearest" are supported')
    batch, channels, height, width = _images("interpolate", x)
    rows, columns = pair("interpolate", "scale_factor", scale_factor, 1)
    wide = ad.broadcast_shape_op(
        ad.reshape_op(x, (batch, channels, height, 1, width, 1)), (batch, channels, height, rows, width, columns)
    )
    return ad.reshape_op(wide, (batch, channels, height * rows, width * columns))


def _images(function: str, x: Node) -> Shape:
    shape = _shape(function, x)
    if len(shape) != 4:
        raise GraphError(f"{function}: x must be images (N, C, H, W), not {shape}")
    return shape


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
