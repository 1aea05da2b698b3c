"""Values on demand: what a tensor needs is compiled, kept by its structure, and run.

`evaluate` is the one way to a value. It walks the graph down to nodes that hold arrays; the structure of what lies
between is the key of an executor. State that was assigned and waits, and gradients that `backward` has left, are
computed in the same run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..devices import (
    Array,
    Context,
    copied,
    cpu,
    empty,
    flushes_denormal,
    get_float32_matmul_precision,
    get_num_threads,
    new_array,
)
from ..errors import GraphError
from ..gradients import gradients
from ..graph import Handle, Node, Op, Type, error_at, named, stamp
from ..ops import copy_op, dtype_of, leaf, mul_op, shape_of
from ..ops.inputs import variable
from ..ops.state import Assign, Group, State, WithUpdates
from ..ops.types import number_of
from ..scopes import scopes
from ..system import free_at_fork
from . import lifting
from .lifting import numbers_of
from .mode import enable_grad

if TYPE_CHECKING:
    from ..compiler import Arena
    from ..executor import Executor

changing: threading.RLock = free_at_fork(threading.RLock())
"""Held from the reading of a tensor's node to the assignment of what was made of it, and while values are computed."""

MOST = 4  # changes of one state that wait; each holds the inputs of its network


class Settled(Op):
    """(value) -> value, as a leaf: what an assignment makes of a tensor's new value. Gradients end there, as at every
    leaf. Once the value is computed the tensor names a leaf."""

    name = "settled"
    leaf = True
    never = "its value is its input's"

    def __reduce__(self) -> Any:
        return "SETTLED"

    def type_of(self, node: Node) -> Type | None:
        return node.inputs[0].value_type


class Gradients(Op):
    """(output, leaves...) -> the gradients of sum(output) with respect to the leaves, which begin at input
    `attrs["first"]`; of sum(output * weight) where that is 2, and input 1 a weight. They are expanded where the graph
    is compiled, see `Compiled`."""

    name = "gradients"
    never = "gradients are expanded as a graph is compiled"

    def type_of(self, node: Node) -> None:
        return None


class GradientOf(Op):
    """Gradient number `attrs["of"]` of these."""

    name = "gradient_of"
    never = Gradients.never

    def type_of(self, node: Node) -> Type | None:
        leaves = node.inputs[0]
        return leaves.inputs[leaves.attrs["first"] + node.attrs["of"]].value_type


SETTLED, GRADIENTS, GRADIENT_OF = Settled(), Gradients(), GradientOf()


def ends_gradients(node: Node) -> bool:
    """Whether the node is a leaf for gradients: it holds data, or was assigned."""
    return node.op.leaf


# What has to be computed -----------------------------------------------------------------------------------


