"""Images and sequences in another size, channels as pixels, windows as columns; shapes must be known at the call."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .checks import checked_extent
from .functional_space import LINEAR
from .module import Module


class Upsample(Module):
    """(N, C, *space) in another size, see `functional.interpolate`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        """Either size or scale_factor, each one number or one of each axis. Raises GraphError."""
        name = type(self).__name__
        if mode not in ("nearest", "nearest-exact", *LINEAR):
            raise GraphError(f"{name}: unknown mode {mode!r}")
        if (size is None) == (scale_factor is None):
            raise GraphError(f"{name}: give either size or scale_factor")
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, x: Node) -> Node:
        settings = (self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)
        return F.interpolate(x, *settings)

    def extra_repr(self) -> str:
        size = f"scale_factor={self.scale_factor}" if self.size is None else f"size={self.size}"
        return f"{size}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample of images with mode "nearest"."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        """Raises GraphError."""
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Upsample of images with mode "bilinear" and align_corners."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        """Raises GraphError."""
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """(..., C r r, H, W) -> (..., C, H r, W r): Shi et al. (2016)."""

    def __init__(self, upscale_factor: int) -> None:
        """Raises GraphError."""
        self.upscale_factor = checked_extent("PixelShuffle", "upscale_factor", upscale_factor)

    def forward(self, x: Node) -> Node:
        return F.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"{self.upscale_factor}"


class PixelUnshuffle(Module):
    """(..., C, H r, W r) -> (..., C r r, H, W), the inverse of PixelShuffle."""

    def __init__(self, downscale_factor: int) -> None:
        """Raises GraphError."""
        self.downscale_factor = checked_extent("PixelUnshuffle", "downscale_factor", downscale_factor)

    def forward(self, x: Node) -> Node:
        return F.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"{self.downscale_factor}"


class ChannelShuffle(Module):
    """(N, C, *space) with the channels of `groups` groups dealt out in turn."""

    def __init__(self, groups: int) -> None:
        """Raises GraphError."""
        self.groups = checked_extent("ChannelShuffle", "groups", groups)

    def forward(self, x: Node) -> Node:
        return F.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        return f"{self.groups}"


class Unfold(Module):
    """Images (N, C, H, W) as the columns of their windows: (N, C h w, number of windows)."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        """Integers or pairs (rows, columns)."""
        self.settings = (kernel_size, dilation, padding, stride)

    def forward(self, x: Node) -> Node:
        return F.unfold(x, *self.settings)


class Fold(Module):
    """The sums of columns (N, C h w, number of windows) where their windows lie in images (N, C, *output_size)."""

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        """Integers or pairs (rows, columns)."""
        self.settings = (output_size, kernel_size, dilation, padding, stride)

    def forward(self, x: Node) -> Node:
        return F.fold(x, *self.settings)
