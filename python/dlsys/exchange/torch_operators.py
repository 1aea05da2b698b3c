"""The operators of torch.export by ours: functions with PyTorch's arguments, by the names of ATen.

Tensors are nodes, dtypes are names, shapes are known. Most are methods of tensors, whose names, arguments and meaning
are PyTorch's: here stand the others. See https://docs.pytorch.org/docs/stable/torch.compiler_ir.html.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import autodiff as ad
from .. import tensors
from ..autodiff import Node
from ..errors import GraphError
from ..nn import functional
from ..nn.recurrent import GATES, over_layers
from ..tensors import Tensor, dtype_of, shape_of
from . import composed, resampling
from .composed import Windows

OPERATORS: dict[str, Callable[..., Any]] = {}


def operator_named(name: str) -> Callable[..., Any] | None:
    """The operator of this name; None for one that is not known."""
    found = OPERATORS.get(name) or getattr(Tensor, name, None)
    return found if callable(found) else None


def operator(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a function is the operator of these names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return enter


def _at(x: Node, dim: int, item: Any) -> Node:
    return x[(slice(None),) * (dim % len(shape_of(x))) + (item,)]


OPERATORS |= {
    "_unsafe_view": Tensor.view,
    "add": lambda a, b, alpha=1: Tensor.add(a, b if alpha == 1 else b * alpha),
    **dict.fromkeys(("alias", "clone", "contiguous", "detach", "lift_fresh_copy"), lambda x: x),
    "bitwise_and": lambda a, b: a & b,
    "bitwise_not": lambda x: ~x,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "clamp_min": Tensor.clamp,
    "embedding": lambda weight, indices, *unused: ad.embedding_op(weight, indices),
    "getitem": lambda values, at: values[at],
    "hardtanh": lambda x, low=-1.0, high=1.0: ad.clip_op(x, low, high),
    "elu": lambda x, alpha=1.0, scale=1.0, inputs=1.0: functional.elu(x * inputs, alpha) * scale,
    "group_norm": lambda x, groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True: functional.group_norm(
        x, groups, weight, bias, eps
    ),
    "layer_norm": lambda x, *given, cudnn_enable=True: functional.layer_norm(x, *given[:4]),
    "linalg_vector_norm": lambda x, p=2, dim=None, keepdim=False: Tensor.norm(x, p, dim, keepdim),
    "reciprocal": lambda x: 1.0 / x,
    "rsub": lambda a, b, alpha=1: b - a * alpha,
    "scalar_tensor": lambda value, dtype="float32": tensors.full((), value, dtype=dtype),
    "select": _at,
    "slice": lambda x, dim=0, start=None, end=None, step=1: _at(x, dim, slice(start, end, step)),
    "sym_size": lambda x, dim: shape_of(x)[dim],
    "_assert_scalar": lambda *given: None,
    "_assert_tensor_metadata": lambda *given, **named: None,
    "sub": lambda a, b, alpha=1: Tensor.sub(a, b if alpha == 1 else b * alpha),
    "split_with_sizes": lambda x, sizes, dim=0: Tensor.split(x, list(sizes), dim),
    "full_like": lambda x, value, dtype=None: tensors.full(shape_of(x), value, dtype=dtype or dtype_of(x)),
}
_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(tensors.arange, tensors.cat, tensors.full, tensors.ones, tensors.ones_like, tensors.stack),
    *(tensors.where, tensors.zeros, tensors.zeros_like),
    *(functional.adaptive_avg_pool2d, functional.conv1d, functional.conv2d),
    *(functional.gelu, functional.hardsigmoid, functional.hardswish, functional.leaky_relu),
    *(functional.linear, functional.relu6, functional.silu, functional.softplus),
)
OPERATORS |= {function.__name__: function for function in _FUNCTIONS}


@operator("_to_copy", "to", "type_as")
def to(x: Node, *given: Any, dtype: Any = None, copy: bool = False, non_blocking: bool = False) -> Node:
    """x in another dtype."""
    wanted = dtype or next((value for value in given if isinstance(value, str)), None)
    return x if wanted is None else ad.cast_op(x, wanted)


def _each(value: Any, space: int) -> list[int]:
    """A setting of each axis, given for all or for each."""
    found = [value] if isinstance(value, int) else list(value)
    return found * space if len(found) == 1 else found


def _windows(kernel: Sequence[int], stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    strides, widths, dilations = (_each(value, len(kernel)) for value in (stride, padding, dilation))
    return Windows(kernel, strides, [(p, p) for p in widths], dilations)


@operator("conv_transpose2d", "conv_transpose1d")
def conv_transposed(
    x: Node,
    weight: Node,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Node:
    """The gradient of a convolution with respect to its images or signals."""
    windows = _windows(shape_of(weight)[2:], stride, padding, dilation)
    more = _each(output_padding, len(windows.kernel))
    return composed.convolution_transposed(x, weight, bias, windows, more, groups)


def _upsample(name: str, mode: str) -> None:
    """Enters an upsampling operator by PyTorch's name, in a mode of `interpolate`."""

    def resized(x: Node, size: Any, *given: Any, **named: Any) -> Node:
        """`given`: whether corners are aligned, for "bilinear", and the factors of the axes, which may be None."""
        corners = bool(named.get("align_corners", given[0])) if mode == "bilinear" else None
        factors = [*given, *(v for key, v in named.items() if key.startswith("scale"))][mode == "bilinear" :]
        factors = list(factors[0]) if len(factors) == 1 and isinstance(factors[0], list) else factors
        if size is not None:
            sized = functional.interpolate(x, tuple(size), mode=mode, align_corners=corners)
            if all(factor is None for factor in factors):
                return sized
        found = functional.interpolate(x, scale_factor=tuple(factors), mode=mode, align_corners=corners)
        if size is not None and shape_of(found) != shape_of(sized):  # of which the size was computed
            raise GraphError(f"upsampling by {factors} to {list(size)} is not supported")
        return found

    operator(name)(resized)


