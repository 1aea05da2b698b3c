"""Maxima and means of windows of images."""

from __future__ import annotations

from typing import Any

from ... import autodiff as ad
from ...autodiff import Node
from ...checks import flag
from ...errors import GraphError
from ...tensors import Tensor


def max_pool2d(input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """The maxima of windows of images (N, C, H, W). Raises GraphError."""
    return ad.max_pool2d_op(input, kernel_size, stride, padding)


def avg_pool2d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The means of windows of images (N, C, H, W), see `autodiff.avg_pool2d_op`. Raises GraphError."""
    if flag("avg_pool2d", "ceil_mode", ceil_mode):
        raise GraphError("avg_pool2d: ceil_mode is not supported: pad the images")
    return ad.avg_pool2d_op(input, kernel_size, stride, padding, count_include_pad)


def adaptive_avg_pool2d(input: Node, output_size: Any) -> Tensor:
    """The means of equal windows of images (N, C, H, W): (N, C, *output_size). Raises GraphError, and ShapeError where
    H and W are no multiples of it."""
    return ad.adaptive_avg_pool2d_op(input, output_size)
