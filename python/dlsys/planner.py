"""The memory planner: liveness, in-place reuse, and offsets in one arena.

A program is a sequence of steps, each of which writes one value. A value is live from the step that writes it to the
last that reads it, both included: a kernel's output must not overlap its inputs, unless the kernel may run in place and
the input is not read afterwards. Values that share memory on purpose (views, in-place results) form one buffer,
live from the first write to the last read. Buffers that are never live at the same step may overlap in the arena.
Arrays that a run is given, feeds and parameters, are not in the arena; values may be views of them, or written into
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .errors import PlanError

Id: TypeAlias = Any
"""The caller's name for a value, hashable."""
ALIGNMENT = 64
"""Bytes; every buffer begins at a multiple (a cache line, the widest vector register)."""


@dataclass(frozen=True)
class Value:
    """A value that a step writes, or an array that the run is given.

    Attributes:
        id: the caller's name for it, unique; printed by `str`.
        nbytes: its size.
        first: the step that writes it.
        last: the last step that reads it, or the number of steps for a result that outlives the run.
        alias: the value of which it is a view, in whose memory it is.
        in_place: values of all their buffer's bytes that its kernel may overwrite if nothing reads them after `first`:
            those that it reads at the index that it writes, and at no other.
        offset: where an alias begins in that value, in bytes.
        into: the given array into whose memory it is written.
        given: whether it is such an array; it is there from step -1 on.
    """

    id: Id
    nbytes: int
    first: int
    last: int
    alias: Id | None = None
    in_place: tuple[Id, ...] = ()
    offset: int = 0
    into: Id | None = None
    given: bool = False


