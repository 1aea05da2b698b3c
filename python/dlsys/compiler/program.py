"""A program: which kernels run in which order, whose memory is a view, from which kernel to which each value is needed,
and so where it lies in the arena that plans use in turn.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..device import Context, allocate
from ..graph import Node
from ..planner import MemoryPlan, Value, plan_memory
from ..system import at_fork, freed
from .aliases import Aliases, nbytes_of
from .base import BOUNDARY, Reason, TypedGraph
from .fuse import Group


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

    @property
    def parameters(self) -> list[Node]:
        """The parameters read or written, each once."""
        read = [self.aliases.source(value) for group in self.groups for value in group.inputs]
        updated = (parameter for parameter, _ in self.graph.updates)
        return list(dict.fromkeys([*(n for n in read if n.cell is not None), *updated]))

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
        for output in group.outputs:
            for node in aliases.around(output):
                first.setdefault(node, step)
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
    """For each value that a kernel computes those `known` on which it may lie. A piece of an array is one only
    where most of the array is overwritten so, as it stays alive."""
    group_of = {node: group for group in program.groups for node in group.outputs}
    found: dict[Node, list[Node]] = {}
    pieces: dict[Node, dict[Node, int]] = {}
    for node in stored:
        if node not in group_of or node in program.aliases.lies_in:
            continue
        group, size = group_of[node], program.nbytes(node)
        read = Counter(program.aliases.source(value) for value in group.inputs)  # a view may be read elsewhere
        for value in group.overwritable(node, program.graph.shapes):
            source = program.aliases.source(value)
            if len(group.outputs) > 1 and program.graph.dtypes[value] == "bool":
                continue  # they are read where they are used, behind stores too: see `schedule.codegen`
            if value in known and program.nbytes(value) == size and read[source] == 1:
                found.setdefault(node, []).append(value)
                if program.nbytes(source) != size:
                    pieces.setdefault(source, {})[value] = size
    few = {source for source, own in pieces.items() if 2 * sum(own.values()) < program.nbytes(source)}
    for node, values in found.items():  # pieces first: what is whole serves elsewhere
        chosen = [value for value in values if program.aliases.source(value) not in few]
        found[node] = sorted(chosen, key=lambda value: program.aliases.source(value) not in pieces)
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
        self.lock = threading.RLock()
        self.allocations = 0
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
