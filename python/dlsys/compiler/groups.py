"""Groups: nodes that one kernel computes, what may be said of a node, and a group's borders while it grows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from ..graph import Node, Shape
from .base import TypedGraph, value_inputs

READS = 16  # of its argument by a costly operator, counted low
MOST_LENGTH = READS**2  # of an expression, so that no costly operator's argument has another in it


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that one kernel computes.

    Attributes:
        nodes: inputs first.
        inputs: what it reads from memory, each once.
        outputs: what it stores.
        kind: "contraction", "reduction", "rows", "elementwise" or "single".
        other: the inputs of a dtype that is not an output's.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    kind: str
    other: tuple[Node, ...] = ()

    @property
    def name(self) -> str:
        """The operators' names in order, `matmul_add_relu`, shortened where there are many."""
        names = [node.op.name for node in self.nodes if node.op.name != "full"] or ["full"]
        return "_".join(names) if len(names) <= 6 else "_".join([*names[:4], f"{len(names) - 5}more", names[-1]])

    def overwritable(self, output: Node, shapes: dict[Node, Shape]) -> list[Node]:
        """The inputs on which `output` may lie: of its type, and read by elementwise nodes alone, at the very index
        that is written. The compiler takes it that values of different dtypes share no memory. Where rows are summed
        they are read more than once, so nothing is."""
        if self.kind == "rows":
            return []
        return [value for value in self._read_at_the_end if shapes[value] == shapes[output]]

    @cached_property
    def _read_at_the_end(self) -> list[Node]:
        """The inputs, not of `other`, that neither a contraction or sum reads nor what one depends on."""
        before = {node for node in self.nodes if not is_elementwise(node)}
        for node in reversed(self.nodes):
            if node in before:
                before.update(value_inputs(node))
        before.update(self.other)
        return [value for value in self.inputs if value not in before]


def single_groups(graph: TypedGraph, views: frozenset[Node] = frozenset()) -> list[Group]:
    """Every computed node but `views` in a group of its own."""
    found = []
    for node in graph.nodes:
        if node not in views:
            inputs, kind = tuple(value_inputs(node)), "elementwise" if is_elementwise(node) else "single"
            found.append(Group((node,), inputs, (node,), kind, other_inputs(inputs, (node,), graph)))
    return found


def other_inputs(inputs: Iterable[Node], outputs: Iterable[Node], graph: TypedGraph) -> tuple[Node, ...]:
    """The inputs that are not of the outputs' dtype."""
    stored = {graph.dtypes[node] for node in outputs}
    return tuple(value for value in inputs if {graph.dtypes[value]} != stored)


def ordered(groups: Iterable[Group], after: Callable[[Group], Iterable[Group]]) -> list[Group] | None:
    """The groups with each behind those that it must come `after`, else in the order given; None for a circle."""
    groups = list(groups)
    position = {id(group): i for i, group in enumerate(groups)}
    waiting: list[int] = []
    followers: list[list[int]] = [[] for _ in groups]
    for i, group in enumerate(groups):
        before = {position[id(other)] for other in after(group)} - {i}
        waiting.append(len(before))
        for other in before:
            followers[other].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    found = []
    while ready:
        i = heapq.heappop(ready)
        found.append(groups[i])
        for follower in followers[i]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    return found if len(found) == len(groups) else None


def is_elementwise(node: Node) -> bool:
    return node.op.elementwise and not node.op.is_view and not is_constant(node)


def is_constant(node: Node) -> bool:
    """Whether the node costs nothing to compute again: it is in every group that reads it."""
    return node.op.name == "full"


def is_sum(node: Node) -> bool:
    return node.op.reduces


def rows_of(node: Node, graph: TypedGraph) -> Shape:
    """The shape of what a row-wise node reads."""
    return graph.shapes[node.inputs[0]]


def is_row_wise(node: Node, graph: TypedGraph) -> bool:
    """Whether the node reduces or normalises along the last axis of its input."""
    if node.op.row_wise:
        return True
    if not node.op.along_axes:
        return False
    rank, axes = len(graph.shapes[node.inputs[0]]), node.attrs["axes"]
    return rank > 1 and axes is not None and tuple(axis % rank for axis in axes) == (rank - 1,)


