"""Images NHWC in place of NCHW: which operators take them, and how.

From one convolution to the next images stay in that order; a transpose stands where an operator needs the other one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..devices.panels import filter_columns
from ..graph import OPS, Node, Shape
from ..ops.conv import geometry_of
from ..tensors import tensor
from . import winograd
from .operators import LAST, conv2d_panels_op, conv2d_planes_op, filters_in_panels, pool_last_op

PANELS, WINOGRAD = 0.1, 0.45  # of a convolution's operations in the other order, the part that this one saves
PLANES = 8.0  # operations a byte that channels apart save: they take twice the time in the other order
BYTE = 12.0  # operations in the time that moving a byte takes
TAPS = 25  # of a plane's filter, which is one expression


@dataclass(frozen=True)
class Last:
    """Images in the order NHWC."""

    node: Node


@dataclass(frozen=True)
class Way:
    """How to convolve images NHWC, and the operations in whose time that is faster than NCHW, as measured over ResNets,
    DenseNet, MobileNet, SqueezeNet, ShuffleNet."""

    of: Callable[[Node], Node]
    saved: float = 0.0


def turned(value: np.ndarray | Node, shape: Shape, name: str | None = None) -> Node:
    """Images NCHW, or what is broadcast to them, in the order NHWC; numbers along the channels alone as (C,). What is
    known becomes a leaf of this name."""
    if math.prod(shape) == 1:
        return tensor(value.reshape(()), name=name) if isinstance(value, np.ndarray) else ad.reshape_op(value, ())
    whole = (1,) * (4 - len(shape)) + shape
    if isinstance(value, np.ndarray):
        found = np.ascontiguousarray(value.reshape(whole).transpose(LAST))
        return tensor(found.reshape(-1) if found.size == whole[1] else found, name=name)
    if len(shape) != 4:
        value = ad.reshape_op(value, whole)
    if whole[2:] == (1, 1):
        return ad.reshape_op(value, (whole[0], 1, 1, whole[1]))  # moves nothing
    return ad.transpose_op(value, LAST)


def convolution(
    conv: Node, filters: np.ndarray, images: Shape, shape: Shape, name: str | None = None
) -> Way | None:
    """How to convolve images NHWC, that are `images` in the order NCHW, with known filters, a leaf of this name, to
    `shape`; None for what is not done in that order."""
    stride, padding, dilation, groups = geometry = geometry_of(conv)
    if filters.dtype != np.float32 or 0 in shape or 0 in images:
        return None
    if groups > 1:
        if not groups == images[1] == len(filters) or math.prod(filters.shape[2:]) > TAPS:
            return None
        f = tensor(np.ascontiguousarray(filters[:, 0].transpose(1, 2, 0)), name=name)
        moved = 4 * (math.prod(images) + math.prod(shape))
        return Way(lambda x: conv2d_planes_op(x, f, groups, stride, padding, dilation), PLANES * moved)
    operations = 2 * math.prod(shape) * math.prod(filters.shape[1:])
    if winograd.takes(geometry, filters.shape) and winograd.pays(images, filters.shape):
        way = partial(winograd.convolution, images=images, filters=filters, name=name)
        return Way(way, WINOGRAD * operations)
    width = filter_columns((shape[2], shape[3]), len(filters), "float32")
    if geometry == ((1, 1), (0, 0), (1, 1), 1) and filters.shape[2:] == (1, 1) and (not width or shape[2:] == (1, 1)):
        matrix = tensor(np.ascontiguousarray(filters[:, :, 0, 0].T), name=name)  # whose last panel may be narrow
        if shape[0] > 1 and shape[2:] == (1, 1):  # of squeeze-and-excitation: an image is a row
            rows = -1, images[1]
            return Way(lambda x: ad.reshape_op(ad.matmul_op(ad.reshape_op(x, rows), matrix), (-1, 1, 1, shape[1])))
        return Way(lambda x: ad.matmul_op(x, matrix))  # as they lie, so that what follows is part of its kernel
    if not width:
        return None
    panels = tensor(filters_in_panels(filters, width), name=name)
    rest = len(filters), stride, padding, dilation
    return Way(lambda x: conv2d_panels_op(x, panels, *rest), PANELS * operations)


def followed(node: Node, shape: Shape) -> Callable[[list[Node]], Last | Node] | None:
    """How to compute a node, of `shape` in the order NCHW, of inputs NHWC; None for what needs the order NCHW."""
    attrs: dict[str, Any] = node.attrs
    is_pointwise = node.op.kind == "elementwise" and node.op is not OPS["broadcast_shape"]
    if is_pointwise and len(shape) == 4:
        return lambda inputs: Last(node.op(*inputs, **attrs))
    if node.op is OPS["concatenate"]:
        at = LAST.index(attrs["axis"])
        return lambda inputs: Last(node.op(*inputs, **{**attrs, "axis": at}))
    if node.op in (OPS["max_pool2d"], OPS["avg_pool2d"]) and math.prod(attrs["kernel"]) <= TAPS:
        return lambda inputs: Last(pool_last_op(inputs[0], **attrs, mean=node.op is OPS["avg_pool2d"]))
    if node.op is OPS["reducesum"] and attrs["axes"] == (2, 3):
        return partial(_over_places, keepdims=attrs["keepdims"])
    return None


def _over_places(inputs: list[Node], keepdims: bool) -> Last | Node:
    """The sum over the places of images."""
    found = ad.sum_op(inputs[0], (1, 2), keepdims=keepdims)
    return Last(found) if keepdims else found
