"""Cells: the places of leaves' values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Array, Context, array
from ..graph import stamp


class Cell:
    """The place of a leaf's value: it holds an array, and may be given another one of the same shape and dtype.

    Nodes that read a leaf keep what its cell held when they were made (`Node.read`); an Executor reads the cell when it
    runs, and may overwrite the array. State that changes as a network is called holds the node of its new value until
    somebody needs it.

    Attributes:
        content: the Array, or the node of a value that nobody has asked for yet.
        waiting: how many changes of such a content follow each other.
    """

    __slots__ = ("content", "dtype", "shape", "waiting")

    def __init__(self, value: Array) -> None:
        self.content: Any = value
        self.shape, self.dtype = value.shape, value.dtype
        self.waiting = 0

    def array(self) -> Array:
        """The array, computed if it was not yet."""
        if type(self.content) is not Array:
            self.give(self.content.computed())
        return self.content

    def give(self, value: Array) -> None:
        """Hold another array; nodes made before keep the one before."""
        self.content, self.waiting = value, 0

    def on(self, ctx: Context) -> Any:
        """The array on `ctx`, to read and write: it moves there if it lies elsewhere. For the `numpy` context an
        `np.ndarray`, to read."""
        found = self.array()
        if ctx.kind == "numpy":
            return np.asarray(found)
        if found.context is not ctx and found.context != ctx:  # comparing them takes longer than all else here
            self.content = found = array(found, ctx)
        return found

    def overwritten(self) -> None:
        """Say that a run has written the array's memory: nodes made before cannot read it any more."""
        self.content.written = stamp()

    @property
    def version(self) -> tuple[Array, int]:
        """Another value after every change."""
        found = self.array()
        return found, found.written