_upsample("upsample_nearest1d", "nearest")
_upsample("upsample_nearest2d", "nearest")
_upsample("upsample_bilinear2d", "bilinear")


@operator("pad", "constant_pad_nd")
def padded(x: Node, widths: Sequence[int], mode: Any = "constant", value: Any = None) -> Node:
    """x with a number around it, or with its own elements; `constant_pad_nd` has the number in the mode's place."""
    if not isinstance(mode, str):
        mode, value = "constant", mode
    return functional.pad(x, list(widths), mode, 0.0 if value is None and mode == "constant" else value)


@operator("grid_sampler")
def grid_sampler(x: Node, grid: Node, mode: int, padding: int, align_corners: bool) -> Node:
    """Images at the places of a grid."""
    kinds = ("linear", "nearest", "cubic")[mode], ("zeros", "border", "reflection")[padding]
    return resampling.grid_sample(x, grid, *kinds, align_corners)


@operator("max_pool2d", "max_pool1d")
def max_pool(
    x: Node, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """The maxima of windows of images or signals."""
    widths = _each(kernel, len(shape_of(x)) - 2)
    windows = _windows(widths, stride or widths, padding, dilation)
    if set(windows.dilations) != {1}:
        raise GraphError("max_pool2d: dilations are not supported")
    return composed.pool(x, windows, ceil_mode)


@operator("avg_pool2d", "avg_pool1d")
def mean_pool(
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Node:
    """The means of windows of images or signals."""
    if divisor_override is not None:
        raise GraphError("avg_pool2d: divisor_override is not supported")
    widths = _each(kernel, len(shape_of(x)) - 2)
    return composed.pool(x, _windows(widths, stride or widths, padding), ceil_mode, count_include_pad)


@operator("_native_batch_norm_legit_no_training")
def batch_norm(
    x: Node, weight: Node, bias: Node, mean: Node, variance: Node, momentum: float, eps: float
) -> tuple[Node]:
    """x normalized by known statistics."""
    return (functional.batch_norm(x, mean, variance, weight, bias, eps=eps),)


@operator("instance_norm")
def instance_norm(
    x: Node, weight: Any, bias: Any, mean: Any, variance: Any, of_input: bool, momentum: float, eps: float, *unused: Any
) -> Node:
    """x normalized over its places, or by known statistics."""
    if of_input:
        return functional.group_norm(x, shape_of(x)[1], weight, bias, eps)
    return functional.batch_norm(x, mean, variance, weight, bias, eps=eps)


@operator("dropout")
def dropout(x: Node, p: float, train: bool) -> Node:
    """x itself, in evaluation."""
    if train:
        raise GraphError("dropout is read for inference only: export the model after model.eval()")
    return x


@operator("index")
def indexed(x: Node, indices: Sequence[Node | None]) -> Node:
    """The elements of x at these indices, along each axis that has some."""
    return x[tuple(slice(None) if index is None else index for index in indices)]


@operator("copy")
def copied(x: Node, source: Node, non_blocking: bool = False) -> Node:
    """The source in x's shape and dtype."""
    return ad.cast_op(ad.broadcast_shape_op(source, shape_of(x)), dtype_of(x))


@operator("slice_scatter")
def slice_scattered(x: Node, source: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Node:
    """x with the source in place of a slice."""
    extent, axis = shape_of(x)[dim], dim % len(shape_of(x))
    first, last, _ = slice(start, end).indices(extent)
    if step != 1:
        raise GraphError("slice_scatter: steps are not supported")
    parts = [_at(x, axis, slice(0, first)), source, _at(x, axis, slice(max(first, last), extent))]
    return ad.concatenate_op([part for part in parts if shape_of(part)[axis]] or [x], axis)


@operator("scaled_dot_product_attention")
def attention(
    query: Node,
    key: Node,
    value: Node,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Node:
    """softmax(scale query key^T + mask) value."""
    if dropout_p or enable_gqa:
        raise GraphError("scaled_dot_product_attention: dropout_p and enable_gqa are not supported")
    return functional.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale)


def _recurrent(name: str, kind: str, nonlinearity: str = "tanh") -> None:
    """Enters a recurrent operator of several layers, "RNN", "LSTM" or "GRU", by PyTorch's name."""

    def layers(
        x: Node,
        hx: Any,
        weights: Sequence[Node],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Node, ...]:
        if train and dropout:
            raise GraphError(f"{name}: dropout is read for inference only")
        given = [hx] if isinstance(hx, Node) else list(hx)
        each, ways = 4 if has_biases else 2, 1 + bidirectional
        own = [[*weights[i : i + each], None, None][:4] for i in range(0, len(weights), each)]
        gates = [GATES[kind](weight, nonlinearity) for weight in own]
        layers = [gates[i * ways : (i + 1) * ways] for i in range(num_layers)]
        start = [tuple(value[i] for value in given) for i in range(num_layers * ways)]
        x, finals = over_layers(layers, ad.swapaxes_op(x, 0, 1) if batch_first else x, start, lambda x: x)
        return ad.swapaxes_op(x, 0, 1) if batch_first else x, *finals

    operator(name)(layers)


_recurrent("lstm", "LSTM")
_recurrent("gru", "GRU")
_recurrent("rnn_tanh", "RNN")
_recurrent("rnn_relu", "RNN", "relu")
