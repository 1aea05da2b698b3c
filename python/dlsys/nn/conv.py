"""Convolutions of sequences, NCL, and images, NCHW."""

from __future__ import annotations

import math
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from ..graph import Shape
from . import functional as F
from . import init
from .checks import checked_extent, extents, known_shape, pair, shown
from .module import Module


class _Conv(Module):
    """What all share; `transposed`: whether the weight's first axes are (in, out) instead of (out, in). Windows move
    along `_axes` axes."""

    _axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        geometry: tuple[Any, Any, Any],
        groups: int,
        bias: bool,
        dtype: str,
        transposed: bool,
    ) -> None:
        owner = type(self).__name__
        kernel_size, stride, dilation = geometry
        in_channels, out_channels, groups = (
            checked_extent(owner, name, value)
            for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups))
        )
        if in_channels % groups or out_channels % groups:
            raise GraphError(
                f"{owner}: {in_channels} and {out_channels} channels do not divide into {groups} groups"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = extents(owner, "kernel_size", kernel_size, 1, self._axes)
        self.stride = extents(owner, "stride", stride, 1, self._axes)
        self.dilation = extents(owner, "dilation", dilation, 1, self._axes)
        first, second = (in_channels, out_channels) if transposed else (out_channels, in_channels)
        self.weight = init.made((first, second // groups, *self.kernel_size), dtype, "weight")
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        self.bias = None
        if bias:
            bound = 1 / math.sqrt(init.fans(self.weight)[0])
            self.bias = init.uniform_(init.made((out_channels,), dtype, "bias"), -bound, bound)

    def _repr(self, padding: Any, more: str = "") -> str:
        settings = f"{self.in_channels} → {self.out_channels}, kernel_size={shown(self.kernel_size)}"
        settings += f", stride={shown(self.stride)}" if max(self.stride) > 1 else ""
        if isinstance(padding, str):
            settings += f", padding={padding!r}"
        elif max(padding):
            settings += f", padding={shown(padding)}"
        settings += more
        settings += f", dilation={shown(self.dilation)}" if max(self.dilation) > 1 else ""
        settings += f", groups={self.groups}" if self.groups != 1 else ""
        return settings + ("" if self.bias is not None else ", bias=False")


class _Forward(_Conv):
    """Cross-correlation."""

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
        *,
        dtype: str = "float32",
    ) -> None:
        """kernel_size, stride, padding, dilation: integers, or one of each axis (rows, columns). padding "valid" is 0,
        "same" as much as keeps the extents, which needs a stride of 1. Raises GraphError."""
        super().__init__(
            in_channels, out_channels, (kernel_size, stride, dilation), groups, bias, dtype, transposed=False
        )
        owner = type(self).__name__
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise GraphError(f'{owner}: padding must be "same", "valid" or integers, not {padding!r}')
        if padding == "same" and max(self.stride) > 1:
            raise GraphError(f'{owner}: padding="same" needs a stride of 1, not {shown(self.stride)}')
        self.padding: str | tuple[int, ...] = (
            padding if isinstance(padding, str) else extents(owner, "padding", padding, 0, self._axes)
        )

    def _padding(self) -> list[tuple[int, int]]:
        """(before, after) along each axis."""
        if self.padding == "same":
            totals = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            return [(total // 2, total - total // 2) for total in totals]
        return [(0, 0)] * self._axes if isinstance(self.padding, str) else [(p, p) for p in self.padding]

    def _padded(self, x: Node) -> tuple[Node, tuple[int, ...]]:
        """x, which must fit, and how much padding is to go on both sides of it, after that which does not."""
        padding = self._padding()
        self.require(self._fits(known_shape(x), padding), x)
        if any(before != after for before, after in padding):  # a window of even extent
            x, padding = ad.pad_op(x, [(0, 0), (0, 0), *padding]), [(0, 0)] * self._axes
        return x, tuple(before for before, _ in padding)

    def _fits(self, shape: Shape | None, padding: list[tuple[int, int]]) -> bool:
        if shape is None:
            return True
        if len(shape) != 2 + self._axes or shape[1] != self.in_channels:
            return False
        spans = zip(shape[2:], padding, self.kernel_size, self.dilation, strict=True)
        return all(n + sum(both) >= d * (k - 1) + 1 for n, both, k, d in spans)

    def extra_repr(self) -> str:
        return self._repr(self.padding)


class Conv1d(_Forward):
    """Cross-correlation: (N, in_channels, L) -> (N, out_channels, L'), L' = (L + 2 padding - dilation (kernel_size - 1)
    - 1) // stride + 1.

    Parameters: weight (out_channels, in_channels / groups, kernel_size), bias (out_channels,), uniform in
    +-1 / sqrt(fan_in) as in PyTorch.
    """

    _axes = 1

    def forward(self, x: Node) -> Node:
        x, padding = self._padded(x)
        return F.conv1d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv2d(_Forward):
    """Cross-correlation: (N, in_channels, H, W) -> (N, out_channels, H', W'), H' = (H + 2 padding - dilation
    (kernel_size - 1) - 1) // stride + 1.

    Parameters: weight (out_channels, in_channels / groups, *kernel_size), bias (out_channels,), uniform in
    +-1 / sqrt(fan_in) as in PyTorch.
    """

    def forward(self, x: Node) -> Node:
        x, padding = self._padded(x)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv(Conv2d):
    """needle's name for Conv2d with (kernel_size - 1) // 2 of padding, which keeps H and W at a stride of 1."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        bias: bool = True,
        *,
        dtype: str = "float32",
    ) -> None:
        """Raises GraphError."""
        (size,) = extents("Conv", "kernel_size", kernel_size, 1, 1)
        super().__init__(in_channels, out_channels, size, stride, (size - 1) // 2, bias=bias, dtype=dtype)


class ConvTranspose2d(_Conv):
    """Transposed convolution: (N, in_channels, H, W) -> (N, out_channels, H', W'), H' = (H - 1) stride - 2 padding +
    dilation (kernel_size - 1) + output_padding + 1.

    Parameters: weight (in_channels, out_channels / groups, *kernel_size), bias (out_channels,), uniform in
    +-1 / sqrt(fan_in), where PyTorch takes out_channels / groups for the channels of fan_in.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        *,
        dtype: str = "float32",
    ) -> None:
        """All but channels, groups and bias are integers or pairs (rows, columns); output_padding is less than stride.
        Raises GraphError."""
        super().__init__(
            in_channels, out_channels, (kernel_size, stride, dilation), groups, bias, dtype, transposed=True
        )
        self.padding = pair("ConvTranspose2d", "padding", padding, 0)
        self.output_padding = pair("ConvTranspose2d", "output_padding", output_padding, 0)
        if any(rest >= step for rest, step in zip(self.output_padding, self.stride, strict=True)):
            raise GraphError(
                f"ConvTranspose2d: output_padding {self.output_padding} must be less than stride {self.stride}"
            )

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or (len(shape) == 4 and shape[1] == self.in_channels), x)
        return F.conv_transpose2d(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )

    def extra_repr(self) -> str:
        more = f", output_padding={shown(self.output_padding)}" if self.output_padding != (0, 0) else ""
        return self._repr(self.padding, more)
