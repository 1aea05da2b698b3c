"""Executors of tensors' graphs, kept by structure: what a loop computes again is compiled once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..devices import (
    Array,
    Context,
    empty,
    flushes_denormal,
    get_float32_matmul_precision,
    get_num_threads,
    new_array,
)
from ..gradients import gradients
from ..graph import Handle, Node, stamp
from ..ops import copy_op, dtype_of, leaf, mul_op, shape_of
from ..ops.replay import Deferred, again
from ..ops.state import State, variable
from ..ops.types import number_of
from ..scopes import enable_grad, scopes
from . import lifting
from .structure import GRADIENT_OF, GRADIENTS, SETTLED, Graph, Update, read_by

if TYPE_CHECKING:
    from ..compiler import Arena
    from ..executor import Executor


MOST_GRAPHS = 512  # structures whose executors are kept; those used last
LEAST_NODES = 4  # of a graph for which shapes are counted: small ones compile fast, and are alike by chance
Numbers = tuple[Any, ...]
"""The numbers of a graph, see `_as_key`; None for those that are inputs."""


def _as_key(number: Any) -> Any:
    """A number as a part of a key: zeros and NaN as text, as -0.0 == 0, and NaN is not equal to itself."""
    return number if number and number == number else repr(number)


class Compiled:
    """An executor of a graph's copy, with variables for the arrays and for numbers that vary."""

    def __init__(
        self, graph: Graph, outputs: Sequence[Node], into_new: Sequence[Node], update: Node | None, numbers: Numbers
    ) -> None:
        """`into_new`: the nodes whose values are written into new arrays, as are the parameters of an `update`. Its
        state is written into the arrays that hold it."""
        from ..executor import Executor  # here: a tensor is made without the compiler
        from ..ops import assign_op, group_op

        self.lifted: list[tuple[int, int]] = []
        inputs: dict[tuple[Node, int], Node] = {}
        for at, ((node, which, _), number) in enumerate(zip(graph.numbers, numbers, strict=True)):
            if number is None:
                array = _number(node, which)
                inputs[node, which] = variable("number", array.shape, str(array.dtype))
                self.lifted.append((at, which))
        self.handles: dict[int, Handle] = {}
        new, state = (0, 0) if update is None else (update.attrs["new"], update.attrs["state"])
        places = [] if update is None else update.inputs[new : new + state]
        copies = self._copies(graph, set(places), inputs)
        self.variables: list[Node] = [copies[node] for node in graph.given]
        self.numbers: list[Node] = list(inputs.values())
        wanted: list[Node] = [copies[node] for node in outputs]
        ctx = graph.context
        changed = [] if update is None else list(copies[update])
        values = [*(copies[node] for node in into_new), *changed[:new]]
        self.targets: list[Any] = [Handle.results.of(leaf(empty(x.shape, x.dtype), "new")) for x in values]
        targets = [*self.targets, *(copies[node] for node in places)]
        assigns = [assign_op(*pair) for pair in zip(targets, [*values, *changed[new:]], strict=True)]
        if assigns:
            wanted.append(group_op(assigns))
        self.executor: Executor = Executor(wanted, ctx, arena=arena_of(ctx))
        self.count: int = len(outputs)

    def _copies(self, graph: Graph, written: set[Node], numbers: dict[tuple[Node, int], Node]) -> dict[Node, Any]:
        copies: dict[Node, Any] = {}
        given = {node: at for at, node in enumerate(graph.given)}
        several: dict[Any, Any] = {}
        batches = 0
        for node in graph.nodes:
            if node in given:
                unnamed = node.name == f"{node.op.name}_{node.id}"
                name = f"input_{batches}" if unnamed else node.name
                batches += unnamed
                if node in written:  # a leaf of our own, which holds the array of each run
                    copies[node] = made = leaf(node.held, name)
                    self.handles[given[node]] = Handle.results.of(made)
                else:
                    copies[node] = variable(name, node.shape, node.dtype)
                continue
            copies[node] = made = copy_of(node, [copies[x] for x in read_by(node)], numbers, several)
            if isinstance(made, Node):
                made.placed_as(node)
        return copies

    def run(self, graph: Graph) -> tuple[list[Array], list[Array]]:
        """The outputs, copied from the arena, and what is written into new arrays. State that lay on another device has
        moved."""
        here = self.executor.ctx.kind == "cpu"
        for target in self.targets:
            target.node.held = new_array(target.shape, target.dtype, self.executor.ctx)
        feeds: dict[Any, Any] = {}
        for at, (own, node) in enumerate(zip(self.variables, graph.given, strict=True)):
            array = node.held
            if at in self.handles:
                own.held = array
            else:
                feeds[own] = array.numpy() if here and array.context.kind != "cpu" else array
        for own, (at, which) in zip(self.numbers, self.lifted, strict=True):
            feeds[own] = _number(graph.numbers[at][0], which)
        values = self.executor.run_copied(feeds)[: self.count]
        for at in self.handles:
            graph.given[at].held = self.variables[at].held
        new = [target.node.held for target in self.targets]
        for array in new:
            array.written = 0  # nobody has read a new array
        return values, new


