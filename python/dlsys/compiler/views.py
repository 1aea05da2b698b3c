"""Views: which elements of an array a slice of it has, or a transpose of a slice, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import OPS, Node, Shape


@dataclass(frozen=True)
class View:
    """Elements of an array that lies row by row in memory: that at an index is number offset + index * strides there.

    A slice makes one, and a transpose of one another. An axis of one element has the stride 0, so that equal views are
    equal.
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, shape: Shape) -> View:
        """All of an array."""
        return cls(shape, tuple(row if extent != 1 else 0 for extent, row in zip(shape, rows_of(shape), strict=True)))

    @property
    def run(self) -> int | None:
        """The number of the first element, where all lie one behind another; else None."""
        return self.offset if 0 not in self.shape and self.strides == View.of(self.shape).strides else None

    def sliced(self, starts: tuple[int, ...], counts: Shape, steps: tuple[int, ...]) -> View:
        """Of each axis `count` elements, at start + step * i."""
        offset = self.offset + sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
        strides = (
            step * stride if count != 1 else 0
            for count, step, stride in zip(counts, steps, self.strides, strict=True)
        )  # fmt: skip
        return View(counts, tuple(strides), offset)

    def permuted(self, order: tuple[int, ...]) -> View:
        """With the axes in another order."""
        return View(tuple(self.shape[a] for a in order), tuple(self.strides[a] for a in order), self.offset)


SLICE, TRANSPOSE = OPS["slice"], OPS["transpose"]


def view_of(node: Node, x: View) -> View:
    """What a slice or a transpose is of the array of which its input is the view x."""
    return x.sliced(**node.attrs) if node.op is SLICE else x.permuted(node.attrs["axes"])


def rows_of(shape: Shape) -> list[int]:
    """For each axis by how many elements its indices lie apart in memory, row by row."""
    found, row = [], 1
    for extent in reversed(shape):
        found.append(row)
        row *= extent
    return found[::-1]
