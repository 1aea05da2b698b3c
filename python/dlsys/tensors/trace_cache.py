"""Compiled traces of graphs whose leaves hold data.

What is compiled is a copy of the graph in which every leaf is a variable. Python numbers, as in `x * 0.37` or `x[i]`,
are compiled in when a trace is met first. Where it is met again with other numbers, those that changed become inputs: a
loop with a changing number compiles twice, not each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from ..compiler import Arena
from ..device import Array, cpu
from ..executor import Executor
from ..graph import Node
from ..ops import Variable, dtype_of
from .trace import Trace

MOST_TRACES = 512  # compiled traces that are kept; those used last
ALIASES = ("assign", "latest", "with_updates")  # operators whose value is that of their one part

Numbers = dict[Node, list[int]]
"""Of nodes, which of their numbers are inputs."""


class _Structure:
    """A key without its numbers. Its hash, which takes as long as all else that is done with it, is computed once."""

    __slots__ = ("hash", "key")

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key, self.hash = key, hash(key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and self.key == other.key


class Compiled:
    """A compiled trace: `run` it with arrays for its leaves, its numbers, and what else `build` made variables of."""

    def __init__(self, executor: Executor, variables: list[Node], result: Any) -> None:
        self.executor, self.variables = executor, variables
        self.result = result
        """What `build` left for those who use the trace again."""

    def run(self, given: Sequence[Any]) -> list[Array]:
        """Copies of the values."""
        return self.executor.run_copied(dict(zip(self.variables, given, strict=True)))


_compiled: OrderedDict[Any, Compiled] = OrderedDict()
_numbers: OrderedDict[_Structure, tuple[_Structure, tuple[Any, ...], frozenset[int]]] = (
    OrderedDict()
)  # of each structure itself, the numbers that it was met with first, and which vary
_lock = threading.Lock()
_arena = Arena(cpu())  # of all traces: they run in turn, and their results are copies


def compiled(
    trace: Trace, key: tuple[Any, ...], build: Callable[[list[Node]], tuple[Sequence[Node], list[Node], Any]]
) -> tuple[Compiled, list[Any]]:
    """The compiled trace, and the arrays of its leaves and numbers.

    Args:
        key: what, besides the trace's entries, the result depends on.
        build: called where the trace is met first, with a copy of each entry; it returns the nodes to compute, the
            variables it made besides, and what to leave in `Compiled.result`.
    """
    structure = _Structure((tuple(trace.entries), key))
    told = tuple(number if number and number == number else repr(number) for _, _, number in trace.numbers)  # -0.0 == 0
    with _lock:
        structure, first, varying = _numbers.get(structure, (structure, told, frozenset()))
        varying |= {i for i, (a, b) in enumerate(zip(first, told, strict=True)) if a != b}
        _numbers[structure] = structure, first, varying
        _numbers.move_to_end(structure)
        if (structure, told) in _compiled:  # these very numbers are compiled in
            varying = frozenset()
        whole = (structure, tuple(None if i in varying else number for i, number in enumerate(told)))
        found = _compiled.get(whole)
        if found is not None:
            _compiled.move_to_end(whole)
    lifted: Numbers = {}
    for i in sorted(varying):
        node, which, _ = trace.numbers[i]
        dtype_of(node)  # says it if an integer dtype does not hold the number
        lifted.setdefault(node, []).append(which)
    if found is None:
        copies, variables = _copied(trace, lifted)
        outputs, others, result = build(copies)
        found = Compiled(Executor(outputs, arena=_arena), [*variables, *others], result)
        with _lock:
            _compiled[whole] = found
            for table in (_compiled, _numbers):
                while len(table) > MOST_TRACES:
                    table.popitem(last=False)
    given: list[Any] = [array if array.context.kind == "cpu" else array.numpy() for _, array in trace.leaves]
    given += [node.op.number(node, which) for node, chosen in lifted.items() for which in chosen]
    return found, given


def _copied(trace: Trace, lifted: Numbers) -> tuple[list[Node], list[Node]]:
    """A copy of each entry, and its variables: one for every leaf, and then for every number that is lifted."""
    of_numbers = {(node, which): Variable("number") for node, chosen in lifted.items() for which in chosen}
    leaves = {place for place, _ in trace.leaves}
    copies: list[Node] = []
    for place, (node, entry) in enumerate(zip(trace.nodes, trace.entries, strict=True)):
        if place in leaves:
            copies.append(Variable(node.name, *entry[:2]))
            continue
        inputs = [copies[part] for part in entry[2]]
        if node.op.name in ALIASES:
            copies.append(inputs[0])
            continue
        if node in lifted:
            made = node.op.lifted(node, inputs, {i: of_numbers[node, i] for i in lifted[node]})
        else:
            made = Node(node.op, inputs, node.attrs, node.name)
        made.placed_as(node)
        copies.append(made)
    return copies, [*(copies[place] for place, _ in trace.leaves), *of_numbers.values()]
