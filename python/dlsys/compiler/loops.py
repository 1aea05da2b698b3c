"""Loops: a step of a `scan` becomes a plan of its own, which the runner's table repeats with moved pointers.

The step is compiled once, whatever the number of steps. Slices are read directly from their array. A carried value is
written where the next step reads it: into an array of all steps' values, if a later kernel or a result needs them, else
into two places in turn. Values that are the same in all steps are computed before the loop. The other values of a step
are in one piece of the outer arena, which nothing else uses while the loop runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..graph import OPS, Node, Op, Shape, Type, find_topo_sort, type_of
from ..kernels import Call, KernelSpec, Place, Repeat
from ..ops import slice_op, stack_op
from ..ops import variable as variable_of
from ..ops.loop import Body
from ..scopes import precision
from .base import BOUNDARY, Change, Rule, TypedGraph, rewrite, size_of, value_inputs
from .groups import Group
from .lower import lower
from .plan import ARENA, Key, Plan
from .rules import extended, run_passes
from .types import analyse


@dataclass(frozen=True)
class Where:
    """Where a step finds a value: in a loop's input or result of this number, from byte `offset` in the first step, and
    `stride` bytes further in each, or, if it `alternates`, in every other one."""

    number: int
    is_result: bool = False
    offset: int = 0
    stride: int = 0
    alternates: bool = False


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop as plans of what comes before it and of a step.

    Attributes:
        length: the number of steps.
        start: puts the first carried values where the first step reads them.
        step: is run so many times.
        where: what each given node of the two is.
        types: shape and dtype of each result; the last is the memory for a step's own values, if there are any.
    """

    length: int
    start: Plan
    step: Plan
    where: dict[Node, Where]
    types: list[tuple[Shape, str]]

    @property
    def parts(self) -> tuple[Plan, Plan]:
        """The plans, in the order of running."""
        return self.start, self.step

    def calls(
        self, place: Callable[[Node], Place], group: Group, specs: Mapping[Key, KernelSpec], key: Key
    ) -> list[Call | Repeat]:
        """The calls of a group that is this loop, with this key. `place`: of the values outside."""
        arrays = {False: group.nodes[0].inputs, True: group.outputs}

        def found(where: Where, repeated: bool) -> Place:
            at = place(arrays[where.is_result][where.number])
            moves = ((where.stride, where.alternates),) if repeated else ()
            return replace(at, offset=at.offset + where.offset, moves=(*at.moves, *moves))

        def calls(part: int) -> tuple[Call | Repeat, ...]:
            repeated = part > 0
            own = partial(found, repeated=repeated)
            memory = own(Where(self.memory, True)) if self.memory < len(group.outputs) else ARENA
            return tuple(self.parts[part].calls_at(lambda node: own(self.where[node]), specs, memory, (*key, part)))

        return [*calls(0), Repeat(calls(1), self.length)]

    @property
    def memory(self) -> int:
        """The number of the result that is the memory for a step's own values; of none where there are no values."""
        return len(self.types) - bool(self.step.memory.bytes_planned)

    def __repr__(self) -> str:
        return f"<{self.length} steps of {len(self.step.groups)} kernels, {id(self):x}>"


class _Result(Op):
    """A result of a loop: `attrs["of"]`, by number."""

    name = kind = "loop"
    never = "a loop has no formula: its step has kernels"

    def type_of(self, node: Node) -> Type:
        return type_of(*node.attrs["loop"].types[node.attrs["of"]])


class _Tuple(Op):
    """The inputs as one value, that of a loop: of its results first those in `attrs["items"]`, by their attributes."""

    name, kind = "tuple", "scan"

    def type_of(self, node: Node) -> Type:
        return type_of(tuple([x.shape for x in node.inputs]), tuple([x.dtype for x in node.inputs]))


RESULT, TUPLE = _Result(), _Tuple()
OF_SCAN = OPS["scan_result"]
Item = tuple[int, bool]
"""A result of a `scan`: the number in the body, and whether it is of the last step."""


def _item(node: Node) -> Item:
    return node.attrs["of"], node.attrs["last"]