class Graph:
    """What has to be computed for some nodes.

    Attributes:
        nodes: inputs first; those that are given hold arrays.
        place: of each node its place there.
        given: the nodes that hold arrays, in order.
        numbers: (node, which of its numbers, number) of those that may become inputs.
        assigns: assignments among the nodes, which are made after the run.
        structure: what graphs have in common that one executor computes.
    """

    def __init__(self, roots: Sequence[Node]) -> None:
        """Raises GraphError for a variable, and for an array that was overwritten since a node read it."""
        through = _needed(roots)
        self.nodes = nodes = sorted(through, key=lambda node: node.id)  # an input's id is smaller
        self.place = place = {node: at for at, node in enumerate(nodes)}
        self.given: list[Node] = []
        self.assigns: list[Node] = []
        self.numbers: list[tuple[Node, int, Any]] = []
        entries: list[Any] = []
        for node in nodes:
            if _is_given(node, through[node]):
                self.given.append(node)
                entries.append((node.value_type, node.tracks))
                continue
            op, attrs, inputs = node.op, node.attrs, _read(node)
            if op.immediate:
                self.numbers.append((node, 0, attrs["value"]))
                entries.append(attrs["dtype"])
                continue
            if isinstance(op, Assign) and not attrs:
                self.assigns.append(node)
            rest: Any = ""
            if (lifted := numbers_of(node)) is not None:
                rest, numbers = lifted
                self.numbers += [(node, which, number) for which, number in enumerate(numbers)]
            elif attrs:
                rest = repr(attrs)  # 0.0 == -0.0, and NaN is not equal to itself
            entries.append((op, rest, tuple([place[x] for x in inputs]), node.no_grad))
        self.structure: tuple[Any, ...] = tuple(entries)
        self.has_gradients: bool = any(node.op is GRADIENTS for node in nodes)

    def to_keep(self) -> list[Node]:
        """The nodes whose values are kept besides the roots: outputs of modules, and what an earlier evaluation has
        computed on its way to another value, so that a loop that asks for values does not start from the leaves each
        time."""
        given = set(self.given)
        computed = [node for node in self.nodes if node not in given and not node.op.immediate]
        if not self.has_gradients:
            for node in computed:
                if not node.met:
                    for x in _read(node):
                        x.keeps = x.keeps or x.met
            for node in computed:
                node.met = True
        return [node for node in computed if node.keeps and node.held is None and node.op.kind != "scan"]

    @property
    def context(self) -> Context:
        """Where it is computed: on the GPU where one of its arrays lies, else on the CPU. Others are copied there."""
        for node in self.given:
            if node.held.context.kind == "cuda" and not node.attrs.get("roams"):
                return node.held.context
        return cpu()


def _is_given(node: Node, through: bool) -> bool:
    """Whether the array that a node holds is taken; `through`: gradients go through it to leaves."""
    return node.held is not None and (ends_gradients(node) or not (through and node.tracks))


def _needed(roots: Sequence[Node]) -> dict[Node, bool]:
    """The nodes that these need, down to those that hold arrays, and whether gradients go through each."""
    through: dict[Node, bool] = {}
    stack = [(root, False) for root in roots]
    while stack:
        node, differentiated = stack.pop()
        if through.get(node, -1) >= differentiated:
            continue
        through[node] = differentiated
        if node.op.immediate or _is_given(node, differentiated):
            continue
        if node.op.variable:
            raise error_at(node, GraphError, f"{node.name} is a variable without a value: feed it to an Executor")
        onward = (differentiated and not ends_gradients(node)) or node.op is GRADIENTS
        for x in _read(node):
            if x.held is not None and x.held.written > node.id and _is_given(x, onward and x.tracks):
                raise overwritten(node, x)
            stack.append((x, onward and x.tracks))
    return through


def _read(node: Node) -> Sequence[Node]:
    """What a node reads: not the assignments of runs of an Executor."""
    return node.inputs[:1] if isinstance(node.op, WithUpdates) else node.inputs


def overwritten(reader: Node, node: Node) -> GraphError:
    """The error for an array that a compiled step has overwritten since the reader was made."""
    gone = f"the value that {node.name} had then was overwritten since: compute this before, or anew"
    return error_at(reader, GraphError, gone)


# Executors by structure ------------------------------------------------------------------------------------

MOST_GRAPHS = 512  # structures whose executors are kept; those used last
LEAST_NODES = 4  # of a graph for which shapes are counted: small ones compile fast, and are alike by chance
Numbers = tuple[str | None, ...]
"""The numbers of a graph, as text, as -0.0 == 0; None for those that are inputs."""


