"""A program: which kernels run in which order, whose memory is a view, from which kernel to which each value is needed,
and so where it lies in the arena that plans use in turn.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from ..devices import Context, allocate
from ..graph import Node, Shape
from ..kernels import Call, KernelSpec, Place, Repeat
from ..planner import MemoryPlan, Value, plan_memory
from ..system import at_fork, freed, lazy
from .aliases import Aliases, nbytes_of
from .base import BOUNDARY, Reason, TypedGraph
from .fuse import Group
from .groups import kernel_spec, read_from

ARENA = Place(None, 0, (), "uint8")

Key = tuple[int, ...]
"""A group: its position; of a loop (3, 0, 0) and (3, 1, 0), the first of what comes before its steps and of a step."""


class Located(NamedTuple):
    """A group and its program, and how often a run calls it."""

    program: Program
    group: Group
    times: int


@dataclass(frozen=True)
class Program:
    """The kernels of one run and the memory of its values, before they are placed.

    Attributes:
        graph: after the passes, and with the copies that results and parameters need.
        groups: the kernels, in the order in which they run.
        aliases: the values that lie in others' memory.
        results: the evaluated nodes, in order; None for a group of updates.
        bytes_unplanned: what a buffer for every node of the graph would take, before the passes.
        memory: where each value lies in the arena.
        boundary: bytes at a multiple of which the arrays of its device's kernels begin.
        reasons: why nodes share a kernel, and why others do not (see `fuse`); those of passes are the graph's.
    """

    graph: TypedGraph
    groups: tuple[Group, ...]
    aliases: Aliases
    results: tuple[Node | None, ...]
    bytes_unplanned: int = 0
    memory: MemoryPlan | None = None
    boundary: int = BOUNDARY["cpu"]
    reasons: tuple[Reason, ...] = ()

    def nbytes(self, node: Node) -> int:
        """The size of a node's value."""
        return nbytes_of(node, self.graph)

    def type_of(self, node: Node) -> tuple[Shape, str]:
        """The shape and dtype of a node's value."""
        return node.shape, node.dtype

    def located(self, key: Key) -> Located:
        """The group that has a key, also in a loop."""
        position, *rest = key
        group = self.groups[position]
        if not rest:
            return Located(self, group, 1)
        loop = group.loop
        found = loop.parts[rest[0]].located(tuple(rest[1:]))
        return found if rest[0] == 0 else found._replace(times=found.times * loop.length)

    def specs(self) -> dict[Key, KernelSpec]:
        """The kernel that each group needs, in the order of running; values without elements need none."""
        found: dict[Key, KernelSpec] = {}
        for position, group in enumerate(self.groups):
            if group.kind == "loop":
                for part, program in enumerate(group.loop.parts):
                    found.update(((position, part, *key), spec) for key, spec in program.specs().items())
            elif any(self.nbytes(node) for node in group.outputs):
                found[position,] = kernel_spec(group, self.graph, self._in_place(group), self.boundary)
        return found

    def _in_place(self, group: Group) -> bool:
        """Whether the compiler must be told that an output is the memory of an input. Of one output every element is
        computed from the one that it overwrites, so no order of loads and stores is wrong; and what may not overlap
        runs faster, as sums can stay in registers."""
        if len(group.outputs) == 1:
            return False
        read, written = ([(*self._at(v), self.nbytes(v)) for v in values] for values in (group.inputs, group.outputs))
        return any(a is b and i < j + m and j < i + n for a, i, n in read for b, j, m in written)

    def _at(self, node: Node) -> tuple[Node | None, int]:
        """The given array in which a value lies, None for the arena, and from which byte on."""
        assert self.memory is not None
        if node in self.memory.buffer_of:
            return None, self.memory.offset(node)
        return self.aliases.source(node), self.aliases.offset(node)

    def place(self, node: Node, given: Callable[[Node], Place], arena: Place = ARENA) -> Place:
        """Where a kernel finds a value. `given`: the place of what is given; `arena`: that of the arena."""
        array, offset = self._at(node)
        at = arena if array is None else given(array)
        return Place(at.base, at.offset + offset, *self.type_of(node), at.moves)

    def calls(
        self, given: Callable[[Node], Place], specs: Mapping[Key, KernelSpec], arena: Place = ARENA, key: Key = ()
    ) -> list[Call | Repeat]:
        """The calls in order. `specs`: of all kernels; `key`: of the loop's part that this is; for the others see
        `place`."""
        calls: list[Call | Repeat] = []
        for position, group in enumerate(self.groups):
            own = (*key, position)
            if group.kind == "loop":
                calls += group.loop.calls(lambda node: self.place(node, given, arena), group, specs, own)
            elif (spec := specs.get(own)) is not None:
                places = [self.place(node, given, arena) for node in (*group.inputs, *group.outputs)]
                types = [*spec.inputs, *(spec.outputs or ())]
                places = [replace(at, shape=s, dtype=d) for at, (s, d) in zip(places, types, strict=True)]
                if skipped := read_from(group, self.graph, self.boundary):
                    places[0] = replace(places[0], offset=places[0].offset + skipped)
                calls.append(Call(spec.symbol, tuple(places)))
        return calls

    @lazy
    def given(self) -> list[Node]:
        """The feeds that are read, and the parameters that are read or written, each once."""
        read = [self.aliases.source(value) for group in self.groups for value in group.inputs]
        updated = (parameter for parameter, _ in self.graph.updates)
        return list(dict.fromkeys([*(node for node in read if node in self.graph.fed), *updated]))

    def stored(self) -> list[Node]:
        """Every value that has memory in the arena, in the order of their writing; what lies in another follows it."""
        found: dict[Node, None] = {}
        inner: dict[Node, list[Node]] = {}
        for node, (other, _) in self.aliases.lies_in.items():
            inner.setdefault(other, []).append(node)
        for group in self.groups:
            stack = [self.aliases.source(node) for node in reversed(group.outputs)]
            while stack:
                node = stack.pop()
                if node not in found and node not in self.graph.fed:
                    found[node] = None
                    stack += reversed(inner.get(node, []))
        return list(found)


