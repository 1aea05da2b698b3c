"""Loops: a step of a `scan` becomes a program of its own, which the runner's table repeats with moved pointers.

The step is compiled once, whatever the number of steps. Slices are read where the array lies; what is carried is
written where the next step reads it: into all that it was, if a later kernel or the result needs that, else into two
places in turn. What all steps would compute alike is computed before the loop, the panels of its matrices too. Between,
a step's values lie in one piece of the outer arena, which the loop has for itself while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..graph import Node, Op, Shape, find_topo_sort
from ..kernels import Call, KernelSpec, Place, Repeat
from ..ops import Variable, slice_op, stack_op
from ..ops.loop import Body, joint_key, loop_length, step_dtypes, step_shapes
from ..scopes import precision
from .aliases import nbytes_of
from .base import BOUNDARY, TypedGraph, rewrite, value_inputs
from .groups import Group
from .lower import lower
from .passes import run_passes
from .products import Columns, pack
from .program import ARENA, Key, Program
from .rows import LEAST_ROWS, of_one_thread, rows_apart
from .types import analyse


@dataclass(frozen=True)
class Where:
    """Where a step finds a value: in a loop's input or result of this number, from byte `offset` in the first step, and
    `stride` bytes further in each, or, if it `alternates`, in every other one; `share` bytes further for each thread,
    if they have rows of their own."""

    number: int
    is_result: bool = False
    offset: int = 0
    stride: int = 0
    alternates: bool = False
    share: int = 0


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop as programs.

    Attributes:
        length: the number of steps.
        start: puts the first carried values where the first step reads them.
        step: is run so many times.
        where: what each given node of the two is.
        types: shape and dtype of each result; the last is the memory for a step's own values, if there are any.
        threads: each of which runs all steps with rows of its own, see `rows`; 1 where they share every kernel.
    """

    length: int
    start: Program
    step: Program
    where: dict[Node, Where]
    types: list[tuple[Shape, str]]
    threads: int = 1

    @property
    def parts(self) -> tuple[Program, Program]:
        """The programs, in the order of running."""
        return self.start, self.step

    def calls(
        self, place: Callable[[Node], Place], group: Group, specs: Mapping[Key, KernelSpec], key: Key
    ) -> list[Call | Repeat]:
        """The calls of a group that is this loop, with this key. `place`: of the values outside."""
        share = self.step.memory.bytes_planned if self.threads > 1 else 0  # type: ignore[union-attr]
        arrays = {False: group.nodes[0].inputs, True: group.outputs}

        def found(where: Where, repeated: bool) -> Place:
            at = place(arrays[where.is_result][where.number])
            moves = [*([(where.share, False)] if self.threads > 1 else []), (where.stride, where.alternates)]
            return replace(at, offset=at.offset + where.offset, moves=(*at.moves, *(moves if repeated else ())))

        def calls(part: int) -> tuple[Call | Repeat, ...]:
            repeated = part > 0
            own = partial(found, repeated=repeated)
            memory = own(Where(self.memory, True, share=share)) if self.memory < len(group.outputs) else ARENA
            return tuple(self.parts[part].calls(lambda node: own(self.where[node]), specs, memory, (*key, part)))

        steps = Repeat(calls(1), self.length)
        return [*calls(0), steps if self.threads == 1 else Repeat((steps,), self.threads, at_once=True)]

    @property
    def memory(self) -> int:
        """The number of the result that is the memory for a step's own values; of none where there are no values."""
        assert self.step.memory is not None
        return len(self.types) - bool(self.step.memory.bytes_planned)

    @property
    def steps(self) -> str:
        """`5 steps`, or `5 steps on each of 2 threads`."""
        return f"{self.length} steps{f' on each of {self.threads} threads' if self.threads > 1 else ''}"

    def __repr__(self) -> str:
        return f"<{self.length} steps of {len(self.step.groups)} kernels, {id(self):x}>"