@precision(None)  # not that of the context in which a graph is compiled
def make_plan(graph: TypedGraph, passes: Iterable[str], kind: str = "cpu") -> Plan:
    """The graph through the passes named, grouped into kernels, and put in order. `kind`: of the context, "cpu" or
    "cuda"."""
    unplanned = sum([of.nbytes for node in graph.nodes if (of := node.value_type) is not None])
    lowering = _Lowering(frozenset(passes), kind)
    return lowering.lowered(extended(run_passes(graph, lowering.names)), unplanned)


@dataclass(frozen=True)
class _Lowering:
    """From a graph to a plan, and so from a loop's step."""

    names: frozenset[str]
    kind: str

    def lowered(self, graph: TypedGraph, unplanned: int = 0) -> Plan:
        """The plan of an optimized graph."""
        return lower(self.rolled(graph), self.names, self.kind, unplanned)

    def rolled(self, graph: TypedGraph) -> TypedGraph:
        """The graph with a node for each result of each loop, and one for the memory of its steps.

        From the last loop on: after the passes a step may read less than its graph says, and so an earlier loop may
        have less to keep."""
        if "scan" not in {node.op.kind for node in graph.nodes}:
            return graph
        needed, wanted = set(graph.roots), {}  # type: tuple[set[Node], dict[Node, set[Item]]]
        loops: dict[Node, _Rolled] = {}
        for node in reversed(graph.nodes):
            if node not in needed:
                continue
            inputs = value_inputs(node)
            if node.op is OF_SCAN:
                wanted.setdefault(inputs[0], set()).add(_item(node))
            elif node.op.kind == "scan" and (loop := _Rolled(node, wanted[node], graph, self)).fits:
                loops[node], inputs = loop, [node.inputs[of] for of in loop.optimize()]
            needed.update(inputs)
        origins: dict[Node, Node] = {}
        written_out = _written_out()

        def rule(node: Node, typed: TypedGraph) -> Change | Node | None:
            if node.op is OF_SCAN and node.inputs[0].op is TUPLE:
                whole = node.inputs[0]
                return whole.inputs[whole.attrs["items"].index(_item(node))]
            loop = loops.get(origins.get(node, node))
            return written_out(node, typed) if loop is None else loop.made(node)

        graph = replace(graph, nodes=tuple([node for node in graph.nodes if node in needed]))
        return _without_scans(rewrite(graph, rule, origins, name="loops", why="a loop is a kernel of kernels"))


def _without_scans(graph: TypedGraph) -> TypedGraph:
    """The graph whose loops nobody reads any more, without these."""
    return replace(graph, nodes=tuple([node for node in graph.nodes if node.op.kind != "scan"]))


def hoisted(step: TypedGraph, given: Mapping[Node, Node], length: int) -> tuple[TypedGraph, dict[Node, Node]]:
    """The graph of a step without what is equal in all steps, and for each variable that stands for such a value the
    node that computes it before the loop. `given`: the nodes of the variables that are the same in all steps."""
    outer = dict(given)
    for node in step.nodes if length > 1 else ():
        size = sum([size_of(value) for value in node.inputs if value in outer])
        known = all(value in outer or value.op.constant for value in node.inputs)
        if known and size >= size_of(node):  # what only repeats values is no work saved
            inputs = [outer.get(value, value) for value in node.inputs]
            outer[node] = Node(node.op, inputs, node.attrs, node.name)
            outer[node].placed_as(node)
    nodes = tuple([node for node in step.nodes if node not in outer])
    read = dict.fromkeys([*(value for node in nodes for value in node.inputs), *step.roots])
    now = {value: variable_of(value.name, value.shape, value.dtype) for value in read if value in outer}
    step = _given(replace(step, nodes=nodes, fed=step.fed.difference(given)), now.values())
    return rewrite(step, lambda node, typed: None, now=now), {now[value]: outer[value] for value in now}


NOTHING = TypedGraph((), (), (), frozenset(), {})


def _given(graph: TypedGraph, variables: Iterable[Node]) -> TypedGraph:
    """The graph that is given variables besides, which declare their types."""
    return replace(graph, fed=graph.fed.union(variables))


