"""A plan: which kernels run in which order, where each value is, and on a device the run itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy as np

from .. import kernels
from ..devices import Array, Context, copied, cpu, host_array, lies_on, view_of
from ..errors import GraphError
from ..graph import Node, Type, stamp
from ..kernels import ArrayType, Call, Calls, KernelSpec, Place, Repeat, Runner
from ..ops.state import array_on
from ..planner import MemoryPlan
from ..system import collecting_later, lazy
from .aliases import behind
from .arena import Arena
from .base import Reason, TypedGraph, nbytes_of
from .groups import Group, kernel_spec
from .indices import FedIndices

TARGETS = {"cpu": "llvm", "cuda": "cuda"}
"""What kernels are compiled for, by the kind of context."""
SCRATCH = 256  # bytes at a multiple of which arrays to work in begin
ARENA = Place(None, 0, (), "uint8")

Key = tuple[int, ...]
"""A group: its position; of a loop (3, 0, 0) and (3, 1, 0), the first of what comes before its steps and of a step."""


def _ends(types: Iterable[ArrayType]) -> list[int]:
    """Where each array would end if they lay one behind the other from 0 on, which comes first."""
    sizes = (prod(shape) * np.dtype(dtype).itemsize for shape, dtype in types)
    return list(accumulate((-(-size // SCRATCH) * SCRATCH for size in sizes), initial=0))


@dataclass(eq=False)
class Plan:
    """What one signature of feeds makes of a graph, and its runs on one device. Each stage is done when it is first
    needed, and cached; the caller holds the arena's lock. A loop's step is a plan too, whose calls are the loop's.

    Attributes:
        graph: after the passes, and with the copies that results and parameters need.
        groups: the kernels, in the order in which they run.
        views: the values that no kernel computes, as they are their input's memory, and from which byte on.
        memory: where each value is, and when.
        reasons: why nodes share a kernel, and why others do not (see `fuse`); those of passes are the graph's.
        ctx: the device.
        arena: memory shared with other plans of the context; its own for None.
        indices: those among the feeds, for `require_in_range`.
        leaves: for each node that a user feeds the one that stands for it in the graph.
        is_compiled: whether the kernels are.
        is_placed: whether it has memory in the arena.
    """

    graph: TypedGraph
    groups: tuple[Group, ...]
    views: dict[Node, int]
    memory: MemoryPlan
    reasons: tuple[Reason, ...] = ()
    ctx: Context = field(default_factory=cpu)
    arena: Arena | None = None
    indices: Sequence[FedIndices] = ()
    leaves: Mapping[Node, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_compiled = self.is_placed = False
        self._results: list[Array | None] | None = None
        self._spans: dict[int, tuple[int, int]] = {}  # what a run writes of each given array, and, by -1, of the arena
        self._written: list[tuple[int, int]] = []  # the same memory, from which address to which, sorted
        self._low = self._high = 0  # the first and the last of these addresses
        self._copies: dict[int, Array] = {}  # of given arrays that are in that memory, by their number

    def __str__(self) -> str:
        """The kernels in order, one line each, and the memory."""
        return "\n".join([*(f"{number}  {group}" for number, group in enumerate(self.groups)), str(self.memory)])

    # What runs, and on which memory

    @property
    def results(self) -> tuple[Node | None, ...]:
        """The evaluated nodes, in order; None for a group of updates."""
        return self.graph.outputs

    @lazy
    def updated(self) -> frozenset[Node]:
        """The parameters, and places of a loop, that a run writes."""
        return frozenset(parameter for parameter, _ in self.graph.updates)

    @lazy
    def given(self) -> list[Node]:
        """The feeds that are read, and the parameters that are read or written, each once."""
        read = [behind(value, self.views) for group in self.groups for value in group.inputs]
        updated = [parameter for parameter, _ in self.graph.updates]
        return list(dict.fromkeys([*(node for node in read if node in self.graph.fed), *updated]))

    def located(self, key: Key) -> tuple[Group, int]:
        """The group that has a key, also in a loop, and how often a run calls it."""
        position, *rest = key
        group = self.groups[position]
        if not rest:
            return group, 1
        found, times = group.loop.parts[rest[0]].located(tuple(rest[1:]))
        return found, times * (group.loop.length if rest[0] else 1)

    @lazy
    def specs(self) -> dict[Key, KernelSpec]:
        """The kernel that each group needs, in the order of running; values without elements need none."""
        found: dict[Key, KernelSpec] = {}
        for position, group in enumerate(self.groups):
            if group.kind == "loop":
                for part, plan in enumerate(group.loop.parts):
                    found.update(((position, part, *key), spec) for key, spec in plan.specs.items())
            elif any(nbytes_of(node) for node in group.outputs):
                found[position,] = kernel_spec(group, self._in_place(group))
        return found

    def _in_place(self, group: Group) -> bool:
        """Whether the compiler must be told that an output is the memory of an input. Of one output every element is
        computed from the one that it overwrites, so no order of loads and stores is wrong; and what may not overlap
        runs faster, as sums can stay in registers."""
        if len(group.outputs) == 1:
            return False
        at, (read, written) = self.memory.at, (group.inputs, group.outputs)
        of_read, of_written = ([(*at(value), nbytes_of(value)) for value in values] for values in (read, written))
        return any(a is b and i < j + m and j < i + n for a, i, n in of_read for b, j, m in of_written)

    def place(self, node: Node, given: Callable[[Node], Place], arena: Place = ARENA) -> Place:
        """Where a kernel finds a value. `given`: the place of what is given; `arena`: that of the arena."""
        array, offset = self.memory.at(node)
        at = arena if array is None else given(array)
        return Place(at.base, at.offset + offset, node.shape, node.dtype, at.moves)

    def calls_at(
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
                calls.append(Call(spec.symbol, tuple(places)))
        return calls

    @lazy
    def _number(self) -> dict[Node, int]:
        return {node: number for number, node in enumerate(self.given)}

    @lazy
    def calls(self) -> list[Call | Repeat]:
        """The calls of a run in order; given arrays have the numbers of `given`."""
        return self.calls_at(lambda node: Place(self._number[node], 0, node.shape, node.dtype), self.specs)

    # Kernels and memory

    @lazy
    def kernel_of(self) -> dict[Key, Any]:
        """The kernel of each group, by the group's key; values without elements have none."""
        self.is_compiled = True
        if not self.specs:
            return {}
        beside = [kernels.RUN] if self.ctx.kind == "cpu" else []  # compiled while others are lowered
        before, began = kernels.compiled(), perf_counter()
        with collecting_later():
            found = kernels.get([*beside, *self.specs.values()], TARGETS[self.ctx.kind])
        updated = [parameter.name for parameter, _ in self.graph.updates]
        results = [node.name for node in self.results if node is not None] or updated
        feeds = [(node.name, node.shape) for node in self.given if not node.op.leaf]
        made, seconds = kernels.compiled() - before, perf_counter() - began
        kernels.tell_compiled(results, feeds, len(self.specs), made, seconds)
        return dict(zip(self.specs, found[len(beside) :], strict=True))

    @property
    def kernels(self) -> dict[Node, Any]:
        """The kernel that computes each node."""
        return {node: kernel for key, kernel in self.kernel_of.items() for node in self.located(key)[0].nodes}

    @property
    def nbytes_planned(self) -> int:
        """Bytes of the arena."""
        return max(self._scratch_start + self._scratch_bytes, 1)

    @property
    def _scratch_start(self) -> int:
        return -(-self.memory.bytes_planned // SCRATCH) * SCRATCH

    @lazy
    def _scratch_bytes(self) -> int:
        """Bytes behind all values for arrays to work in: as many as the kernel takes that needs most."""
        if self.ctx.kind == "cpu":
            return 0  # without asking for the kernels
        return max((_ends(kernel.scratch)[-1] for kernel in self.kernel_of.values()), default=0)

    @property
    def bound_calls(self) -> Calls:
        """The calls with the arrays that the kernels get to work in. Compiles them."""
        made = iter(self.kernel_of.values())

        def bound(call: Call | Repeat, moves: tuple[tuple[int, bool], ...]) -> Call | Repeat:
            if isinstance(call, Repeat):
                return replace(call, calls=tuple([bound(inner, (*moves, (0, False))) for inner in call.calls]))
            scratch = next(made).scratch
            starts = [self._scratch_start + end for end in _ends(scratch)]
            more = [Place(None, at, shape, dtype, moves) for at, (shape, dtype) in zip(starts, scratch, strict=False)]
            return replace(call, places=(*call.places, *more)) if more else call

        return [bound(call, ()) for call in self.calls]

    @lazy
    def tensor(self) -> Any:
        """The arena's memory, a tensor. Allocates it."""
        if self.arena is None:
            self.arena = Arena(self.ctx)
        self.is_placed = True
        return self.arena.memory(self.nbytes_planned, self)

    def leave(self) -> None:
        """Forget where the arena was: the next use asks for it again."""
        for name in ("tensor", "arrays", "_runner"):
            self.__dict__.pop(name, None)
        self._results = None
        self.is_placed = False

    @lazy
    def arrays(self) -> dict[Node, Array]:
        """The Array of every value in the arena; views share memory."""
        return {node: self._array(node, self.tensor) for node in self.memory.buffer_of}

    def _array(self, node: Node, memory: Any) -> Array:
        """The Array of a value in the memory that has it."""
        return Array(view_of(memory, node.shape, node.dtype, self.memory.offset(node)), self.ctx)

    @lazy
    def _runner(self) -> Runner:
        """The compiled function that makes all calls of the plan; on a GPU it replays them as a graph."""
        made, calls = iter(self.kernel_of.values()), self.bound_calls
        functions = [next(made).function for _ in kernels.each_call(calls)]
        on_host = any(spec.host is not None for spec in self.specs.values())  # which a GPU's graph cannot have
        kind = Runner if self.ctx.kind == "cpu" or on_host else kernels.Replay
        with collecting_later():
            return kind(calls, functions, len(self.given), self.tensor)

    # Runs

    @lazy
    def _bound(self) -> list[Array | None]:
        """The arrays whose pointers the runner has, in the order of `given`."""
        return [None] * len(self.given)

    @lazy
    def _fed(self) -> list[tuple[Node, Type, int]]:
        """The nodes that a user feeds, each with its type and its number in `given`, -1 of one that is not read; lists
        are walked twice as fast as dictionaries."""
        fed = [(node, leaf.value_type, self._number.get(leaf, -1)) for node, leaf in self.leaves.items()]
        return fed  # type: ignore[return-value]

    @lazy
    def _parameters(self) -> list[tuple[int, Node]]:
        """The leaves that no user feeds, and their numbers."""
        fed = set(self.leaves.values())
        return [(number, node) for number, node in enumerate(self.given) if node not in fed]

    @lazy
    def _handles(self) -> list[tuple[int, Any]]:
        """The numbers of the leaves that a handle names, and the handles, which may name others by now."""
        handles = ((number, node.owner and node.owner()) for number, node in self._parameters)
        return [(number, handle) for number, handle in handles if handle is not None]

    def run(self, feeds: Mapping[Node, Any], checks: bool = True) -> list[Array | None] | None:
        """Puts the feeds, by the user's nodes, into their places, and runs. Allocates nothing after the first time.

        Returns the results, the same objects in every run unless a parameter moved. None, and nothing is run, for feeds
        of other nodes, or that are no Arrays of the plan's types on its device. `checks`: whether it does
        `require_in_range`, too.
        """
        bound, fed, changed = self._bound, self._fed, False
        if type(feeds) is not dict or len(feeds) != len(fed):
            return None
        for node, of, number in fed:
            array = feeds.get(node)
            if number < 0 or array is not bound[number]:
                if type(array) is not Array or array.context is not self.ctx:
                    return None
                if array.shape != of.shape or array.dtype != of.dtype:
                    return None
                changed = True
        if checks and self.indices:
            self.require_in_range(feeds)
        runner = self._runner
        moved = [number for number, handle in self._handles if handle.node.held is not bound[number]]
        if self._results is None:  # before the first run
            start = self.tensor.data_ptr()
            self._spans = {-1: (start, start + self.nbytes_planned)}
            moved = [number for number, _ in self._parameters]
        if moved or self._results is None:
            self._move(moved, feeds)
            changed = True
        for node, _, number in fed if changed else ():
            if number >= 0 and feeds[node] is not bound[number]:
                self._bind(number, feeds[node])
        runner.run()
        if self._written_parameters:
            written = stamp()
            for number in self._written_parameters:  # their arrays say that a run has overwritten them
                bound[number].written = written  # type: ignore[union-attr]
        return self._results

    def rest(self) -> None:
        """Let go of the arrays of the latest run, as another plan's turn comes. Results that were returned stay."""
        self._bound, self._copies, self._results = [None] * len(self._bound), {}, None

    def let_go(self) -> None:
        """Hold what the latest run was fed no longer."""
        for _, _, number in self._fed:
            if number >= 0:
                self._bound[number] = None

    def require_in_range(self, feeds: Mapping[Node, Any]) -> None:
        """Raises IndexRangeError for an index out of range in a feed of host memory."""
        for fed in self.indices:
            value = feeds[fed.feed]
            if lies_on(value).kind == "cpu":
                fed.require_in_range(host_array(value, fed.feed.attrs.get("dtype") or np.float32))

    @lazy
    def _written_parameters(self) -> list[int]:
        """The numbers of the parameters that a run writes."""
        return [number for number, node in self._parameters if node in self.updated]

    def _move(self, moved: Sequence[int], feeds: Mapping[Node, Array]) -> None:
        """Binds the parameters of these numbers, which name other arrays than in the run before: finds what memory a
        run writes, the arena and parameters. All feeds are to be bound after it."""
        fed = {number: feeds[node] for node, _, number in self._fed if number >= 0}
        arrays = fed | {number: self._fitting(self.given[number]) for number in moved}
        for number, array in arrays.items():
            if (size := self._bytes_written[number]) > 0:
                start = array.tensor.data_ptr()
                self._spans[number] = start, start + size
        self._written = sorted(self._spans.values())
        self._low, self._high = self._written[0][0], self._written[-1][1]
        for number, array in arrays.items():
            if number in fed:
                self._bound[number] = None
            else:
                self._bind(number, array)
        self._results = [self._result(node, fed) for node in self.results]

    def _fitting(self, node: Node) -> Array:
        """A parameter's array on the device. Raises GraphError where it became one of another type since: kernels trust
        it."""
        array: Array = array_on(node, self.ctx)
        if array.shape != node.shape or array.dtype != node.dtype:
            raise GraphError(
                f"{node.name} was {node.dtype} {node.shape} when this was compiled, and is {array.dtype} "
                f"{array.shape}: make a new Executor"
            )
        return array

    def _result(self, node: Node | None, fed: Mapping[int, Array]) -> Array | None:
        """The array of a result: in the arena, or in the parameter in whose memory it is; None for a group of updates.
        """
        if node is None:
            return None
        array, _ = self.memory.at(node)
        if array is None:
            return self.arrays[node]
        number = self._number[array]
        known: Any = fed[number] if number in fed else self._bound[number]
        return self._array(node, known.tensor)

    def _bind(self, number: int, array: Array) -> None:
        """Passes the pointer of a given array to the runner; of one that the run would overwrite but should only read,
        such as its last result that is fed again, that of a copy, whose memory is taken once."""
        start = array.tensor.data_ptr()
        end = start + self._bytes_read[number]
        if start < self._high and end > self._low and self._is_written(start, end):
            copy = self._copies[number] = copied(array, self._copies.get(number))
            self._bound[number], start = None, copy.tensor.data_ptr()
        else:
            self._bound[number] = array
        self._runner.given[number] = start

    def _is_written(self, start: int, end: int) -> bool:
        """Whether a run writes into the memory between two addresses."""
        i = bisect_right(self._written, start, key=itemgetter(1))
        return i < len(self._written) and self._written[i][0] < end

    @lazy
    def _bytes_written(self) -> list[int]:
        """The bytes of each given array that a run writes."""
        return [nbytes_of(node) if node in self.updated else 0 for node in self.given]

    @lazy
    def _bytes_read(self) -> list[int]:
        """The bytes of each given array that must stay as they are in a run: none of one that it updates."""
        return [0 if node in self.updated else nbytes_of(node) for node in self.given]
