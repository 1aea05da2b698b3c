"""The graph below some nodes, found in one pass: what has to be computed, from which arrays, and a key that graphs of
one structure share; and the compiled executors, kept by such keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..devices import Array, Context, cpu, flushes_denormal, get_float32_matmul_precision, get_num_threads
from ..errors import GraphError
from ..graph import FLOATS, Node, error_at, find_topo_sort, stamp
from ..hooks import hooks
from ..ops import Variable, dtype_of, shape_of
from ..ops.state import Group, State, Updates
from ..ops.types import number_of
from ..scopes import scopes
from ..system import free_at_fork
from . import lifting
from .lifting import numbers_of
from .node import TensorNode

if TYPE_CHECKING:
    from ..compiler import Arena
    from ..executor import Executor

Place = int  # of a leaf or a node: its position among the entries


Read = tuple[TensorNode, Any]  # a node, and what was read of it where it is a leaf


class Trace(Updates[Read]):
    """The graph that the nodes `roots` need.

    Attributes:
        entries: for each leaf its shape, dtype and whether it requires a gradient; for each node its operator, its
            attributes without the numbers in `numbers`, the places of its inputs, and whether gradients stop there.
        nodes: the node of each entry; of a leaf the tensor whose value it is.
        leaves: the arrays, and the place of each.
        numbers: the Python numbers of the nodes that may become inputs: (node, which of its numbers, number).
        place: of every node that is computed.
        outputs: the nodes that are computed and cached: the roots, the outputs of modules, what an earlier evaluation
            has computed on its way, assignments, and changes of state.
        assigns: assignments among them. changes: those that cells hold as changes of state.
        changed: the leaves that require a gradient and hold another array by now, with a node that read the one before.
    """

    def __init__(self, roots: Iterable[Node], differentiated: bool = False) -> None:
        """`differentiated`: gradients are asked for, so values that are there are computed anew, from the leaves.

        Raises GraphError for a variable, and for an array that a compiled step has overwritten."""
        self.entries: list[tuple[Any, ...]] = []
        self.nodes: list[TensorNode] = []
        self.leaves: list[tuple[Place, Array]] = []
        self.numbers: list[tuple[Node, int, Any]] = []
        self.place: dict[TensorNode, Place] = {}
        self.assigns: list[TensorNode] = []
        self.changes: list[TensorNode] = []
        self.changed: dict[Place, TensorNode] = {}
        self._differentiated = differentiated
        self._read: dict[Any, tuple[Place, Array]] = {}  # of each leaf
        for root in _without_groups(cast(Iterable[TensorNode], roots)):
            root.cached = True
            self._add(root)
        for change in self.changes:  # grows as they are added
            self._add(change)
        self.outputs: list[TensorNode] = [node for node in self.place if node.cached and node.held is None]

    @property
    def context(self) -> Context:
        """Where it is computed: on the GPU where one of its leaves lies, else on the CPU. Others are copied there."""
        for place, array in self.leaves:
            cell = self.nodes[place].cell
            if array.context.kind == "cuda" and not (cell is not None and cell.roams):
                return array.context
        return cpu()

    def place_of(self, root: TensorNode) -> Place:
        """The place of a root, which may be a leaf."""
        return self.place[root] if root in self.place else self._read[root][0]

    def _add(self, root: TensorNode) -> None:
        """Add what a node needs, inputs first, and itself."""
        if root.cell is not None:
            self._leaf(root, root, root.cell.array())
            return
        if self._has_value(root):
            self._leaf(root, root, cast(Array, root.held))
            return
        place, stack = self.place, [root]
        opened: dict[TensorNode, list[Any]] = {}
        while stack:
            node = stack[-1]
            if node in place:
                stack.pop()
                continue
            parts = opened.get(node)
            if parts is None:
                parts = opened[node] = self._parts(node)
                missing = [part for part in parts if type(part) is not int and part not in place]
                if missing:
                    missing.reverse()
                    stack += missing
                    continue
            stack.pop()
            try:
                self._enter(node, tuple([part if type(part) is int else place[part] for part in parts]))
            except KeyError:
                find_topo_sort([root])  # says where the graph has a circle
                raise
            if not (node.computed or self._differentiated):
                for part in parts:
                    if type(part) is not int and part.computed and part.op.kind != "scan":  # a loop's value is a tuple
                        part.cached = True

    def _has_value(self, node: TensorNode) -> bool:
        """Whether the value that is held is taken."""
        held = node.held
        if held is None:
            return False
        if self._differentiated and not (node.no_grad or node.wants_grad) and held.dtype in FLOATS:
            return False
        require_not_overwritten(node, node, held)
        return True

    def _parts(self, node: TensorNode) -> list[Any]:
        """The leaves, by their places, and the nodes from which a node is computed; -1 for a number."""
        read = list(zip(node.inputs, node.read, strict=True))
        if isinstance(node.op, State):
            read = [cast(Read, node.op.lowered(node, read, self))]  # a group is no input
        elif node.op.variable:
            raise error_at(node, GraphError, f"{node.name} is a variable without a value: feed it to an Executor")
        return [-1 if value.op.immediate else self._part(value, content, node) for value, content in read]

    def assign(self, node: Node, parameter: Read, value: Read) -> None:
        """Note the assignment."""
        tensor = cast(TensorNode, node)
        tensor.cached = True
        if "follows" in node.attrs:
            self.along([(tensor, None)])
        else:
            self.assigns.append(tensor)

    def along(self, assigns: Sequence[Read]) -> None:
        """Note the changes of state that belong to a value."""
        for assign, _ in assigns:
            if not assign.attrs.get("each_run") and assign.held is None:
                self.changes.append(assign)

    def _part(self, value: TensorNode, content: Any, reader: TensorNode) -> Any:
        """The place of a leaf, or the node that has to be computed. `content` is what the reader read of a leaf."""
        if value.cell is None:
            return self._leaf(value, value, cast(Array, value.held)) if self._has_value(value) else value
        while type(content) is not Array:  # a change of state
            if content.held is None:
                return content
            content = content.held
        require_not_overwritten(reader, value, content)
        known = self._read.get(value)
        if known is None or known[1] is content:
            at = self._leaf(value, value, content)
        else:  # two nodes have read two values of it
            at = self._leaf((value, id(content)), value, content)
        if value.wants_grad and content is not value.cell.content:
            self.changed[at] = reader
        return at

    def _leaf(self, key: Any, node: TensorNode, array: Array) -> Place:
        """The number of a leaf in the trace; the same for one that was read before."""
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = len(self.entries), array
            self.leaves.append(known)
            self.entries.append((array.shape, array.dtype, node.wants_grad))
            self.nodes.append(node)
        return known[0]

    def _enter(self, node: TensorNode, parts: tuple[Place, ...]) -> None:
        """Enter a node whose inputs are entered: its key, and what is to be computed."""
        op = node.op
        if (lifted := numbers_of(node)) is not None:
            rest, numbers = lifted
            self.numbers += [(node, which, number) for which, number in enumerate(numbers)]
        else:
            rest = repr(node.attrs) if node.attrs else ""  # 0.0 == -0.0, and NaN is not equal to itself
            if -1 in parts:
                inputs = enumerate(node.inputs)
                self.numbers += [(node, which, x.attrs["value"]) for which, x in inputs if x.op.immediate]
        self.place[node] = len(self.entries)
        self.entries.append((op, rest, parts, node.no_grad))
        self.nodes.append(node)


def require_not_overwritten(reader: Node, node: Node, array: Array) -> None:
    """Raises GraphError where a compiled step has overwritten an array since the reader was made."""
    if array.written > reader.id:
        gone = f"the value that {node.name} had then was overwritten since: compute this before, or anew"
        raise error_at(reader, GraphError, gone)


def _without_groups(nodes: Iterable[TensorNode]) -> Iterable[TensorNode]:
    """The nodes; for a group, its members."""
    for node in nodes:
        if isinstance(node.op, Group):
            yield from _without_groups(node.inputs)
        else:
            yield node


MOST_TRACES = 512  # structures whose compiled traces are kept; those used last

LEAST_NODES = 4  # of a graph for which `count_shapes` counts: small ones compile fast, and are alike by chance

Numbers = tuple[str | None, ...]
"""The numbers of a trace, as text, as -0.0 == 0; None for those that are inputs."""


class Compiled:
    """A compiled trace: `run` it with arrays for its leaves, its numbers, and what else `build` made variables of."""

    def __init__(self, executor: Executor, variables: list[Node], result: Any) -> None:
        self.executor = executor
        self.variables = variables
        self.result = result
        """The result that `build` has left for later uses of the trace."""

    def run(self, given: Sequence[Any]) -> list[Array]:
        """Copies of the values."""
        return self.executor.run_copied(dict(zip(self.variables, given, strict=True)))


class _Family:
    """The compiled traces of one structure, by their numbers: the first that were met, and which have varied since."""

    def __init__(self, first: Numbers) -> None:
        self.first = first
        self.varying: set[int] = set()
        self.compiled: dict[Numbers, Compiled] = {}
        self.used = stamp()


class TraceCache:
    """Compiled traces by structure, which is the entries and what else the result depends on, and by numbers.

    `x * 0.1` is compiled with its number. `x * 0.2` has the same structure and another number, so a trace is compiled
    of which this number is an input, and nothing for `x * 0.3`.
    """

    def __init__(self) -> None:
        self._families: dict[Any, _Family] = {}
        self._shapes: dict[int, set[int]] = {}  # of graphs, without shapes and attributes; all by their hashes
        self._lock = free_at_fork(threading.Lock())

    def __iter__(self) -> Iterator[Compiled]:
        return (compiled for family in self._families.values() for compiled in family.compiled.values())

    def lookup(self, structure: Any, numbers: Numbers) -> tuple[Numbers, Compiled | None]:
        """The numbers, None for those to make inputs of, and the trace that is compiled for them, if there is one."""
        with self._lock:
            family = self._families.get(structure)
            if family is None:
                return numbers, None
            family.used = stamp()
            if numbers not in family.compiled:
                family.varying.update(i for i, number in enumerate(numbers) if number != family.first[i])
                numbers = tuple(None if i in family.varying else number for i, number in enumerate(numbers))
            return numbers, family.compiled.get(numbers)

    def insert(self, structure: Any, numbers: Numbers, compiled: Compiled) -> None:
        """Keep a trace that was compiled for what `lookup` gave."""
        with self._lock:
            self._families.setdefault(structure, _Family(numbers)).compiled[numbers] = compiled
            while len(self._families) > MOST_TRACES:
                del self._families[min(self._families, key=lambda one: self._families[one].used)]

    def count_shapes(self, trace: Trace) -> None:
        """Logs a hint where a graph that is no small one is compiled for many sets of shapes."""
        if len(trace.place) < LEAST_NODES:
            return
        leaves = {place for place, _ in trace.leaves}
        graph = hash(tuple([None if at in leaves else (one[0], one[2]) for at, one in enumerate(trace.entries)]))
        shapes = hash(tuple([trace.entries[at][:2] for at in sorted(leaves)]))
        with self._lock:
            if len(self._shapes) >= MOST_TRACES:
                self._shapes.clear()
            known = self._shapes.setdefault(graph, set())
            is_new = shapes not in known
            known.add(shapes)
        if is_new:
            from ..kernels import tell_of_shapes

            last = trace.nodes[-1]
            tell_of_shapes(len(known), f"the graph of {last.name}, made at {last.location},")

    def clear(self) -> None:
        """Forget all."""
        self._families.clear()
        self._shapes.clear()


traces: TraceCache = TraceCache()


@cache
def arena_of(ctx: Context) -> Arena:
    """The memory of all traces of a context: they run in turn, and their results are copies."""
    from ..compiler import Arena

    return Arena(ctx)


def settings() -> tuple[Any, ...]:
    """The settings, of the thread and of the process, by which kernels are compiled."""
    return scopes.own_schedules, flushes_denormal(), get_num_threads(), get_float32_matmul_precision()


def compiled(
    trace: Trace, key: tuple[Any, ...], build: Callable[[list[Node]], tuple[Sequence[Node], list[Node], Any]]
) -> tuple[Compiled, list[Any]]:
    """The compiled trace, and the arrays of its leaves and numbers.

    Args:
        key: what, besides the trace's entries, the result depends on.
        build: called where the trace is met first, with a copy of each entry; it returns the nodes to compute, the
            variables it made besides, and what to leave in `Compiled.result`.
    """
    ctx = trace.context
    structure = (ctx, settings(), key, *trace.entries)
    numbers, found = traces.lookup(structure, tuple([repr(number) for _, _, number in trace.numbers]))
    lifted: dict[Node, list[int]] = {}  # of nodes, which of their numbers are inputs
    for (node, which, _), number in zip(trace.numbers, numbers, strict=True):
        if number is None:
            dtype_of(node), shape_of(node)  # say it if no integer dtype holds the number, or no axis is there for it
            lifted.setdefault(node, []).append(which)
    if found is None:
        from ..executor import Executor  # here: a tensor is made without the compiler

        traces.count_shapes(trace)
        copies, variables = _copied(trace, lifted)
        outputs, others, result = build(copies)
        found = Compiled(Executor(outputs, ctx, arena=arena_of(ctx)), [*variables, *others], result)
        traces.insert(structure, numbers, found)
    here = ctx.kind == "cpu"
    given: list[Any] = [array.numpy() if here and array.context.kind != "cpu" else array for _, array in trace.leaves]
    given += [_number(node, which) for node, chosen in lifted.items() for which in chosen]
    return found, given


def _number(node: Node, which: int) -> np.ndarray:
    """One of the node's numbers as the array to feed."""
    of_attributes = numbers_of(node) is not None
    return lifting.number_of(node, which) if of_attributes else number_of(node.inputs[which])