def planned(program: Program) -> MemoryPlan:
    """Liveness and offsets of every value in the arena."""
    aliases = program.aliases
    first: dict[Node, int] = {}
    for step, group in enumerate(program.groups):
        first.update(dict.fromkeys(group.outputs, step))
    stored = program.stored()
    for node in stored:
        if node not in first:  # a view
            first[node] = first[aliases.lies_in[node][0]]
    last = {node: first[node] for node in stored}
    for step, group in enumerate(program.groups):
        for value in group.inputs:
            if value in last:
                last[value] = step
    last.update((node, len(program.groups)) for node in program.results if node in last)
    values = []
    over = _overwritable(program, stored, last)
    for node in stored:
        alias, offset = aliases.lies_in.get(node, (None, 0))
        size, in_place = program.nbytes(node), tuple(over.get(node, ()))
        values.append(Value(node, size, first[node], last[node], alias, in_place, offset))
    return replace(plan_memory(values), bytes_unplanned=program.bytes_unplanned)


def _overwritable(program: Program, stored: list[Node], known: Container[Node]) -> dict[Node, list[Node]]:
    """For each value that a kernel computes those `known` on which it may lie: whole arrays of its size."""
    group_of = {node: group for group in program.groups for node in group.outputs}
    found: dict[Node, list[Node]] = {}
    for node in stored:
        if node not in group_of or node in program.aliases.lies_in:
            continue
        group, size = group_of[node], program.nbytes(node)
        read = Counter(program.aliases.source(value) for value in group.inputs)  # a view may be read elsewhere
        for value in group.overwritable(node, program.graph):
            source = program.aliases.source(value)
            if len(group.outputs) > 1 and value.dtype == "bool":
                continue  # they are read where they are used, behind stores too: see `schedule.codegen`
            if value in known and program.nbytes(value) == program.nbytes(source) == size and read[source] == 1:
                found.setdefault(node, []).append(value)
    return found


class Tenant(Protocol):
    """Whoever keeps values in an arena while it runs."""

    def leave(self) -> None:
        """Forget where the arena was: it has moved."""


class Arena:
    """Memory for the values of one run, shared by tenants that run in turn: as large as the largest of them needs.

    Attributes:
        lock: held while a tenant runs and until its results were read or copied.
        allocations: how many device buffers were allocated for the tenants.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.lock: threading.RLock = threading.RLock()
        self.allocations: int = 0
        self._memory: Any = None
        self._nbytes = 0
        self._tenants: weakref.WeakSet[Any] = weakref.WeakSet()
        _arenas.add(self)

    def memory(self, nbytes: int, tenant: Tenant) -> Any:
        """A tensor of `nbytes` bytes or more, valid until `tenant.leave` is called, as when another needs more."""
        with self.lock:
            if self._memory is None or nbytes > self._nbytes:
                for other in self._tenants:  # before, so that the smaller one makes room
                    other.leave()
                self._tenants.clear()
                self._memory, self._nbytes = None, 0
                self._memory, self._nbytes = allocate((max(nbytes, 1),), "uint8", self.ctx), nbytes
                self.allocations += 1
            self._tenants.add(tenant)
            return self._memory

    def after_fork(self) -> None:
        """In a forked process: the lock is free, and what a thread of the other process was doing is done anew."""
        if freed(self.lock):
            for tenant in self._tenants:
                tenant.leave()


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _after_fork() -> None:
    for arena in _arenas:
        arena.after_fork()


at_fork(_after_fork)