class _Result(Op):
    """A result of a loop: `attrs["of"]`, by number."""

    name = kind = "loop"
    never = "a loop has no formula: its step has kernels"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return node.attrs["loop"].types[node.attrs["of"]][0]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return node.attrs["loop"].types[node.attrs["of"]][1]

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 0  # its kernels say theirs


RESULT = _Result()


@precision(None)  # not that of the context in which a graph is compiled
def make_program(
    graph: TypedGraph, passes: Iterable[str], columns: Columns | None = None, kind: str = "cpu", threads: int = 1
) -> Program:
    """The graph through the passes named, grouped into kernels, and put in order. `columns`: how wide the panels of the
    machine's products are; None where its products pack nothing. `kind`: of the context, "cpu" or "cuda"; `threads`:
    that may have rows of their own."""
    return _Lowering(frozenset(passes), columns, kind, threads).program(graph)


@dataclass(frozen=True)
class _Lowering:
    """From a graph to a program, and so from a loop's step."""

    names: frozenset[str]
    columns: Columns | None
    kind: str
    threads: int

    def program(self, graph: TypedGraph) -> Program:
        unplanned = sum(nbytes_of(node, graph) for node in graph.nodes)
        return self.lowered(self.optimized(graph), unplanned)

    def optimized(self, graph: TypedGraph, same: frozenset[Node] = frozenset()) -> TypedGraph:
        """The graph through the passes. `same`: what is given and does not change from run to run."""
        graph = run_passes(graph, self.names)
        if "pack" in self.names and self.columns is not None:
            graph = pack(graph, self.columns, same)
        return graph

    def lowered(self, graph: TypedGraph, unplanned: int = 0) -> Program:
        """The program of an optimized graph."""
        return lower(self.rolled(graph), self.names, self.kind, unplanned)

    def rolled(self, graph: TypedGraph) -> TypedGraph:
        """The graph with a node for each result of each loop, and one for the memory of its steps."""
        if not any(node.op.joint for node in graph.nodes):
            return graph
        loops, nodes = self._loops(graph)
        origins: dict[Node, Node] = {}
        made: dict[Any, _Rolled | _Unrolled] = {}

        def rule(node: Node, typed: TypedGraph) -> Node | None:
            if not node.op.joint:
                return None
            key = joint_key(origins.get(node, node))
            if key not in made:
                made[key] = rolled = loops[key]
                if rolled.fits:
                    rolled.make(node)
                else:
                    made[key] = _Unrolled(node, typed)
            return made[key].result(node)

        graph = replace(graph, nodes=nodes)
        return _with_all_results(rewrite(graph, rule, origins, name="loops", why="a loop is a kernel of kernels"))

    def _loops(self, graph: TypedGraph) -> tuple[dict[Any, _Rolled], tuple[Node, ...]]:
        """The loops of which something is needed, from the last on, and the nodes that are: after the passes a step may
        read less than its graph says, and so an earlier loop may have less to keep."""
        first: dict[Any, Node] = {}
        for node in graph.nodes:
            if node.op.joint:
                first.setdefault(joint_key(node), node)
        needed, wanted = set(graph.roots), {}  # type: tuple[set[Node], dict[Any, list[Node]]]
        loops: dict[Any, _Rolled] = {}
        for node in reversed(graph.nodes):
            if not node.op.joint:
                needed.update(value_inputs(node) if node in needed else ())
                continue
            key = joint_key(node)
            if node in needed:
                wanted.setdefault(key, []).append(node)
            if first[key] is node and key in wanted:
                loops[key] = found = _Rolled(node, wanted[key], graph, self)
                needed.update(node.inputs[i] for i in found.read)
        return loops, tuple([node for node in graph.nodes if node in needed])