def _copied(trace: Trace, lifted: dict[Node, list[int]]) -> tuple[list[Node], list[Node]]:
    """A copy of each entry, and its variables: one for every leaf, and then for every number that is lifted."""
    of_numbers: dict[tuple[Node, int], Node] = {}
    for node, chosen in lifted.items():
        for which in chosen:
            number = _number(node, which)
            of_numbers[node, which] = Variable("number", number.shape, str(number.dtype))
    leaves = {place for place, _ in trace.leaves}
    copies: list[Node] = []
    batches = 0
    for place, (node, entry) in enumerate(zip(trace.nodes, trace.entries, strict=True)):
        if place in leaves:
            unnamed = node.name == f"{node.op.name}_{node.id}"
            copies.append(Variable(f"input_{batches}" if unnamed else node.name, *entry[:2]))
            batches += unnamed
            continue
        inputs = [node.inputs[i] if part == -1 else copies[part] for i, part in enumerate(entry[2])]
        if isinstance(node.op, State):  # its value is its one part's
            copies.append(inputs[0])
            continue
        numbers = {i: of_numbers[node, i] for i in lifted.get(node, ())}
        if numbers and numbers_of(node) is not None:
            made = lifting.lifted(node, inputs, numbers)
        else:
            inputs = [numbers.get(i, x) for i, x in enumerate(inputs)]
            made = hooks.make_node(node.op, inputs, node.attrs, node.name)
        made.placed_as(node)
        copies.append(made)
    return copies, [*(copies[place] for place, _ in trace.leaves), *of_numbers.values()]
