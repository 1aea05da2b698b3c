"""Layers as functions, by the names and in the argument order of torch.nn.functional; all return nodes.

Some need a shape when they are called: of tensors it is known, of a `Variable` where it is declared.
"""

from __future__ import annotations

from ...tensors.elementwise import relu as relu, sigmoid as sigmoid, tanh as tanh
from ...tensors.reductions import log_softmax as log_softmax, softmax as softmax
from .activations import (
    dropout as dropout, elu as elu, gelu as gelu, glu as glu, hardsigmoid as hardsigmoid, hardswish as hardswish,
    hardtanh as hardtanh, leaky_relu as leaky_relu, logsigmoid as logsigmoid, mish as mish, prelu as prelu,
    relu6 as relu6, selu as selu, silu as silu, softplus as softplus, softsign as softsign,
)
from .attention import (
    causal_mask as causal_mask,
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from .embeddings import embedding as embedding, one_hot as one_hot
from .losses import (
    binary_cross_entropy as binary_cross_entropy, huber_loss as huber_loss,
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits, cross_entropy as cross_entropy,
    cosine_similarity as cosine_similarity, kl_div as kl_div, l1_loss as l1_loss, mse_loss as mse_loss,
    nll_loss as nll_loss, pairwise_distance as pairwise_distance, smooth_l1_loss as smooth_l1_loss,
    triplet_margin_loss as triplet_margin_loss,
)
from .norms import (
    batch_norm as batch_norm, group_norm as group_norm, layer_norm as layer_norm, normalize as normalize,
    rms_norm as rms_norm,
)
from .products import (
    adaptive_avg_pool2d as adaptive_avg_pool2d, avg_pool2d as avg_pool2d, conv1d as conv1d, conv2d as conv2d,
    conv_transpose2d as conv_transpose2d, linear as linear, max_pool2d as max_pool2d, unfold as unfold,
)
from .resizing import interpolate as interpolate, pad as pad, pixel_shuffle as pixel_shuffle