def _with_all_results(graph: TypedGraph) -> TypedGraph:
    """The graph with a node for each result of its loops, also for those that nobody reads: together, in order."""
    found: dict[Loop, dict[int, Node]] = {}
    for node in graph.nodes:
        if node.op is RESULT:
            found.setdefault(node.attrs["loop"], {})[node.attrs["of"]] = node
    nodes: list[Node] = []
    shapes, dtypes = dict(graph.shapes), dict(graph.dtypes)
    for node in graph.nodes:
        if node.op is not RESULT:
            nodes.append(node)
            continue
        loop: Loop = node.attrs["loop"]
        known = found.pop(loop, None)
        for of, (shape, dtype) in enumerate(loop.types if known is not None else ()):
            if (result := known.get(of)) is None:  # type: ignore[union-attr]
                result = _result(loop, node.inputs, of, node)
                shapes[result], dtypes[result] = shape, dtype
            nodes.append(result)
    return replace(graph, nodes=tuple(nodes), shapes=shapes, dtypes=dtypes)


def _result(loop: Loop, inputs: list[Node], of: int, like: Node) -> Node:
    node = Node(RESULT, inputs, {"loop": loop, "of": of}, "memory_of_step" if of == loop.memory else None)
    node.placed_as(like)
    return node


class _Rolled:
    """A loop of which some results are wanted.

    Attributes:
        fits: whether all that a step reads and writes begins at a multiple of the boundary.
        read: the numbers of the inputs that are read.
    """

    def __init__(self, node: Node, wanted: Sequence[Node], graph: TypedGraph, lowering: _Lowering) -> None:
        self.lowering = lowering
        self.body: Body = node.attrs["body"]
        self.length = loop_length(node, [graph.shapes[value] for value in node.inputs])
        self.shapes = step_shapes(node, [graph.shapes[value] for value in node.inputs])
        self.dtypes = step_dtypes(node, [graph.dtypes[value] for value in node.inputs])
        self.tracks = {one.attrs["of"] for one in wanted if one.attrs["what"] == "track"}
        stacks = sorted({one.attrs["of"] for one in wanted if one.attrs["what"] == "stack"})
        self.carried = [k for k in self.body.needed(one.attrs["of"] for one in wanted) if k < self.body.carried]
        self.end = self.body.carried + self.body.sliced  # of the variables that change from step to step
        moved = (*self.carried, *stacks, *range(self.body.carried, self.end))
        self.fits = all(self._nbytes(of) % BOUNDARY[lowering.kind] == 0 for of in moved)
        self.read = list(range(len(node.inputs)))
        if self.fits:
            self._optimize(stacks)

    def _nbytes(self, of: int) -> int:
        return prod(self.shapes[of]) * np.dtype(self.dtypes[of]).itemsize

    def _optimize(self, stacks: Sequence[int]) -> None:
        """Sets the graph of a step, through the passes, and which of its values are kept of all steps."""
        body = self.body
        ends = [body.nodes[of] for of in (*(body.out[k] for k in self.carried), *stacks)]
        order = find_topo_sort(ends)
        below, types = set(order), list(zip(self.shapes, self.dtypes, strict=True))
        given = {variable: types[of] for of, variable in enumerate(body.variables) if variable in below}
        self.same = frozenset(variable for variable in body.variables[self.end :] if variable in below)
        self.step = self.lowering.optimized(analyse(order, ends, given), self.same)
        read = {value for node in self.step.nodes for value in value_inputs(node)} | set(self.step.roots)
        self.read = [of for of, variable in enumerate(body.variables) if variable in read or of in self.carried]
        of_value: dict[Any, int] = {}  # two that the passes found to be equal are kept once
        kept = self.step.outputs[len(self.carried) :]
        self.stacks = [of_value.setdefault(value, of) for value, of in zip(kept, stacks, strict=True)]
        self.number = {of: len(self.carried) + i for i, of in enumerate(of_value.values())}
        self.stands_for = dict(zip(stacks, self.stacks, strict=True))

    def make(self, node: Node) -> None:
        """Sets the results, as of a loop whose inputs are the node's."""
        self.node = node
        self.where: dict[Node, Where] = {}
        self.inputs: list[Node] = []
        moving = [self.body.nodes[of] for of in self.read if of < self.end]
        rows, self.apart = rows_apart(self.step, moving)
        threads = self.lowering.threads
        self.threads = threads if rows >= LEAST_ROWS * threads and rows % threads == 0 else 1
        types = [((self._slots(k), *self.shapes[k]), self.dtypes[k]) for k in self.carried]
        types += [((self.length, *self.shapes[of]), self.dtypes[of]) for of in self.number]
        start = self.lowering.lowered(self._start())
        step = self.lowering.lowered(self._placed())
        assert step.memory is not None
        if nbytes := step.memory.bytes_planned:
            types.append(((nbytes * self.threads,), "uint8"))
        loop = Loop(self.length, start, step, self.where, types, self.threads)
        self.results = [_result(loop, self.inputs, of, node) for of in range(loop.memory)]

    def _slots(self, k: int) -> int:
        return self.length + 1 if k in self.tracks else 2

    def _slot(self, k: int, after: bool) -> Where:
        """Where a step reads a carried value, or writes its next one."""
        number, nbytes, share = self.carried.index(k), self._nbytes(k), self._share(k)
        if k not in self.tracks:
            return Where(number, True, nbytes * after, -nbytes if after else nbytes, alternates=True, share=share)
        first = self.length - after if self.body.reverse else int(after)
        return Where(number, True, first * nbytes, -nbytes if self.body.reverse else nbytes, share=share)

    def _share(self, of: int) -> int:
        return self._nbytes(of) // self.threads if self.threads > 1 else 0

    def _sliced(self, of: int, number: int, is_result: bool) -> Where:
        """Where a step finds its slice of an array of all steps."""
        nbytes, share = self._nbytes(of), self._share(of)
        if self.body.reverse:
            return Where(number, is_result, (self.length - 1) * nbytes, -nbytes, share=share)
        return Where(number, is_result, 0, nbytes, share=share)

    def _input(self, node: Node) -> int:
        """The number of the loop's input that a node of the outer graph is."""
        for number, known in enumerate(self.inputs):
            if known is node:
                return number
        self.inputs.append(node)
        return len(self.inputs) - 1

    def _place(self, of: int, where: Where) -> Node:
        """A variable of the type of a node of the body, for what lies there."""
        variable = Variable(f"place{len(self.where)}", self.shapes[of], self.dtypes[of])
        self.where[variable] = where
        return variable

    def _start(self) -> TypedGraph:
        """The graph that puts the first carried values into their places."""
        updates = []
        for k in self.carried:
            first = self._place(k, Where(self._input(self.node.inputs[k])))
            updates.append((self._place(k, replace(self._slot(k, after=False), stride=0)), first))
        return _updating(TypedGraph((), (), (), frozenset(), {}, {}, {}), updates)

    def _placed(self) -> TypedGraph:
        """The graph of a step that finds its variables, and puts its values, where they are. What is equal in all
        steps is not in it: the outer graph computes it, as a node that the loop is given."""
        step, same = self.step, self.same
        outer = {variable: self.node.inputs[self.body.number[variable]] for variable in same}
        now: dict[Node, Node] = {}
        nodes: list[Node] = []
        shapes, dtypes = dict(step.shapes), dict(step.dtypes)

        def read(value: Node) -> Node:
            """The value in the step: itself, or a variable for what is computed before the loop."""
            if value not in outer or value in now:
                return now.get(value, value)
            now[value] = variable = Variable(value.name, shapes[value], dtypes[value])
            shapes[variable], dtypes[variable] = shapes[value], dtypes[value]
            self.where[variable] = Where(self._input(outer[value]))
            return variable

        for node in step.nodes:
            size = sum(step.size(value) for value in node.inputs if value in outer)
            known = all(value in outer or value.op.constant for value in node.inputs)
            if known and size >= step.size(node) and self.length > 1:  # what only repeats values is no work saved
                outer[node] = Node(node.op, [outer.get(value, value) for value in node.inputs], node.attrs, node.name)
                outer[node].placed_as(node)
                continue
            inputs = [read(value) for value in node.inputs]
            if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
                now[node] = made = Node(node.op, inputs, node.attrs, node.name)
                made.placed_as(node)
                shapes[made], dtypes[made] = shapes[node], dtypes[node]
                node = made
            nodes.append(node)
        values = [read(value) for value in step.outputs if value is not None]
        for of in self.read:
            if of < self.body.carried:
                self.where[self.body.nodes[of]] = self._slot(of, after=False)
            elif of < self.end:
                self.where[self.body.nodes[of]] = self._sliced(of, self._input(self.node.inputs[of]), False)
        places = [self._place(k, self._slot(k, after=True)) for k in self.carried]
        places += [self._place(of, self._sliced(of, number, True)) for of, number in self.number.items()]
        kept = dict(zip(self.stacks, values[len(self.carried) :], strict=True))
        values[len(self.carried) :] = [kept[of] for of in self.number]
        fed = (step.fed - same) | {now[value] for value in now if value in outer}
        step = replace(step, nodes=tuple(nodes), shapes=shapes, dtypes=dtypes, fed=fed)
        step = _updating(step, list(zip(places, values, strict=True)))
        if self.threads == 1:
            return step
        return of_one_thread(step, [*(now.get(node, node) for node in self.apart), *places], self.threads)

    def result(self, node: Node) -> Node:
        """The node of a wanted result, in the place of its `scan`."""
        of, what = node.attrs["of"], node.attrs["what"]
        if what == "stack":
            return self.results[self.number[self.stands_for[of]]]
        found = self.results[self.carried.index(of)]
        if what == "track":
            return found
        end = self.length % 2 if of not in self.tracks else 0 if self.body.reverse else self.length
        return slice_op(found, (end,))


