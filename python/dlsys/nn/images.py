"""Convolution, pooling, padding and resizing of images, NCHW; N may be left out of a convolution's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .. import autodiff as ad
from ..autodiff import Parameter
from ..checks import flag, integer, integers, pair, word
from ..errors import GraphError
from ..graph import Node, Shape
from . import functional as F
from . import init
from .checks import known_shape
from .module import Module


class _Conv(Module):
    """Cross-correlation: (N, in_channels, *space) -> (N, out_channels, *space'), where of each axis n' = (n + 2 padding
    - dilation (kernel_size - 1) - 1) // stride + 1.

    Parameters: weight (out_channels, in_channels / groups, *kernel_size), bias (out_channels,), uniform in
    +-1 / sqrt(fan_in) as in PyTorch.
    """

    space: ClassVar[int]
    function: ClassVar[Callable[..., Node]]
    modes: ClassVar[tuple[str, ...]] = ("zeros", "reflect", "replicate")

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
    ) -> None:
        """Integers, or one for each axis of the space. Group i of the filters sees group i of the channels. The padding
        "same" keeps the extents, for strides of 1, and "valid" is 0. `padding_mode`: what is around x, see
        `functional.pad`; "zeros", "reflect" or "replicate". Raises GraphError."""
        owner = type(self).__name__
        self.in_channels: int = integer(owner, "in_channels", in_channels, 1)
        self.out_channels: int = integer(owner, "out_channels", out_channels, 1)
        self.groups: int = integer(owner, "groups", groups, 1)
        if in_channels % groups or out_channels % groups:
            raise GraphError(f"{owner}: {in_channels} and {out_channels} channels do not divide into {groups} groups")
        self.padding_mode: str = word(owner, "padding_mode", padding_mode, self.modes)
        self.kernel_size: tuple[int, ...] = integers(owner, "kernel_size", kernel_size, 1, self.space)
        self.stride: tuple[int, ...] = integers(owner, "stride", stride, 1, self.space)
        self.dilation: tuple[int, ...] = integers(owner, "dilation", dilation, 1, self.space)
        if padding == "same" and max(self.stride) > 1:
            raise GraphError(f'{owner}: the padding "same" is for strides of 1, not {self.stride}')
        sums = [d * (k - 1) if padding == "same" else 0 for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        named = padding in ("same", "valid") and len(self.modes) > 1
        self.padding: Any = padding if named else integers(owner, "padding", padding, 0, self.space)
        self._around = [(n // 2, n - n // 2) for n in sums] if named else [(p, p) for p in self.padding]
        self.weight: Parameter = init.made((*self._channels(), *self.kernel_size), "weight")
        self.bias: Parameter | None = init.made((out_channels,), "bias") if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(init.fans(self.weight)[0])
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(self._fits(shape), x)
        alone = shape is not None and len(shape) == self.space + 1
        images, padding = ad.expand_dims_op(x, 0) if alone else x, [before for before, _ in self._around]
        if self.padding_mode != "zeros" or any(before != after for before, after in self._around):
            widths = [width for pair in self._around[::-1] for width in pair]
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            images, padding = F.pad(images, widths, mode), [0] * self.space
        found = type(self).function(images, self.weight, self.bias, *self._settings(padding))
        return ad.squeeze_op(found, 0) if alone else found

    def _channels(self) -> tuple[int, int]:
        """The first extents of the weight."""
        return self.out_channels, self.in_channels // self.groups

    def _settings(self, padding: list[int]) -> tuple[Any, ...]:
        """The function's arguments behind the bias."""
        return self.stride, padding, self.dilation, self.groups

    def _fits(self, shape: Shape | None) -> bool:
        """Whether it is (N, in_channels, *space), or without N, and a window fits into what is padded."""
        if shape is None:
            return True
        if len(shape) - self.space not in (1, 2) or shape[-1 - self.space] != self.in_channels:
            return False
        spans = zip(shape[-self.space :], self._around, self.kernel_size, self.dilation, strict=True)
        return all(n + sum(p) >= d * (k - 1) + 1 for n, p, k, d in spans)


class Conv1d(_Conv):
    """Cross-correlation of signals (N, in_channels, L), see the base class."""

    space = 1
    function: ClassVar[Callable[..., Node]] = F.conv1d


class Conv2d(_Conv):
    """Cross-correlation of images (N, in_channels, H, W), see the base class."""

    space = 2
    function: ClassVar[Callable[..., Node]] = F.conv2d


class ConvTranspose2d(_Conv):
    """The gradient of a convolution with respect to its images: (N, in_channels, H, W) -> (N, out_channels, H', W'), H'
    = (H - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1. Parameters: weight (in_channels,
    out_channels / groups, *kernel_size), bias (out_channels,), drawn as of Conv2d."""

    space = 2
    function: ClassVar[Callable[..., Node]] = F.conv_transpose2d
    modes: ClassVar[tuple[str, ...]] = ("zeros",)

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
        padding_mode: str = "zeros",
    ) -> None:
        """As Conv2d; `output_padding` is less than the stride. Raises GraphError."""
        self.output_padding: tuple[int, ...] = integers(type(self).__name__, "output_padding", output_padding, 0)
        settings = (stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(in_channels, out_channels, kernel_size, *settings)

    def _channels(self) -> tuple[int, int]:
        return self.in_channels, self.out_channels // self.groups

    def _settings(self, padding: list[int]) -> tuple[Any, ...]:
        return self.stride, padding, self.output_padding, self.groups, self.dilation

    def _fits(self, shape: Shape | None) -> bool:
        return shape is None or (len(shape) in (3, 4) and shape[-3] == self.in_channels)


class Upsample(Module):
    """(N, C, *space) with its space in another size, given or `scale_factor` times its own, see
    `functional.interpolate`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        """Raises GraphError for another mode than "nearest" and "bilinear"."""
        self.size = size
        self.scale_factor = scale_factor
        self.align_corners = align_corners
        self.mode: str = word("Upsample", "mode", mode, ("nearest", "bilinear"))
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Node) -> Node:
        settings = (self.mode, self.align_corners, self.recompute_scale_factor)
        return F.interpolate(x, self.size, self.scale_factor, *settings)


class Unfold(Module):
    """The windows of images as columns, see `functional.unfold`: (N, C, H, W) -> (N, C h w, L)."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        """Integers or pairs (rows, columns). Raises GraphError."""
        self.kernel_size: tuple[int, int] = pair("Unfold", "kernel_size", kernel_size, 1)
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, x: Node) -> Node:
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)


class PixelShuffle(Module):
    """(..., C r^2, H, W) as (..., C, H r, W r), r being `upscale_factor`: the channels of a pixel become its rows and
    columns."""

    def __init__(self, upscale_factor: int) -> None:
        """Raises GraphError for what is no positive integer."""
        self.upscale_factor: int = integer("PixelShuffle", "upscale_factor", upscale_factor, 1)

    def forward(self, x: Node) -> Node:
        return F.pixel_shuffle(x, self.upscale_factor)


class _Pool(Module):
    """Windows of images: integers or pairs (rows, columns)."""

    def _set(self, kernel_size: Any, stride: Any, padding: Any, **idle: Any) -> None:
        """Keep the settings, checked. Raises GraphError, also for another than PyTorch's default of those that are not
        built."""
        owner = type(self).__name__
        for name, value in idle.items():
            is_default = pair(owner, name, value, 1) == (1, 1) if name == "dilation" else not flag(owner, name, value)
            if not is_default:
                raise GraphError(f"{owner}: {name}={value!r} is not supported")
        self.kernel_size: tuple[int, int] = pair(owner, "kernel_size", kernel_size, 1)
        self.stride: tuple[int, int] = self.kernel_size if stride is None else pair(owner, "stride", stride, 1)
        self.padding: tuple[int, int] = pair(owner, "padding", padding, 0)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            told = f"padding {self.padding} is more than half of the windows {self.kernel_size}"
            raise GraphError(f"{owner}: {told}")

    def _require_fit(self, x: Node) -> None:
        """Raises ShapeError where x is known to have other than four axes, or less space than a window."""
        shape = known_shape(x)
        if shape is not None:
            spans = zip(shape[-2:], self.kernel_size, self.padding, strict=False)
            self.require(len(shape) == 4 and all(n + 2 * p >= k for n, k, p in spans), x)


class MaxPool2d(_Pool):
    """The maximum of each window: (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel_size) // stride + 1."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        """stride None is kernel_size, padding is at most its half; of the others PyTorch's defaults alone are built.
        Raises GraphError."""
        self._set(kernel_size, stride, padding, dilation=dilation, return_indices=return_indices, ceil_mode=ceil_mode)

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool):
    """The mean of each window, shapes as of MaxPool2d. What of a window is padding counts as zeros, or not at all
    without `count_include_pad`."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        """stride None is kernel_size, padding is at most its half. Raises GraphError, also for `ceil_mode`."""
        self._set(kernel_size, stride, padding, ceil_mode=ceil_mode)
        self.count_include_pad: bool = flag("AvgPool2d", "count_include_pad", count_include_pad)

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, False, self.count_include_pad)


class AdaptiveAvgPool2d(Module):
    """The means of equal windows: (N, C, H, W) -> (N, C, *output_size)."""

    def __init__(self, output_size: Any) -> None:
        """Args: output_size: an integer or a pair (rows, columns). Raises GraphError."""
        self.output_size: tuple[int, int] = pair("AdaptiveAvgPool2d", "output_size", output_size, 1)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or (len(shape) == 4 and min(shape[-2:]) > 0), x)
        return F.adaptive_avg_pool2d(x, self.output_size)


class ConstantPad2d(Module):
    """(..., H, W) with `value` around it. padding: an integer or (left, right, top, bottom)."""

    def __init__(self, padding: Any, value: float) -> None:
        """Raises GraphError."""
        self.padding: tuple[int, ...] = integers(type(self).__name__, "padding", padding, 0, 4)
        self.value = value

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or len(shape) >= 2, x)
        return F.pad(x, self.padding, value=self.value)


class ZeroPad2d(ConstantPad2d):
    """(..., H, W) with zeros around it. padding: an integer or (left, right, top, bottom)."""

    def __init__(self, padding: Any) -> None:
        """Raises GraphError."""
        super().__init__(padding, 0.0)
