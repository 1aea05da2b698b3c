"""Cells: the places of leaves' values.

A loop that keeps its losses keeps their graphs, and with them the parameters' arrays of every step. Of the arrays that
cells have given up, the last MOST_BYTES are there for such nodes; of an older one only its name is left, and who asks
for a value that needs it gets an error.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from ..device import Array, Context, array, copied
from ..graph import stamp

MOST_BYTES = 2**30

_given_up: dict[int, tuple[weakref.ref[Array], int]] = {}  # by id, the oldest first, with their bytes
_held = 0  # bytes of all of these
_lock = threading.RLock()


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
        self.content: Any = Array(value.tensor, value.context, value.shape, value.dtype)  # nobody else's
        self.shape, self.dtype = value.shape, value.dtype
        self.waiting = 0

    def array(self) -> Array:
        """The array, computed if it was not yet."""
        if type(self.content) is not Array:
            self.give(self.content.computed())
        return self.content

    def give(self, value: Array) -> None:
        """Hold another array; nodes made before keep the one before."""
        before, self.content, self.waiting = self.content, value, 0
        if type(before) is Array and before is not value:
            _give_up(before)

    def __deepcopy__(self, memo: Any) -> Cell:
        return Cell(copied(self.array()))

    def __reduce__(self) -> Any:
        return Cell, (self.array(),)

    def on(self, ctx: Context) -> Any:
        """The array on `ctx`, to read and write: it moves there if it lies elsewhere. For the `numpy` context an
        `np.ndarray`, to read."""
        found = self.array()
        if ctx.kind == "numpy":
            return np.asarray(found)
        if found.context is not ctx:
            if found.context != ctx:
                self.content = found = array(found, ctx)
            found.context = ctx  # the same object next time: comparing two takes longer than all else here
        return found

    def overwritten(self) -> None:
        """Say that a run has written the array's memory: nodes made before cannot read it any more."""
        self.content.written = stamp()

    @property
    def version(self) -> tuple[Array, int]:
        """Another value after every change."""
        found = self.array()
        return found, found.written


def _give_up(before: Array) -> None:
    """Let an array go that no cell holds any more: it stays as long as nodes refer to it and it is not too old."""
    global _held
    size, key = before.nbytes, id(before)

    def gone(_: Any) -> None:
        _forget(key)

    with _lock:
        _given_up[key] = weakref.ref(before, gone), size
        _held += size
        while _held > MOST_BYTES:
            oldest = _forget(next(iter(_given_up)))
            if oldest is not None:
                oldest.tensor = None


def _forget(key: int) -> Array | None:
    """Take an array off the list, and return it if somebody refers to it."""
    global _held
    with _lock:
        found = _given_up.pop(key, None)
        if found is None:
            return None
        _held -= found[1]
        return found[0]()