def _updating(graph: TypedGraph, updates: Sequence[tuple[Node, Node]]) -> TypedGraph:
    """The graph that writes values into places, variables of known types."""
    places = [node for pair in updates for node in pair if node.op.variable and node not in graph.fed]
    return replace(_given(graph, places), outputs=(), updates=tuple(updates))


class _Rolled:
    """A loop of which some results are wanted: first its step, then where that finds and puts its values."""

    def __init__(self, node: Node, wanted: set[Item], graph: TypedGraph, lowering: _Lowering) -> None:
        self.lowering = lowering
        self.body = body = node.attrs["body"]  # type: Body
        self.shapes, self.dtypes = [shape[1:] for shape in node.shape], node.dtype  # type: ignore[index]
        self.length = node.shape[0][0]  # type: ignore[index]
        self.wanted = {item: self._carried(*item) for item in sorted(wanted)}
        found = body.needed(of if k is None else k for (of, _), k in self.wanted.items())
        self.carried = [k for k in found if k < body.carried]
        self.tracks = {k for (_, last), k in self.wanted.items() if not last and k is not None}
        self.stacks = [of for (of, _), k in self.wanted.items() if k is None]
        moved = (*self.carried, *self.stacks, *range(body.carried, body.moving))
        self.fits = all(self._nbytes(of) % BOUNDARY[lowering.kind] == 0 for of in moved)

    def _carried(self, of: int, last: bool) -> int | None:
        """The number of the carried value that a result is, in all steps or the last; None where it is none."""
        if of < self.body.carried and not last:
            return of
        return self.body.out.index(of) if of in self.body.out else None

    def _nbytes(self, of: int) -> int:
        return prod(self.shapes[of]) * np.dtype(self.dtypes[of]).itemsize

    def optimize(self) -> list[int]:
        """Lets the step go through the passes; returns the numbers of the loop's inputs that it reads then."""
        body = self.body
        ends = [body.nodes[of] for of in (*(body.out[k] for k in self.carried), *self.stacks)]
        order = find_topo_sort(ends)
        below, types = set(order), list(zip(self.shapes, self.dtypes, strict=True))
        given = {variable: types[of] for of, variable in enumerate(body.variables) if variable in below}
        self.step = step = run_passes(analyse(order, ends, given), self.lowering.names)
        read = {value for node in step.nodes for value in value_inputs(node)} | set(step.roots)
        self.read = [of for of, variable in enumerate(body.variables) if variable in read or of in self.carried]
        return self.read

    def made(self, node: Node) -> Node:
        """The tuple of the wanted results, and of all that are made, of a loop whose inputs are the node's."""
        body, carried = self.body, self.carried
        outer = {body.variables[of]: node.inputs[of] for of in self.read if of >= body.moving}
        step, outer = hoisted(self.step, outer, self.length)
        moving = [of for of in self.read if of < body.moving]
        slices = moving[len(carried) :]
        given = [*(node.inputs[k] for k in carried), *outer.values(), *(node.inputs[of] for of in slices)]
        number = {value: i for i, value in enumerate(dict.fromkeys(given))}
        where = {variable: Where(number[value]) for variable, value in outer.items()}
        where.update((body.nodes[k], self._slot(k, after=False)) for k in carried)
        where.update((body.nodes[of], self._along(of, number[node.inputs[of]])) for of in slices)

        def place(of: int, at: Where) -> Node:
            """A variable of the type of a node of the body, for what lies there."""
            variable = variable_of(f"place{len(where)}", self.shapes[of], self.dtypes[of])
            where[variable] = at
            return variable

        begins = {k: replace(self._slot(k, after=False), stride=0) for k in carried}
        firsts = [(place(k, at), place(k, Where(number[node.inputs[k]]))) for k, at in begins.items()]
        of_value: dict[Any, int] = {}  # two that the passes found to be equal are kept once
        ends = [value for value in step.outputs if value is not None]
        stands_for = {of: of_value.setdefault(ends[len(carried) + i], of) for i, of in enumerate(self.stacks)}
        result = {of: i for i, of in enumerate([*carried, *of_value.values()])}
        kept = [(place(k, self._slot(k, after=True)), value) for k, value in zip(carried, ends, strict=False)]
        kept += [(place(of, self._along(of, result[of], True)), value) for value, of in of_value.items()]
        parts = self.lowering.lowered(_updating(NOTHING, firsts)), self.lowering.lowered(_updating(step, kept))
        types = [((self._count(of), *self.shapes[of]), self.dtypes[of]) for of in result]
        if nbytes := parts[1].memory.bytes_planned:
            types.append(((nbytes,), "uint8"))
        loop = Loop(self.length, *parts, where, types)
        return self._tuple(loop, list(number), {of: result[one] for of, one in stands_for.items()})

    def _tuple(self, loop: Loop, inputs: list[Node], stacks: Mapping[int, int]) -> Node:
        """A loop's results. `stacks`: for a value of the body that is kept of all steps the number of its result."""
        names = {loop.memory: "memory_of_step"}
        made = [Node(RESULT, inputs, {"loop": loop, "of": of}, names.get(of)) for of in range(len(loop.types))]
        items = [
            made[stacks[of]] if k is None else self._of_carried(made[self.carried.index(k)], k, last, of != k)
            for (of, last), k in self.wanted.items()
        ]
        return Node(TUPLE, [*items, *made], {"items": tuple(self.wanted)})

    def _of_carried(self, found: Node, k: int, last: bool, after: bool) -> Node:
        """Of the result with all that a value was its last, or what it was before or after each step."""
        if last:
            end = self.length % 2 if k not in self.tracks else 0 if self.body.reverse else self.length
            return slice_op(found, (end,))
        return slice_op(found, (slice(1, None) if after != self.body.reverse else slice(None, -1),))

    def _count(self, of: int) -> int:
        """How many values are kept of all steps: of a carried value its first, too."""
        return self.length if of >= self.body.carried else self.length + 1 if of in self.tracks else 2

    def _slot(self, k: int, after: bool) -> Where:
        """Where a step reads a carried value, or writes its next one."""
        number, nbytes = self.carried.index(k), self._nbytes(k)
        if k in self.tracks:
            return self._along(k, number, True, after)
        stride = -nbytes if after else nbytes
        return Where(number, True, nbytes * after, stride, alternates=True)

    def _along(self, of: int, number: int, is_result: bool = False, first: int = 0) -> Where:
        """Where a step finds its own value of those of all steps; `first`: the index of the first step's, in the order
        of the steps."""
        nbytes = self._nbytes(of)
        if self.body.reverse:
            return Where(number, is_result, (self._count(of) - 1 - first) * nbytes, -nbytes)
        return Where(number, is_result, first * nbytes, nbytes)


