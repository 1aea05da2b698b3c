"""Views: which elements of an array another one has, without a copy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph import Shape


@dataclass(frozen=True)
class View:
    """Elements of an array that lies row by row in memory: that at an index is number offset + index * strides there.

    Made by composing what operators do, see `Op.view`. An axis of one element has the stride 0, so that equal views
    are equal.
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, shape: Shape) -> View:
        """All of an array."""
        return cls(shape, tuple(row if extent != 1 else 0 for extent, row in zip(shape, rows_of(shape), strict=True)))

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def run(self) -> int | None:
        """The number of the first element, where all lie one behind another; else None."""
        return self.offset if self.size and self.strides == View.of(self.shape).strides else None

    def sliced(self, counts: Shape, starts: tuple[int, ...], steps: tuple[int, ...]) -> View:
        """Of each axis `count` elements, at start + step * i."""
        offset = self.offset + sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
        of_axes = zip(counts, steps, self.strides, strict=True)
        return View(counts, tuple(step * stride if count != 1 else 0 for count, step, stride in of_axes), offset)

    def permuted(self, order: tuple[int, ...]) -> View:
        """With the axes in another order."""
        return View(tuple(self.shape[a] for a in order), tuple(self.strides[a] for a in order), self.offset)

    def expanded(self, shape: Shape) -> View:
        """Repeated to `shape` by NumPy's rule."""
        lead = (0,) * (len(shape) - len(self.shape))
        return View(shape, (*lead, *self.strides), self.offset)

    def _axes(self) -> list[tuple[int, int]]:
        """Extent and stride of the axes of several elements, with one for those that lie within each other."""
        found: list[tuple[int, int]] = []
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if found and found[-1][1] == extent * stride:
                found[-1] = found[-1][0] * extent, stride
            elif extent != 1:
                found.append((extent, stride))
        return found

    def reshaped(self, shape: Shape) -> View | None:
        """In the same order under another shape; None where no strides say that."""
        if not self.size:
            return View.of(shape)
        axes, strides = self._axes(), []
        left, stride = 1, 0  # of the axis that is taken apart
        for extent in reversed(shape):
            if left == 1 != extent:
                left, stride = axes.pop()
            if left % extent:
                return None
            strides.append(stride if extent != 1 else 0)
            left, stride = left // extent, stride * extent
        return View(shape, tuple(reversed(strides)), self.offset)

    def key(self, shape: Shape) -> tuple[slice, ...] | None:
        """The key by which a slice of the array, of this shape, has these elements in this order, if not in this shape;
        None where no slice has."""
        axes, found = self._axes(), []
        if not self.size or any(stride < 1 for _, stride in axes):
            return None
        for extent, row in zip(reversed(shape), reversed(rows_of(shape)), strict=True):
            start, count, step = self.offset // row % extent, 1, 1
            if axes and axes[-1][1] % row == 0 and axes[-1][1] < row * extent:
                total, stride = axes.pop()
                count, step = total, stride // row
                if start + (count - 1) * step >= extent:  # it goes on in the next row, where it began in this one
                    count = -(-(extent - start) // step)
                    if count * step != extent or total % count:
                        return None
                    axes.append((total // count, row * extent))
            found.append(slice(start, start + (count - 1) * step + 1, step))
        return None if axes else tuple(reversed(found))


def rows_of(shape: Shape) -> list[int]:
    """For each axis by how many elements its indices lie apart in memory, row by row."""
    found, row = [], 1
    for extent in reversed(shape):
        found.append(row)
        row *= extent
    return found[::-1]