def length(node: Node, written: dict[Node, int]) -> int:
    """How long an elementwise node's value is, written as one expression in which each value that has a length in
    `written` is written wherever it is read; what was loaded or summed is one name."""
    shape_only = node.op.shape_only
    total = 0
    for i, value in enumerate(node.inputs):
        if i not in shape_only:
            total += written.get(value, 1)
    return 1 + (READS if node.op.costly else 1) * total


def longest(nodes: Iterable[Node], stored: Iterable[Node] = ()) -> int:
    """The largest length of the elementwise nodes, which must come inputs first, where only what is `stored` is read
    and all else is written out."""
    written: dict[Node, int] = {}
    kept = set(stored)
    most = 0
    for node in nodes:
        if is_elementwise(node):
            own = length(node, written)
            most = max(most, own)
            if node not in kept:
                written[node] = own
    return most


class Members:
    """The nodes of a group while it grows, and what it reads and stores."""

    def __init__(self, nodes: Iterable[Node], consumers: dict[Node, list[Node]], roots: set[Node]) -> None:
        self._consumers, self._roots = consumers, roots
        self.nodes: set[Node] = set()
        self._inputs: set[Node] = set()
        self._outside: dict[Node, int] = {}  # readers elsewhere; a root is read by the user
        self.leaving: set[Node] = set()
        for node in nodes:
            self.add(node)

    def __contains__(self, node: Node) -> bool:
        return node in self.nodes

    def __len__(self) -> int:
        return len(self.nodes)

    def copy(self) -> Members:
        """The same nodes, to grow another way."""
        other = Members((), self._consumers, self._roots)
        other.nodes, other._inputs = set(self.nodes), set(self._inputs)
        other._outside, other.leaving = dict(self._outside), set(self.leaving)
        return other

    def with_node(self, node: Node) -> Members:
        """A copy that has the node too."""
        other = self.copy()
        other.add(node)
        return other

    def add(self, node: Node) -> None:
        """One node more."""
        self.nodes.add(node)
        self._inputs.discard(node)
        for value in value_inputs(node):
            if value not in self.nodes:
                self._inputs.add(value)
            else:
                self._outside[value] -= 1
                if not self._outside[value]:
                    self.leaving.discard(value)
        outside = sum(user not in self.nodes for user in self._consumers[node]) + (node in self._roots)
        self._outside[node] = outside
        if outside:
            self.leaving.add(node)

    def needed(self, anchor: Node, index: dict[Node, int], takes: Callable[[Node, Node], bool]) -> set[Node]:
        """The members but those that only later groups read and can as well compute, of one value that is stored in any
        case: what a backward step computes of a forward step's values, and of nothing else, belongs to it. `takes` says
        whether a user's kernel could compute a node as well."""
        left = set(self.nodes)
        backwards = sorted(left, key=index.__getitem__, reverse=True)
        for i, node in enumerate(backwards):
            users = self._consumers[node]
            late = node is not anchor and node not in self._roots and users and left.isdisjoint(users)
            if not late or not all(takes(user, node) for user in users):
                continue
            cone = {node}  # with what is computed for it alone
            for other in backwards[i + 1 :]:
                inside = other in left and other is not anchor and other not in self._roots
                if inside and cone.issuperset(self._consumers[other]):
                    cone.add(other)
            values = {v for inner in cone for v in value_inputs(inner) if v not in cone and not is_constant(v)}
            own = {value for user in users for value in value_inputs(user)}
            if len(values - own) <= 1 and all(self._is_stored(value, left, cone) for value in values):
                left -= cone
        return left

    def _is_stored(self, value: Node, left: set[Node], cone: set[Node]) -> bool:
        """Whether the value is in memory also if the cone is none of those left."""
        if value not in left or value in self._roots:
            return True
        return any(user not in left and user not in cone for user in self._consumers[value])

    @property
    def arrays(self) -> int:
        """How many are read and written."""
        return len(self._inputs) + len(self.leaving)
