"""Convolution of images, NCHW; N may be left out where the shape is known."""

from __future__ import annotations

import math
from typing import Any

from ..autodiff import Node
from ..checks import integer, pair
from ..errors import GraphError
from ..graph import Shape
from . import functional as F
from . import init
from .checks import known_shape, placed
from .module import Module


class Conv2d(Module):
    """Cross-correlation: (N, in_channels, H, W) -> (N, out_channels, H', W'), H' = (H + 2 padding - dilation
    (kernel_size - 1) - 1) // stride + 1.

    Parameters: weight (out_channels, in_channels / groups, *kernel_size), bias (out_channels,), uniform in
    +-1 / sqrt(fan_in) as in PyTorch.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """Integers, or pairs (rows, columns). Group i of the filters sees group i of the channels. Raises GraphError,
        also for a padding_mode other than "zeros"."""
        dtype = placed(device, dtype)
        self.in_channels = in_channels = integer("Conv2d", "in_channels", in_channels, 1)
        self.out_channels = out_channels = integer("Conv2d", "out_channels", out_channels, 1)
        self.groups = groups = integer("Conv2d", "groups", groups, 1)
        if in_channels % groups or out_channels % groups:
            raise GraphError(f"Conv2d: {in_channels} and {out_channels} channels do not divide into {groups} groups")
        if padding_mode != "zeros":
            raise GraphError(f'Conv2d: padding_mode must be "zeros", not {padding_mode!r}')
        self.kernel_size = pair("Conv2d", "kernel_size", kernel_size, 1)
        self.stride = pair("Conv2d", "stride", stride, 1)
        self.dilation = pair("Conv2d", "dilation", dilation, 1)
        self.padding = pair("Conv2d", "padding", padding, 0)
        self.weight = init.made((out_channels, in_channels // groups, *self.kernel_size), dtype, "weight")
        self.bias = init.made((out_channels,), dtype, "bias") if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(init.fans(self.weight)[0])
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Node) -> Node:
        self.require(self._fits(known_shape(x)), x)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def _fits(self, shape: Shape | None) -> bool:
        """Whether it is (N, in_channels, H, W), or without N, and a window fits into what is padded."""
        if shape is None:
            return True
        if len(shape) not in (3, 4) or shape[-3] != self.in_channels:
            return False
        spans = zip(shape[-2:], self.padding, self.kernel_size, self.dilation, strict=True)
        return all(n + 2 * p >= d * (k - 1) + 1 for n, p, k, d in spans)
