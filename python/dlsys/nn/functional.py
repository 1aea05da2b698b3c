"""Layers as functions, by the names and in the argument order of torch.nn.functional; all return nodes.

Some need a shape when they are called: of tensors it is known, of a `Variable` where it is declared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DlsysError, DTypeError
from ..graph import INTEGERS
from ..random import default_generator
from ..tensors import dtype_of, known_dtype, known_shape, tensor
from . import functional_activation as activations
from . import functional_loss as losses
from . import functional_norm as norms
from . import functional_windows as windows
from .checks import checked_share, shape_of

gelu = activations.gelu
leaky_relu = activations.leaky_relu
log_softmax = activations.log_softmax
relu = activations.relu
relu6 = activations.relu6
sigmoid = activations.sigmoid
silu = activations.silu
softmax = activations.softmax
tanh = activations.tanh
adaptive_avg_pool2d = windows.adaptive_avg_pool2d
avg_pool2d = windows.avg_pool2d
conv2d = windows.conv2d
max_pool2d = windows.max_pool2d
pad = windows.pad
batch_norm = norms.batch_norm
layer_norm = norms.layer_norm
binary_cross_entropy_with_logits = losses.binary_cross_entropy_with_logits
cross_entropy = losses.cross_entropy
mse_loss = losses.mse_loss
nll_loss = losses.nll_loss
def linear(input: Node, weight: Node, bias: Node | None = None) -> Node:
    """x W^T + b: (..., in), (out, in), (out,) -> (..., out)."""
    product = ad.matmul_op(input, weight, trans_B=True)
    return product if bias is None else product + bias


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


def embedding(input: Node, weight: Node, padding_idx: int | None = None) -> Node:
    """The rows of `weight`, (entries, width), with the numbers `input`: (*input.shape, width); zeros for the number
    `padding_idx`, from the end where it is negative, so that its row gets no gradient."""
    if known_dtype(input) not in (None, *INTEGERS):
        raise DTypeError(f"embedding: {input.name} must be of integers, not {known_dtype(input)}: use .long()")
    rows = ad.embedding_op(weight, input)
    if padding_idx is None:
        return rows
    if padding_idx < 0:
        padding_idx += shape_of("embedding", weight)[0]
    return ad.where_op(ad.expand_dims_op(ad.equal_op(input, padding_idx), -1), 0.0, rows)


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
) -> Node:
    """softmax(q k^T scale) v: (..., L, d), (..., S, d), (..., S, e) -> (..., L, e): Vaswani et al. (2017).

    Args:
        attn_mask: broadcasts to (..., L, S); booleans of a known dtype say which keys a query sees, where it sees none
            the result is 0; floats are added to the scores.
        dropout_p: with which probability a weight is dropped, see `dropout`.
        is_causal: query i sees the keys up to i alone; the shapes of q and k must be known then.
        scale: None is 1 / sqrt(d).

    Raises GraphError, ShapeError.
    """
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


def _is_bool(node: Node) -> bool:
    try:
        return dtype_of(node) == "bool"
    except DlsysError:
        return False