@dataclass
class Buffer:
    """A range of the arena and the values in it; it is in use in the steps `first` to `last`, both included."""

    nbytes: int
    first: int
    last: int
    offset: int = 0
    values: list[Value] = field(default_factory=list)

    @property
    def extent(self) -> int:
        """The size, rounded up to whole units of alignment."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class MemoryPlan:
    """Which value is where, and when; `print` it.

    Attributes:
        buffers: in order of the step that first writes them.
        buffer_of: each value's buffer, by the value's id.
        within: where each value begins in its buffer, in bytes; only those that do not begin at 0.
        bytes_unplanned: the memory that one buffer per value would take.
        bytes_planned: the arena's size.
        lower_bound: the most bytes that are live at one step; no arena can be smaller.
        values: all of them, by id.
        outside: each value that is not in the arena: the given array in which it is, and from which byte on.
    """

    buffers: tuple[Buffer, ...]
    buffer_of: dict[Id, Buffer]
    bytes_unplanned: int
    bytes_planned: int
    lower_bound: int
    within: dict[Id, int] = field(default_factory=dict)
    values: dict[Id, Value] = field(default_factory=dict)
    outside: dict[Id, tuple[Id, int]] = field(default_factory=dict)

    def at(self, value: Id) -> tuple[Any, int]:
        """The given array in which a value is, None for the arena, and from which byte on."""
        return (None, self.offset(value)) if value in self.buffer_of else self.outside[value]

    def offset(self, value: Id) -> int:
        """Where a value begins in the arena, or in the given array, in bytes."""
        if value in self.buffer_of:
            return self.buffer_of[value].offset + self.within.get(value, 0)
        return self.outside[value][1]

    def check(self) -> None:
        """Prove that no value loses a byte that is still read, however the plan was made: in the arena, and in the
        arrays that a run is given and overwrites.

        Values may have bytes in common if they are never needed at the same step, if they are views of one value, or if
        one is computed in the place of an input, which must be allowed (`Value.in_place`), of the same size, and not
        read after that step.

        Raises PlanError, with the two values, their bytes and their steps.
        """
        root: dict[Id, Value] = {}  # of which it is a view
        for value in sorted(self.values.values(), key=lambda value: value.first):
            root[value.id] = value if value.alias is None else root[value.alias]
            start = 0 if value.alias is None else self.offset(value.alias) + value.offset
            base, begin = self.at(value.id)
            size = self.bytes_planned if base is None else self.values[base].nbytes
            if begin + value.nbytes > size or (value.alias is not None and begin != start):
                array = "the arena" if base is None else f"{getattr(base, 'name', base)}"
                raise PlanError(f"{_place_of(value, self)} is not where it belongs: {array} has {size}")

        def overwrites(old: Value, new: Value) -> bool:
            """Whether a value, or what it is a view of, may be computed where another one is last read."""
            new = root[new.id]
            same = old.nbytes == new.nbytes and self.offset(old.id) == self.offset(new.id)
            return same and old.last == new.first and old.id in set(new.in_place)  # == of nodes makes nodes

        by_array: dict[Any, list[Value]] = {}
        for value in sorted(self.values.values(), key=lambda value: self.offset(value.id)):
            by_array.setdefault(self.at(value.id)[0], []).append(value)
        near: list[Value] = []  # those of an array whose bytes reach beyond the last one's first byte
        for b in (value for values in by_array.values() for value in values):
            same = [a for a in near if self.at(a.id)[0] is self.at(b.id)[0]]
            near = [a for a in same if self.offset(a.id) + a.nbytes > self.offset(b.id)]
            for a in near if b.nbytes else ():
                together = a.first <= b.last and b.first <= a.last
                if together and root[a.id] is not root[b.id] and not (overwrites(a, b) or overwrites(b, a)):
                    raise PlanError(f"{_place_of(a, self)} and {_place_of(b, self)} are needed at the same time")
            near.append(b)

    def summary(self) -> str:
        """The three numbers, in one line."""
        saved = self.bytes_unplanned / self.bytes_planned if self.bytes_planned else 1.0
        return (
            f"memory: {self.bytes_unplanned} bytes with one buffer per node, {self.bytes_planned} planned "
            f"({saved:.2f}x less), lower bound {self.lower_bound}"
        )

    def __str__(self) -> str:
        """Of each buffer the offset, the bytes, the steps and the values; then the summary."""
        rows = [("offset", "bytes", "steps", "values")]
        for buffer in sorted(self.buffers, key=lambda b: (b.offset, b.first)):
            names = ", ".join(str(getattr(value.id, "name", value.id)) for value in buffer.values)
            rows.append((str(buffer.offset), str(buffer.nbytes), f"{buffer.first}-{buffer.last}", names))
        return f"{table(rows, '>>><')}\n{self.summary()}"


def _place_of(value: Value, plan: MemoryPlan) -> str:
    """`add_5 (bytes 0 to 400, steps 1 to 4)`."""
    begin, name = plan.offset(value.id), getattr(value.id, "name", value.id)
    return f"{name} (bytes {begin} to {begin + value.nbytes}, steps {value.first} to {value.last})"


def table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows of cells as aligned text; `align` has `<` or `>` for each column."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    cells = [[f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cells)


def plan_memory(values: Sequence[Value]) -> MemoryPlan:
    """The plan for values in the order in which they are written; an alias comes after its value."""
    outside: dict[Id, tuple[Id, int]] = {}
    for value in values:
        if value.given or value.into is not None:
            outside[value.id] = value.id if value.given else value.into, 0
        elif value.alias in outside:
            base, start = outside[value.alias]
            outside[value.id] = base, start + value.offset
    inside = [value for value in values if value.id not in outside]
    buffers, buffer_of, within = _share(inside)
    _place(buffers)
    planned = max([buffer.offset + buffer.nbytes for buffer in buffers if buffer.nbytes], default=0)
    unplanned, by_id = sum([value.nbytes for value in inside]), {value.id: value for value in values}
    return MemoryPlan(tuple(buffers), buffer_of, unplanned, planned, _most_alive(buffers), within, by_id, outside)


def _share(values: Sequence[Value]) -> tuple[list[Buffer], dict[Id, Buffer], dict[Id, int]]:
    """The buffers, each value's buffer, and where the value begins in it: a view is in the buffer of its value, a
    result may be in that of an input that dies."""
    owner: dict[Id, Id] = {}
    last: dict[Id, int] = {}
    for value in values:
        root = value.id if value.alias is None else owner[value.alias]
        owner[value.id] = root
        last[root] = max(last.get(root, value.last), value.last)

    buffers: list[Buffer] = []
    buffer_of: dict[Id, Buffer] = {}
    within: dict[Id, int] = {}
    size = {value.id: value.nbytes for value in values}
    for value in values:
        if value.alias is not None:
            found, start = buffer_of[value.alias], within.get(value.alias, 0) + value.offset
        else:
            alike = [other for other in value.in_place if size[other] == value.nbytes]
            over = next((other for other in alike if _dies(buffer_of[other], value)), None)
            if over is None:
                found, start = Buffer(value.nbytes, value.first, last[value.id]), 0
                buffers.append(found)
            else:
                found, start = buffer_of[over], 0
                found.last = max(found.last, last[value.id])
        found.values.append(value)
        buffer_of[value.id] = found
        if start:
            within[value.id] = start
    return buffers, buffer_of, within


def _dies(buffer: Buffer, value: Value) -> bool:
    """Whether a value may take the place of a whole buffer, which nothing else needs any more."""
    return buffer.nbytes == value.nbytes and buffer.last == value.first


def _place(buffers: Sequence[Buffer]) -> None:
    """Sets the offsets: largest first, each at the lowest where it overlaps none that is live with it."""
    first, last, begin, end = np.zeros((4, len(buffers)), np.int64)  # of those that are placed, by their offsets
    for count, buffer in enumerate(sorted(filter(lambda b: b.extent, buffers), key=lambda b: (-b.extent, b.first))):
        live = np.flatnonzero((first[:count] <= buffer.last) & (buffer.first <= last[:count]))
        free = np.maximum.accumulate(np.append(0, end[live]))  # from where on nothing before the next one lies
        fits = begin[live] - free[:-1] >= buffer.extent
        buffer.offset = int(free[fits.argmax() if fits.any() else -1])
        at = begin[:count].searchsorted(buffer.offset)
        for numbers, own in (
            (first, buffer.first), (last, buffer.last), (begin, buffer.offset), (end, buffer.offset + buffer.extent)
        ):  # fmt: skip
            numbers[at + 1 : count + 1] = numbers[at:count].copy()
            numbers[at] = own


def _most_alive(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are live at one step."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.first] = changes.get(buffer.first, 0) + buffer.nbytes
        changes[buffer.last + 1] = changes.get(buffer.last + 1, 0) - buffer.nbytes
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most
