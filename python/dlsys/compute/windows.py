"""The windows of pooling, which rules of shapes and formulas share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """The windows along one axis of images: number o begins at o * stride - padding and has `size` elements."""

    extent: int  # of the axis
    count: int  # of windows
    size: int
    stride: int
    padding: int

    def begin(self, o: Any) -> Any:
        """Where window o begins, which may be before the axis does."""
        return o * self.stride - self.padding

    @property
    def covering(self) -> int:
        """The most windows that cover one element."""
        return -(-self.size // self.stride)

    def first_over(self, i: Any) -> Any:
        """A window before which none covers element i; it may be negative."""
        return (i + self.padding) // self.stride - (self.covering - 1)


def windows_of(space: Sequence[int], kernel: Pair, stride: Pair, padding: Pair) -> tuple[Windows, Windows]:
    """The windows along rows and columns of images of `space` rows and columns, which they fit."""
    rows, columns = (
        Windows(extent, (extent + 2 * p - k) // s + 1, k, s, p)
        for extent, k, s, p in zip(space, kernel, stride, padding, strict=True)
    )
    return rows, columns
