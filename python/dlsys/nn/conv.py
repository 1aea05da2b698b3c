"""Convolutions of sequences, NCL, and images, NCHW; N may be left out where the shape is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from ..graph import Shape
from . import functional as F
from . import init
from .checks import checked_extent, extents, known_shape, shown
from .functional_windows import same_padding
from .module import Module

_MODES = ("zeros", "reflect", "replicate", "circular")


def _has_channels(shape: Shape, axes: int, channels: int) -> bool:
    """Whether it is (N, channels, *space), or without N, of so many axes of space."""
    return len(shape) in (1 + axes, 2 + axes) and shape[-1 - axes] == channels


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
        self.bias = init.made((out_channels,), dtype, "bias") if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(init.fans(self.weight)[0])
            init.uniform_(self.bias, -bound, bound)

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
        padding_mode: str = "zeros",
        *,
        dtype: str = "float32",
    ) -> None:
        """kernel_size, stride, padding, dilation: integers, or one of each axis (rows, columns). padding "valid" is 0,
        "same" as much as keeps the extents, which needs a stride of 1. padding_mode: what is there, "zeros", or
        "reflect", "replicate" or "circular", see `functional.pad`. Raises GraphError."""
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
        if padding_mode not in _MODES:
            known = ", ".join(f'"{mode}"' for mode in _MODES)
            raise GraphError(f"{owner}: padding_mode must be one of {known}, not {padding_mode!r}")
        self.padding_mode = padding_mode

    def _padding(self) -> list[tuple[int, int]]:
        """(before, after) along each axis."""
        if self.padding == "same":
            return same_padding(self.kernel_size, self.dilation)
        return [(0, 0)] * self._axes if isinstance(self.padding, str) else [(p, p) for p in self.padding]

    def _padded(self, x: Node) -> tuple[Node, tuple[int, ...]]:
        """x, which must fit, and how much padding is to go on both sides of it, after that which does not."""
        padding = self._padding()
        shape = known_shape(x)
        self.require(self._fits(shape, padding), x)
        done = [(0, 0)] * self._axes
        if self.padding_mode != "zeros" and any(map(any, padding)):
            widths = [width for both in reversed(padding) for width in both]
            x, padding = F.pad(x, widths, self.padding_mode), done
        elif any(before != after for before, after in padding):  # a window of even extent
            lead = [(0, 0)] * (1 if shape is not None and len(shape) == 1 + self._axes else 2)
            x, padding = ad.pad_op(x, [*lead, *padding]), done
        return x, tuple(before for before, _ in padding)

    def _fits(self, shape: Shape | None, padding: list[tuple[int, int]]) -> bool:
        if shape is None:
            return True
        if not _has_channels(shape, self._axes, self.in_channels):
            return False
        spans = zip(shape[-self._axes :], padding, self.kernel_size, self.dilation, strict=True)
        return all(n + sum(both) >= d * (k - 1) + 1 for n, both, k, d in spans)

    def extra_repr(self) -> str:
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode!r}"
        return self._repr(self.padding, mode)


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


class _Transposed(_Conv):
    """Transposed convolution."""

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
        """All but channels, groups and bias are integers, or one of each axis (rows, columns); output_padding is less
        than stride. Raises GraphError."""
        super().__init__(
            in_channels, out_channels, (kernel_size, stride, dilation), groups, bias, dtype, transposed=True
        )
        owner = type(self).__name__
        self.padding = extents(owner, "padding", padding, 0, self._axes)
        self.output_padding = extents(owner, "output_padding", output_padding, 0, self._axes)
        if any(rest >= step for rest, step in zip(self.output_padding, self.stride, strict=True)):
            raise GraphError(f"{owner}: output_padding {self.output_padding} must be less than stride {self.stride}")

    def _transposed(self, x: Node, function: Callable[..., Node]) -> Node:
        shape = known_shape(x)
        self.require(shape is None or _has_channels(shape, self._axes, self.in_channels), x)
        more = (self.output_padding, self.groups, self.dilation)
        return function(x, self.weight, self.bias, self.stride, self.padding, *more)

    def extra_repr(self) -> str:
        more = f", output_padding={shown(self.output_padding)}" if any(self.output_padding) else ""
        return self._repr(self.padding, more)


class ConvTranspose1d(_Transposed):
    """Transposed convolution: (N, in_channels, L) -> (N, out_channels, L'), L' as H' of ConvTranspose2d.

    Parameters: weight (in_channels, out_channels / groups, kernel_size), bias (out_channels,), as of ConvTranspose2d.
    """

    _axes = 1

    def forward(self, x: Node) -> Node:
        return self._transposed(x, F.conv_transpose1d)


class ConvTranspose2d(_Transposed):
    """Transposed convolution: (N, in_channels, H, W) -> (N, out_channels, H', W'), H' = (H - 1) stride - 2 padding +
    dilation (kernel_size - 1) + output_padding + 1.

    Parameters: weight (in_channels, out_channels / groups, *kernel_size), bias (out_channels,), uniform in
    +-1 / sqrt(fan_in), where PyTorch takes out_channels / groups for the channels of fan_in.
    """

    def forward(self, x: Node) -> Node:
        return self._transposed(x, F.conv_transpose2d)