class Compiled:
    """An executor of a graph's copy, with variables for the arrays and for numbers that vary."""

    def __init__(
        self, graph: Graph, outputs: Sequence[Node], written: Sequence[tuple[Node | None, Node]], numbers: Numbers
    ) -> None:
        """`written`: the nodes whose values are written into an array, that of a given node or, for None, a new one."""
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
        copies = self._copies(graph, {node for node, _ in written if node is not None}, inputs)
        self.variables: list[Node] = [copies[node] for node in graph.given]
        self.numbers: list[Node] = list(inputs.values())
        wanted: list[Node] = [copies[node] for node in outputs]
        ctx = graph.context
        self.targets: list[Any] = []
        assigns = []
        for into, value in written:
            if into is None:
                self.targets.append(Handle.results.of(leaf(empty(value.shape, value.dtype), "new")))
            assigns.append(assign_op(self.targets[-1] if into is None else copies[into], copies[value]))
        if assigns:
            wanted.append(group_op(assigns))
        self.executor: Executor = Executor(wanted, ctx, arena=arena_of(ctx))
        self.count: int = len(outputs)

    def _copies(self, graph: Graph, written: set[Node], numbers: dict[tuple[Node, int], Node]) -> dict[Node, Any]:
        copies: dict[Node, Any] = {}
        given = {node: at for at, node in enumerate(graph.given)}
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
            copies[node] = made = _copy(node, [copies[x] for x in _read(node)], numbers)
            if isinstance(made, Node):
                made.placed_as(node)
        return copies

    def run(self, graph: Graph) -> tuple[list[Array], list[Array], dict[Node, Array]]:
        """The outputs, copied from the arena; what is written into new arrays; and into those of given nodes, which
        have moved if they lay on another device."""
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
        in_place = {graph.given[at]: self.variables[at].held for at in self.handles}
        return values, [target.node.held for target in self.targets], in_place


def _number(node: Node, which: int) -> np.ndarray:
    """One of the node's numbers as the array to feed."""
    return number_of(node) if node.op.immediate else lifting.number_of(node, which)


def _copy(node: Node, inputs: list[Any], numbers: dict[tuple[Node, int], Node]) -> Any:
    """The node applied to copies of its inputs; of gradients the list of them."""
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
    if isinstance(op, State):
        return inputs[isinstance(op, Assign)]
    own = {which: numbers[node, which] for which in range(8) if (node, which) in numbers} if numbers else None
    if own:
        return lifting.lifted(node, inputs, own)
    return op.make(inputs, node.attrs, node._name)


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

    def get(self, graph: Graph, outputs: Sequence[Node], written: Sequence[tuple[Node | None, Node]]) -> Compiled:
        """The executor of a graph, compiled at its first."""
        place = graph.place
        into = tuple([(-1 if node is None else place[node], place[value]) for node, value in written])
        key = (graph.context, settings(), tuple([place[node] for node in outputs]), into, graph.structure)
        numbers: Numbers = tuple([repr(number) for _, _, number in graph.numbers])
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
            found = family.compiled[numbers] = Compiled(graph, outputs, written, numbers)
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


# Values ----------------------------------------------------------------------------------------------------

_waiting: dict[int, tuple[Any, int, Node | None]] = {}
"""The tensors that were assigned, or given a gradient, and are not computed yet, by their ids: a weak reference, as
nobody asks for one that is gone; how often they were since; and the leaf that they named before."""


def wait(handle: Any, before: Node | None = None) -> None:
    """Let a tensor whose node was assigned wait for the next evaluation, or for one change more than `MOST`."""
    known, count, first = _waiting.get(id(handle), (None, 0, before))
    if known is None or known() is not handle:
        known, count, first = weakref.ref(handle), 0, before
    _waiting[id(handle)] = known, count + 1, first
    if count >= MOST:
        evaluate([handle.node])


def evaluate(nodes: Sequence[Any], in_place: Sequence[Any] = ()) -> list[Array | None]:
    """The values of the nodes, each computed at most once, in one run with all that waits; None of a group.

    `in_place`: the parameters and the state of an optimizer's step. The state is written into the arrays that hold it;
    parameters and gradients into new ones, as nodes made before may still read those. Raises GraphError for a graph
    with variables, and what the operators raise.
    """
    nodes = list(named(list(nodes)))
    if scopes.recording is not None:
        raise scopes.recording.asked(nodes)
    with changing:
        try:
            _evaluate(nodes, _that_wait(), in_place)
        except Exception:
            if not any(node.held is None and not isinstance(node.op, Group) for node in nodes) or not _waiting:
                raise
            _waiting.clear()  # one of those that waited may be at fault, which is raised where it is asked for
            _evaluate(nodes, [], ())
        return [value_of(node) for node in nodes]


