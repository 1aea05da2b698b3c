"""A program made ready to run on a device: arena, kernels, and the list of their calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy as np

from .. import kernels
from ..devices import Array, Context, copied, host_array, lies_on, view_of
from ..errors import GraphError
from ..graph import Node, Type, stamp, type_of
from ..kernels import ArrayType, Call, Calls, Place, Repeat, Runner
from ..planner import MemoryPlan
from ..system import collecting_later, lazy
from .indices import FedIndices
from .program import Arena, Key, Program

TARGETS = {"cpu": "llvm", "cuda": "cuda"}
"""What kernels are compiled for, by the kind of context."""
SCRATCH = 256  # bytes at a multiple of which arrays to work in begin
EACH, PER_NODE = 8192, 1536  # bytes of Python's objects, about: 10, 153 and 411 KiB for 3, 213 and 355 nodes


def _ends(types: Iterable[ArrayType]) -> list[int]:
    """Where each array would end if they lay one behind the other from 0 on, which comes first."""
    sizes = (prod(shape) * np.dtype(dtype).itemsize for shape, dtype in types)
    return list(accumulate((-(-size // SCRATCH) * SCRATCH for size in sizes), initial=0))


class Plan:
    """One signature's program on one device. Each stage is done when it is first needed, and cached; the caller holds
    the arena's lock.

    Attributes:
        program: what is computed.
        is_compiled: whether the kernels are.
        is_placed: whether it has memory in the arena.
    """

    is_compiled: bool
    is_placed: bool

    def __init__(
        self,
        program: Program,
        ctx: Context,
        arena: Arena | None = None,
        indices: Sequence[FedIndices] = (),
        leaves: Mapping[Node, Node] | None = None,
    ) -> None:
        """`arena`: memory shared with other plans of the context; its own for None. `indices`: those among the feeds,
        for `require_in_range`. `leaves`: what stands in the program for nodes that a user feeds."""
        self.program = program
        self.ctx = ctx
        self.indices = indices
        self.leaves: Mapping[Node, Node] = leaves or {}
        self.is_compiled = self.is_placed = False
        self._arena = arena or Arena(ctx)
        self._parameters: dict[Node, Array] = {}
        self._results: list[Array | None] | None = None
        self._bound: list[Array | None] = []  # the arrays whose pointers the runner has, in the order of `given`
        self._written: list[tuple[int, int]] = []  # the memory that a run writes, from which address to which, sorted
        self._low = self._high = 0  # the first and the last of these addresses
        self._copies: dict[int, Array] = {}  # of given arrays that lie in that memory, by their number
        # What the latest run read, for `run_again`: the user's node, its number, and the array, or its type where that
        # is held no longer; lists are walked twice as fast as dictionaries. None where something else that was fed
        # decides what is run.
        self._fed: list[tuple[Node, int, Array | Type]] | None = None
        self._held: list[tuple[Any, Array]] = []  # the Parameters' cells

    @property
    def nbytes(self) -> int:
        """Bytes that the plan takes, about, without its kernels and the arena, which are others' too."""
        return EACH + PER_NODE * len(self.program.graph.nodes)

    def rest(self) -> None:
        """Let go of the arrays of the latest run, as another plan's turn comes. Results that were returned stay."""
        self._parameters, self._copies, self._held, self._bound = {}, {}, [], [None] * len(self._bound)
        self._results = self._fed = None

    def let_go(self) -> None:
        """Hold what the latest run was fed no longer."""
        if self._fed is not None:
            self._fed = [(node, i, type_of(array.shape, array.dtype)) for node, i, array in self._fed]
        pairs = zip(self.given, self._bound, strict=False)  # nothing is bound before the first run
        self._bound = [array if node in self._parameters else None for node, array in pairs]

    @lazy
    def updated(self) -> tuple[Any, ...]:
        """The cells of the Parameters whose memory a run writes."""
        return tuple(parameter.cell for parameter, _ in self.program.graph.updates)

    @property
    def memory(self) -> MemoryPlan:
        """Who lives where in the arena, when."""
        assert self.program.memory is not None
        return self.program.memory

    @lazy
    def arena(self) -> Any:
        """The arena's memory, a tensor. Allocates it."""
        self.is_placed = True
        return self._arena.memory(self.nbytes_planned, self)

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

    def leave(self) -> None:
        """Forget where the arena was: the next use asks for it again."""
        for name in ("arena", "arrays", "_runner"):
            self.__dict__.pop(name, None)
        self._results = self._fed = None
        self.is_placed = False

    @lazy
    def arrays(self) -> dict[Node, Array]:
        """The Array of every value in the arena; views share memory."""
        return {node: self._view(node, self.arena, self.memory.offset(node)) for node in self.program.stored()}

    def _view(self, node: Node, memory: Any, offset: int = 0) -> Array:
        return Array(view_of(memory, *self.program.type_of(node), offset), self.ctx)

    @lazy
    def specs(self) -> dict[Key, Any]:
        """The kernel that each group needs, by the group's key, in the order of running; values without elements need
        none."""
        return self.program.specs()

    @lazy
    def kernel_of(self) -> dict[Key, Any]:
        """The kernel of each group, by the group's position; values without elements have none."""
        with collecting_later():
            return self._kernels()

    def _kernels(self) -> dict[Key, Any]:
        specs = self.specs
        self.is_compiled = True
        if not specs:
            return {}
        beside = [kernels.RUN] if self.ctx.kind == "cpu" else []  # compiled while others are lowered
        before, began = kernels.compiled(), perf_counter()
        found = kernels.get([*beside, *specs.values()], TARGETS[self.ctx.kind])
        self._tell(len(specs), kernels.compiled() - before, perf_counter() - began)
        return dict(zip(specs, found[len(beside) :], strict=True))

    def _tell(self, count: int, made: int, seconds: float) -> None:
        """Logs that the kernels are ready."""
        graph = self.program.graph
        results = [node.name for node in self.program.results if node is not None] or [p.name for p, _ in graph.updates]
        feeds = [(node.name, node.shape) for node in self.program.given if node.cell is None]
        kernels.tell_compiled(results, feeds, count, made, seconds)

    @property
    def kernels(self) -> dict[Node, Any]:
        """The kernel that computes each node."""
        located = self.program.located
        return {node: kernel for key, kernel in self.kernel_of.items() for node in located(key).group.nodes}

    @lazy
    def given(self) -> list[Node]:
        """What a run reads, as `Program.given`, by the nodes that a user feeds."""
        of_user = {leaf: node for node, leaf in self.leaves.items()}
        return [of_user.get(node, node) for node in self.program.given]

    @lazy
    def _parameters_given(self) -> list[Node]:
        return [node for node in self.given if node.cell is not None]

    @lazy
    def _number(self) -> dict[Node, int]:
        return {node: number for number, node in enumerate(self.program.given)}

    def _given_place(self, node: Node) -> Place:
        return Place(self._number[node], 0, *self.program.type_of(node))

    @lazy
    def calls(self) -> list[Call | Repeat]:
        """The step's calls in order."""
        return self.program.calls(self._given_place, self.specs)

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
    def _runner(self) -> Runner:
        """The compiled function that makes all calls of the plan; on a GPU it replays them as a graph."""
        self._bound = [None] * len(self.given)
        made, calls = iter(self.kernel_of.values()), self.bound_calls
        functions = [next(made).function for _ in kernels.each_call(calls)]
        on_host = any(spec.host is not None for spec in self.specs.values())  # which a GPU's graph cannot have
        kind = Runner if self.ctx.kind == "cpu" or on_host else kernels.Replay
        with collecting_later():
            return kind(calls, functions, len(self.given), self.arena)

    def run(self, fed: Mapping[Node, Array], alone: bool = False) -> list[Array | None]:
        """Put the feeds, by the user's nodes, into their places and run. Allocates nothing after the first time.
        `alone`: whether the user fed these and no others.

        Returns the results, the same objects in every run unless a parameter moved.
        """
        runner, moved, ctx = self._runner, self._results is None, self.ctx
        self._fed = None  # until all is in its place
        for node in self._parameters_given:
            if node not in fed:
                array: Any = node.cell.content
                if type(array) is not Array or array.context is not ctx:
                    array = node.cell.on(ctx)
                if self._parameters.get(node) is not array:
                    self._parameters[node] = self._fitting(node, array)
                    moved = True
        if moved:
            self._bound = [None] * len(self.given)
            self._note_what_is_written({**self._parameters, **fed})
        repeats = alone and len(self._parameters) + len(fed) == len(self.given)
        for i, node in enumerate(self.given):
            array = fed.get(node)
            if array is None:  # what is given and not fed is a Parameter
                array = self._parameters[node]
            if not self._bind(i, array):
                self._bind_copy(i, array)
                repeats = False
        if repeats:
            self._fed = [(node, i, fed[node]) for i, node in enumerate(self.given) if node in fed]
            self._held = [(node.cell, array) for node, array in self._parameters.items()]
        if len(runner):
            runner.run()
        if moved:
            self._results = [self._result(node) for node in self.program.results]
        self._stamp()
        assert self._results is not None
        return self._results

    def require_in_range(self, feeds: Mapping[Node, Any]) -> None:
        """Raises IndexRangeError for an index out of range in a feed of host memory."""
        for fed in self.indices:
            value = feeds[fed.feed]
            if lies_on(value).kind == "cpu":
                fed.require_in_range(host_array(value, fed.feed.attrs.get("dtype") or np.float32))

    def run_again(self, feeds: Mapping[Node, Any], checks: bool = True) -> list[Array | None] | None:
        """As `run`, of arrays like the latest run's, with parameters where they were. None, and nothing is run, for all
        else: finding out what is fed takes longer than a small kernel. `checks`: whether it does `require_in_range`."""
        fed = self._fed
        if fed is None or type(feeds) is not dict or len(feeds) != len(fed):
            return None
        same = True
        for node, number, before in fed:
            array = feeds.get(node)
            if array is not before:
                if type(array) is not Array or array.context is not self.ctx:
                    return None
                if array.shape != before.shape or array.dtype != before.dtype:
                    return None
                if not self._bind(number, array):
                    return None
                same = False
        if not same:
            self._fed = [(node, number, feeds[node]) for node, number, _ in fed]
        for cell, array in self._held:
            if cell.content is not array:
                return None
        if checks and self.indices:
            self.require_in_range(feeds)
        self._runner.run()
        if self.updated:
            self._stamp()
        return self._results

    def _bind(self, i: int, array: Array) -> bool:
        """Pass the pointer of the i-th given array to the runner. False, and nothing is passed, for an array that the
        run would overwrite but should only read, such as its last result that is fed again."""
        if array is not self._bound[i]:
            start = array.tensor.data_ptr()
            end = start + self._bytes_read[i]
            if start < self._high and end > self._low and self._is_written(start, end):
                return False
            self._bound[i] = array
            self._runner.given[i] = start
        return True

    def _bind_copy(self, i: int, array: Array) -> None:
        """Tells the runner where a copy of the i-th given array lies, whose memory is taken once."""
        copy = self._copies[i] = copied(array, self._copies.get(i))
        self._bound[i] = None
        self._runner.given[i] = copy.tensor.data_ptr()

    def _is_written(self, start: int, end: int) -> bool:
        """Whether a run writes into the memory between two addresses."""
        i = bisect_right(self._written, start, key=itemgetter(1))
        return i < len(self._written) and self._written[i][0] < end

    def _note_what_is_written(self, given: Mapping[Node, Array]) -> None:
        """Finds the memory that a run writes: the arena and the parameters that it updates."""
        memory = [(self.arena, self.nbytes_planned)]
        for parameter, _ in self.program.graph.updates:
            memory.append((given[parameter].tensor, self.program.nbytes(parameter)))
        self._written = sorted((tensor.data_ptr(), tensor.data_ptr() + size) for tensor, size in memory)
        self._low, self._high = self._written[0][0], self._written[-1][1]

    @lazy
    def _bytes_read(self) -> list[int]:
        """The bytes of each given array that must stay as they are in a run: none of one that it updates."""
        updated = {parameter for parameter, _ in self.program.graph.updates}
        return [0 if node in updated else self.program.nbytes(node) for node in self.program.given]

    def _stamp(self) -> None:
        """Says of the parameters' arrays that a run has overwritten them."""
        number = stamp()
        for cell in self.updated:
            cell.content.written = number

    def _fitting(self, node: Node, array: Array) -> Array:
        """A parameter's array. Raises GraphError where it became one of another type since: kernels trust it."""
        shape, dtype = self.program.type_of(node)
        if array.shape != shape or array.dtype != dtype:
            raise GraphError(
                f"{node.name} was {dtype} {shape} when this was compiled, and is {array.dtype} {array.shape}: "
                f"make a new Executor"
            )
        return array

    def _result(self, node: Node | None) -> Array | None:
        """The array of a result: its buffer in the arena, or a view of the parameter that it lies in; None for a group
        of updates."""
        if node is None:
            return None
        if node in self.memory.buffer_of:
            return self.arrays[node]
        aliases = self.program.aliases
        return self._view(node, self._parameters[aliases.source(node)].tensor, aliases.offset(node))