def _updating(graph: TypedGraph, updates: Sequence[tuple[Node, Node]]) -> TypedGraph:
    """The graph that writes values into places, variables of known types."""
    places = [node for pair in updates for node in pair if node.op.variable and node not in graph.fed]
    shapes = {**graph.shapes, **{place: place.attrs["shape"] for place in places}}
    dtypes = {**graph.dtypes, **{place: place.attrs["dtype"] for place in places}}
    fed = graph.fed.union(places)
    return replace(graph, outputs=(), updates=tuple(updates), shapes=shapes, dtypes=dtypes, fed=fed)


class _Unrolled:
    """A loop as the nodes of all its steps."""

    def __init__(self, node: Node, typed: TypedGraph) -> None:
        body: Body = node.attrs["body"]
        length = loop_length(node, [typed.shapes[value] for value in node.inputs])
        end = body.carried + body.sliced
        self.body = body
        self.carried = [list(node.inputs[: body.carried])]
        self.steps: list[dict[Node, Node]] = []
        for t in reversed(range(length)) if body.reverse else range(length):
            slices = [slice_op(x, (t,)) for x in node.inputs[body.carried : end]]
            now = dict(zip(body.variables, [*self.carried[-1], *slices, *node.inputs[end:]], strict=True))
            for own in body.nodes[len(now) :]:
                now[own] = own.op.make([now[value] for value in own.inputs], own.attrs)
            self.carried.append([now[body.nodes[out]] for out in body.out])
            self.steps.append(now)

    def result(self, node: Node) -> Node:
        """The node of a wanted result, in the place of its `scan`."""
        of, what = node.attrs["of"], node.attrs["what"]
        if what == "last":
            return self.carried[-1][of]
        if what == "track":
            values = [carried[of] for carried in self.carried]
        else:
            values = [now[self.body.nodes[of]] for now in self.steps]
        return stack_op(values[::-1] if self.body.reverse else values)


def unrolled(graph: TypedGraph) -> TypedGraph:
    """The graph with the nodes of all steps in the place of each loop."""
    made: dict[Any, _Unrolled] = {}

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        if not node.op.joint:
            return None
        key = joint_key(node)
        if key not in made:
            made[key] = _Unrolled(node, typed)
        return made[key].result(node)

    return rewrite(graph, rule, name="loops", why="a loop is the nodes of its steps")