def _written_out() -> Rule:
    """The rule by which results of loops are computed by the nodes of all steps."""
    made: dict[Node, list[dict[Node, Node]]] = {}  # of a loop, for each step, what its body's nodes are there

    def steps(loop: Node, length: int) -> Iterator[dict[Node, Node]]:
        body: Body = loop.attrs["body"]
        carried = loop.inputs[: body.carried]
        for t in reversed(range(length)) if body.reverse else range(length):
            slices = [slice_op(x, (t,)) for x in loop.inputs[body.carried : body.moving]]
            given = [*carried, *slices, *loop.inputs[body.moving :]]
            now: dict[Node, Any] = dict(zip(body.variables, given, strict=True))
            for own in body.nodes[len(now) :]:
                made_anew = own.op(*[now[value] for value in own.inputs], **own.attrs)
                stands_for = made_anew.op.replacement(made_anew)
                now[own] = made_anew if stands_for is None else stands_for
            carried = [now[body.nodes[out]] for out in body.out]
            yield now

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        if node.op is not OF_SCAN:
            return None
        (loop,), (of, last) = node.inputs, _item(node)
        if loop not in made:
            made[loop] = list(steps(loop, loop.shape[0][0]))  # type: ignore[index]
        body: Body = loop.attrs["body"]
        values = [now[body.nodes[of]] for now in made[loop]]
        return values[-1] if last else stack_op(values[::-1] if body.reverse else values)

    return rule


def unrolled(graph: TypedGraph) -> TypedGraph:
    """The graph with the nodes of all steps in the place of each loop."""
    return _without_scans(rewrite(graph, _written_out(), name="loops", why="a loop is the nodes of its steps"))