def _that_wait() -> list[tuple[Any, Node | None]]:
    """The tensors that wait, and the leaves that they named before."""
    found = [(known(), before) for known, _, before in _waiting.values()]
    return [(handle, before) for handle, before in found if handle is not None and handle.node.held is None]


def _evaluate(nodes: list[Node], waiting: Sequence[tuple[Any, Node | None]], in_place: Sequence[Any]) -> None:
    members = [one for node in nodes for one in _members(node)]
    handles = [handle for handle, _ in waiting]
    roots = list(dict.fromkeys([node for node in (*members, *(h.node for h in handles)) if node.held is None]))
    if not roots:
        _waiting.clear()
        return
    graph = Graph(roots)
    written: list[tuple[Node | None, Node]] = []
    if in_place:
        own = set(map(id, in_place))
        for handle, before in waiting:
            node: Node = handle.node
            is_state = id(handle) in own and not node.tracks and before is not None and before in graph.place
            written.append((before if is_state else None, node))
        written = list({node: (before, node) for before, node in written if node in graph.place}.values())
    into = {value for _, value in written}
    outputs = list(dict.fromkeys([*(root for root in roots if root not in into), *graph.to_keep()]))
    outputs = [node for node in outputs if node not in into]
    values, new, in_place_of = executors.get(graph, outputs, written).run(graph)
    for node, value in zip(outputs, values, strict=True):
        node.held = value
    for before, node in written:
        node.held = new.pop(0) if before is None else in_place_of[before]
        node.held.written = 0 if before is None else stamp()  # nobody has read a new array
    _assign(graph.assigns)
    for handle in handles:
        handle.settle()
    _waiting.clear()


def _members(node: Node) -> list[Node]:
    """The node; of a group, its members."""
    return [one for x in node.inputs for one in _members(x)] if isinstance(node.op, Group) else [node]


def _assign(assigns: Sequence[Node]) -> None:
    """Make the assignments of a run. Raises GraphError where two of them meet."""
    given: dict[Any, Node] = {}
    for assign in assigns:
        parameter = assign.inputs[0]
        handle = None if parameter.owner is None else parameter.owner()
        if given.setdefault(handle, assign) is not assign:
            raise GraphError(f"{parameter.name} is assigned twice in one evaluation, at {assign.location}")
        if handle is not None and assign.held is not None:
            handle.hold(copied(assign.held))


def value_of(node: Node) -> Array | None:
    """The value that a node holds; None of a group. Raises GraphError for one that was overwritten."""
    held: Array | None = node.held
    if held is not None and not node.op.leaf and held.written > node.id:
        raise overwritten(node, node)
    return held


def array_of(x: Any) -> Array:
    """The value of a tensor; see `arrays_of`."""
    node = x.node if isinstance(x, Handle) else x
    held = node.held
    if held is not None and (node.op.leaf or held.written <= node.id):
        return held
    return arrays_of([node])[0]


def arrays_of(values: Sequence[Any]) -> list[Array]:
    """The values of tensors, see `evaluate`. Raises GraphError for a graph with variables, and for a group."""
    nodes = [x.node if isinstance(x, Handle) else x for x in values]
    found: list[Array] = []
    for node, value in zip(nodes, evaluate(nodes), strict=True):
        if value is None:
            raise GraphError(f"{node.name} has no value (made at {node.location})")
        found.append(value)
    return found


def context_of(x: Any) -> Context:
    """Where a tensor's value lies, or will be computed: see `Graph.context`."""
    node = x.node if isinstance(x, Handle) else x
    return Graph([node]).context if node.held is None else node.held.context
