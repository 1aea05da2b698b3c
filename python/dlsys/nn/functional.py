"""Layers as functions, by the names and in the argument order of torch.nn.functional; all return nodes.

Some need a shape when they are called: of tensors it is known, of a `Variable` where it is declared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import dtype_of, known_shape, tensor
from ..eager.running import is_data
from ..errors import DlsysError, GraphError, ShapeError
from ..ops.function import function_op
from ..random import default_generator
from . import functional_activation as activations
from . import functional_loss as losses
from . import functional_norm as norms
from . import functional_ranking as ranking
from . import functional_space as space
from . import functional_volume as volume
from . import functional_windows as windows
from .checks import checked_share, shape_of

alpha_dropout = activations.alpha_dropout
celu = activations.celu
elu = activations.elu
gelu = activations.gelu
glu = activations.glu
gumbel_softmax = activations.gumbel_softmax
hardshrink = activations.hardshrink
hardsigmoid = activations.hardsigmoid
hardswish = activations.hardswish
hardtanh = activations.hardtanh
leaky_relu = activations.leaky_relu
log_softmax = activations.log_softmax
logsigmoid = activations.logsigmoid
mish = activations.mish
normalize = activations.normalize
prelu = activations.prelu
relu = activations.relu
relu6 = activations.relu6
rrelu = activations.rrelu
selu = activations.selu
sigmoid = activations.sigmoid
silu = activations.silu
softmax = activations.softmax
softmin = activations.softmin
softplus = activations.softplus
softshrink = activations.softshrink
softsign = activations.softsign
tanh = activations.tanh
tanhshrink = activations.tanhshrink
threshold = activations.threshold

adaptive_avg_pool1d = windows.adaptive_avg_pool1d
adaptive_avg_pool2d = windows.adaptive_avg_pool2d
adaptive_max_pool1d = windows.adaptive_max_pool1d
adaptive_max_pool2d = windows.adaptive_max_pool2d
adaptive_avg_pool3d = volume.adaptive_avg_pool3d
avg_pool1d = windows.avg_pool1d
avg_pool2d = windows.avg_pool2d
avg_pool3d = volume.avg_pool3d
conv1d = windows.conv1d
conv2d = windows.conv2d
conv3d = volume.conv3d
conv_transpose1d = windows.conv_transpose1d
conv_transpose2d = windows.conv_transpose2d
max_pool1d = windows.max_pool1d
max_pool2d = windows.max_pool2d
max_pool3d = volume.max_pool3d
max_unpool1d = windows.max_unpool1d
max_unpool2d = windows.max_unpool2d

channel_shuffle = space.channel_shuffle
fold = space.fold
interpolate = space.interpolate
pad = space.pad
pixel_shuffle = space.pixel_shuffle
pixel_unshuffle = space.pixel_unshuffle
unfold = space.unfold

batch_norm = norms.batch_norm
group_norm = norms.group_norm
instance_norm = norms.instance_norm
layer_norm = norms.layer_norm
local_response_norm = norms.local_response_norm
rms_norm = norms.rms_norm

binary_cross_entropy = losses.binary_cross_entropy
binary_cross_entropy_with_logits = losses.binary_cross_entropy_with_logits
cross_entropy = losses.cross_entropy
gaussian_nll_loss = losses.gaussian_nll_loss
huber_loss = losses.huber_loss
kl_div = losses.kl_div
l1_loss = losses.l1_loss
mse_loss = losses.mse_loss
nll_loss = losses.nll_loss
poisson_nll_loss = losses.poisson_nll_loss
smooth_l1_loss = losses.smooth_l1_loss
soft_margin_loss = losses.soft_margin_loss

cosine_embedding_loss = ranking.cosine_embedding_loss
cosine_similarity = ranking.cosine_similarity
hinge_embedding_loss = ranking.hinge_embedding_loss
margin_ranking_loss = ranking.margin_ranking_loss
multi_margin_loss = ranking.multi_margin_loss
pairwise_distance = ranking.pairwise_distance
triplet_margin_loss = ranking.triplet_margin_loss
triplet_margin_with_distance_loss = ranking.triplet_margin_with_distance_loss


def linear(input: Node, weight: Node, bias: Node | None = None) -> Node:
    """x W^T + b: (..., in), (out, in), (out,) -> (..., out)."""
    product = ad.matmul_op(input, weight, trans_B=True)
    return product if bias is None else product + bias


def bilinear(input1: Node, input2: Node, weight: Node, bias: Node | None = None) -> Node:
    """y_k = x1 W_k x2 + b_k: (..., n), (..., m), (out, n, m), (out,) -> (..., out), of known shapes. Raises GraphError,
    ShapeError."""
    first, second, (out, n, m) = (shape_of("bilinear", x) for x in (input1, input2, weight))
    if first[:-1] != second[:-1] or (first[-1:], second[-1:]) != ((n,), (m,)):
        raise ShapeError(f"bilinear: inputs {first} and {second} do not fit a weight {(out, n, m)}")
    rows = ad.reshape_op(input1, (-1, n)) if first[:-1] else ad.reshape_op(input1, (1, n))
    wide = ad.matmul_op(rows, ad.reshape_op(ad.transpose_op(weight, (1, 0, 2)), (n, out * m)))
    products = ad.reshape_op(wide, (*first[:-1], out, m)) * ad.expand_dims_op(input2, -2)
    y = ad.reducesum_op(products, -1)
    return y if bias is None else y + bias


def dropout(
    input: Node, p: float = 0.5, training: bool = True, inplace: bool = False, *, key: Node | None = None
) -> Node:
    """x with elements set to 0 with probability p, the others divided by 1 - p; x itself without `training`.

    `key`: see `autodiff.dropout_op`; None takes a stream of `dlsys.random.default_generator`, of which each run draws
    anew. Raises GraphError for a p outside [0, 1].
    """
    p = checked_share("dropout", "p", p)
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0.0
    if key is not None:
        return ad.dropout_op(input, key, p)
    return default_generator.drawing(ad.dropout_op(input, default_generator.key(), p))


def dropout1d(input: Node, p: float = 0.5, training: bool = True, inplace: bool = False) -> Node:
    """`dropout` of whole channels of x (N, C, L) or (C, L), of known shape and dtype. Raises GraphError."""
    return _channels_dropped("dropout1d", input, 1, p, training)


def dropout2d(input: Node, p: float = 0.5, training: bool = True, inplace: bool = False) -> Node:
    """`dropout` of whole channels of x (N, C, H, W), or (N, C, L), of known shape and dtype. Raises GraphError."""
    return _channels_dropped("dropout2d", input, 2, p, training)


def _channels_dropped(function: str, x: Node, axes: int, p: float, training: bool) -> Node:
    if not training or p == 0:
        return dropout(x, p, training)
    shape = shape_of(function, x)
    kept = {1: {2: 1, 3: 2}, 2: {3: 2, 4: 2, 5: 2}}[axes].get(len(shape))
    if kept is None:
        raise GraphError(f"{function}: x must be (N, C, ...), not {shape}")
    return x * dropout(ad.full_op((*shape[:kept], *(1,) * (len(shape) - kept)), 1.0, dtype_of(x)), p)


def embedding(
    input: Node,
    weight: Node,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Node:
    """The rows of `weight`, (entries, width), with the numbers `input`: (*input.shape, width); zeros for the number
    `padding_idx`, from the end where it is negative, so that its row gets no gradient.

    max_norm: rows among them of a larger norm, the sum of |w|^norm_type to the power of 1 / norm_type, are scaled to
    it, in `weight` itself, a leaf, when this is called; the numbers must be data then. scale_grad_by_freq: gradients of
    rows are divided by how often they are among them. `sparse` changes nothing. Raises GraphError.
    """
    if max_norm is not None:
        _renorm_rows(weight, input, max_norm, norm_type)
    rows = ad.embedding_op(weight, input)
    if scale_grad_by_freq:
        shares = _shares(input, rows)
        rows = function_op(rows, [rows], lambda grad: [grad * shares])
    if padding_idx is None:
        return rows
    if padding_idx < 0:
        padding_idx += shape_of("embedding", weight)[0]
    return ad.where_op(ad.expand_dims_op(ad.equal_op(input, padding_idx), -1), 0.0, rows)


def _renorm_rows(weight: Node, indices: Node, max_norm: float, p: float) -> None:
    """See `embedding`."""
    for key, value in (("max_norm", max_norm), ("norm_type", p)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise GraphError(f"embedding: {key} must be a number > 0, not {value!r}")
    if not isinstance(weight, ad.Parameter) or not is_data(indices):
        raise GraphError("embedding: max_norm changes the weight at the call: it must be a leaf, the indices data")
    table = weight.value
    used = np.unique(np.asarray(indices).astype(np.int64))
    used = used[(used >= 0) & (used < len(table))]
    norms = np.linalg.norm(table[used], p, axis=-1)
    if (norms > max_norm).any():
        long, length = used[norms > max_norm], norms[norms > max_norm]
        table[long] *= (max_norm / (length + 1e-7)).astype(table.dtype)[:, None]
        weight.value = table


def _shares(indices: Node, rows: Node) -> Node:
    """1 / how often each of the numbers is among them, along a last axis of its own."""
    flat = ad.reshape_op(indices, (-1,))
    if is_data(indices):
        _, inverse, counts = np.unique(np.asarray(flat), return_inverse=True, return_counts=True)
        found: Node = tensor(counts[inverse.reshape(-1)].astype(np.float32))
    else:
        found = ad.reducesum_op(ad.cast_op(ad.equal_op(ad.expand_dims_op(flat, 1), flat), "float32"), 1)
    return ad.cast_like_op(ad.reciprocal_op(ad.expand_dims_op(ad.reshape_like_op(found, indices), -1)), rows)


def one_hot(indices: Node, num_classes: int = -1, dtype: Any = "int64") -> Node:
    """Ones at the indices along a new last axis of extent `num_classes`, zeros elsewhere; -1: one more than the largest
    of the indices, which must hold data then."""
    if num_classes == -1:
        num_classes = int(np.asarray(indices).max(initial=-1)) + 1
    return ad.one_hot_op(indices, num_classes, dtype)


def scaled_dot_product_attention(
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    """softmax(q k^T scale) v: (..., L, d), (..., S, d), (..., S, e) -> (..., L, e): Vaswani et al. (2017).

    Args:
        attn_mask: broadcasts to (..., L, S); booleans of a known dtype say which keys a query sees, where it sees none
            the result is 0; floats are added to the scores.
        dropout_p: with which probability a weight is dropped, see `dropout`.
        is_causal: query i sees the keys up to i alone; the shapes of q and k must be known then.
        scale: None is 1 / sqrt(d).
        enable_gqa: whether k and v, of known shapes, may have fewer heads, axis -3, each for several of q's in turn.

    Raises GraphError, ShapeError.
    """
    if enable_gqa:
        heads = shape_of("scaled_dot_product_attention", query)[-3]
        key, value = _repeated_heads(key, heads), _repeated_heads(value, heads)
    shape = known_shape(query)
    if scale is not None:
        q = query * scale
    elif shape is None:
        one = ad.cast_like_op(ad.full_op((), 1.0), query)
        q = query * ad.sqrt_op(ad.div_by_extent_op(one, query, -1))
    else:
        q = query / math.sqrt(shape[-1])
    scores = ad.matmul_op(q, key, trans_B=True)
    seen = None
    if attn_mask is not None and _is_bool(attn_mask):
        seen = attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        rows, columns = (shape_of("scaled_dot_product_attention", x)[-2] for x in (query, key))
        before = tensor(np.tri(rows, columns, dtype=bool), name="causal_mask")
        scores = ad.where_op(before, scores, -math.inf)
    if seen is not None:
        scores = ad.where_op(seen, scores, -math.inf)
    weights = ad.softmax_op(scores)
    if seen is not None:
        weights = ad.where_op(seen, weights, 0.0)  # the softmax of nothing seen is NaN
    return ad.matmul_op(dropout(weights, dropout_p), value)


def _repeated_heads(x: Node, heads: int) -> Node:
    """(..., H, S, d) as (..., heads, S, d), each head several times. Raises ShapeError."""
    shape = shape_of("scaled_dot_product_attention", x)
    if len(shape) < 3 or not shape[-3] or heads % shape[-3]:
        raise ShapeError(f"scaled_dot_product_attention: {heads} heads are no multiple of those of {shape}")
    times = heads // shape[-3]
    wide = ad.broadcast_shape_op(ad.expand_dims_op(x, -3), (*shape[:-2], times, *shape[-2:]))
    return ad.reshape_op(wide, (*shape[:-3], heads, *shape[-2:]))


def _is_bool(node: Node) -> bool:
    try:
        return dtype_of(node) == "bool"
    except DlsysError:
        return False