def _number(node: Node, which: int) -> np.ndarray:
    """One of the node's numbers as the array to feed."""
    return number_of(node) if node.op.immediate else lifting.number_of(node, which)


def copy_of(
    node: Node, inputs: list[Any], numbers: dict[tuple[Node, int], Node], several: dict[Any, Any] | None = None
) -> Any:
    """The node applied to copies of its inputs; of gradients the list of them. `several`: see `replay.again`."""
    op = node.op
    if op.immediate:
        return numbers.get((node, 0), node)
    if op is GRADIENTS:
        first = node.attrs["first"]
        with enable_grad():
            output = inputs[0] if first == 1 else mul_op(inputs[0], inputs[1])
            return gradients(output, inputs[first:])
    if op is GRADIENT_OF:
        return inputs[0][node.attrs["of"]]
    if op is SETTLED:
        return copy_op(inputs[0])
    if isinstance(op, Deferred):
        return again(node, inputs, several)
    if isinstance(op, Update):
        return op.expanded(inputs)
    if isinstance(op, State):
        return inputs[op.value or 0]
    own = {which: numbers[node, which] for which in range(8) if (node, which) in numbers} if numbers else None
    if own:
        return lifting.lifted(node, inputs, own)
    made = op(*inputs, **node.attrs)
    made.name = node._name
    return made


class _Family:
    """The executors of one structure, by their numbers: the first that were met, and which have varied since."""

    def __init__(self, first: Numbers) -> None:
        self.first = first
        self.varying: set[int] = set()
        self.compiled: dict[Numbers, Compiled] = {}
        self.used = stamp()


class Executors:
    """Executors by structure, and by numbers.

    `x * 0.1` is compiled with its number. `x * 0.2` has the same structure and another number, so it is compiled with
    that number as an input, and nothing is compiled for `x * 0.3`.
    """

    def __init__(self) -> None:
        self._families: dict[Any, _Family] = {}
        self._shapes: dict[int, set[int]] = {}  # of graphs, without shapes and attributes; all by their hashes

    def __iter__(self) -> Iterator[Compiled]:
        return (compiled for family in self._families.values() for compiled in family.compiled.values())

    def get(self, graph: Graph, outputs: Sequence[Node], into_new: Sequence[Node], update: Node | None) -> Compiled:
        """The executor of a graph, compiled at its first; for the other arguments see `Compiled`."""
        place = graph.place
        asked, into = (tuple([place[node] for node in nodes]) for nodes in (outputs, into_new))
        key = (graph.context, settings(), asked, into, graph.structure)
        numbers: Numbers = tuple([_as_key(number) for _, _, number in graph.numbers])
        family = self._families.get(key)
        if family is None:
            self._count_shapes(graph)
            family = self._families[key] = _Family(numbers)
            while len(self._families) > MOST_GRAPHS:
                del self._families[min(self._families, key=lambda one: self._families[one].used)]
        family.used = stamp()
        if numbers not in family.compiled:
            family.varying.update(i for i, number in enumerate(numbers) if number != family.first[i])
            numbers = tuple([None if i in family.varying else number for i, number in enumerate(numbers)])
        found = family.compiled.get(numbers)
        if found is None:
            for (node, _, _), number in zip(graph.numbers, numbers, strict=True):
                if number is None:
                    dtype_of(node), shape_of(node)  # say it if no integer dtype holds the number, or no axis is there
            found = family.compiled[numbers] = Compiled(graph, outputs, into_new, update, numbers)
        return found

    def _count_shapes(self, graph: Graph) -> None:
        """Logs a hint where a graph that is no small one is compiled for many sets of shapes."""
        if len(graph.nodes) - len(graph.given) < LEAST_NODES:
            return
        given = {graph.place[node] for node in graph.given}
        rest = [None if at in given else entry for at, entry in enumerate(graph.structure)]
        of_graph = hash(tuple([(entry[0], *entry[2:]) if type(entry) is tuple else entry for entry in rest]))
        shapes = hash(tuple([graph.structure[at] for at in sorted(given)]))
        if len(self._shapes) >= MOST_GRAPHS:
            self._shapes.clear()
        known = self._shapes.setdefault(of_graph, set())
        if shapes not in known:
            known.add(shapes)
            from ..kernels import tell_of_shapes

            last = graph.nodes[-1]
            tell_of_shapes(len(known), f"the graph of {last.name}, made at {last.location},")

    def clear(self) -> None:
        """Forget all."""
        self._families.clear()
        self._shapes.clear()


executors: Executors = Executors()


@cache
def arena_of(ctx: Context) -> Arena:
    """The memory of all these executors of a context: they run in turn, and their results are copies."""
    from ..compiler import Arena

    return Arena(ctx)


def settings() -> tuple[Any, ...]:
    """The settings, of the thread and of the process, by which kernels are compiled."""
    return scopes.own_schedules, flushes_denormal(), get_num_threads(), get_float32_matmul_precision()
