"""Fusion: which nodes share a kernel.

Fusing saves memory traffic: a value that only the same kernel reads is never stored. Four kinds of group are formed, in
this order; the rules of `schedule` know how to run each:

    contraction   a matrix product or convolution, then pointwise nodes of its shape while there is one result
    reduction     pointwise nodes that only a sum reads, the sum, then pointwise nodes of the sum's shape
    rows          sums and softmaxes along the last axis and pointwise nodes on the same rows, several results
    pointwise     connected pointwise nodes of one shape, several results

What a group stores is of one dtype. A value of booleans or integers that it computes for itself alone may be of
another: `where(x > 0, a, b)` is one kernel.

What is not stored is computed where it is read, so a node joins only where its values are read at the index at which
they are computed: nothing is computed twice. A node of a smaller shape (a bias times two) stays outside, its value
being read many times, except a constant, which costs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..graph import FLOATS, Node, Shape
from .base import TypedGraph, value_inputs

MOST_NODES = 48  # of a group: compile time grows with it, and what is saved does not
MOST_ARRAYS = 24  # read and written by a group
SIBLINGS = 16  # readers of one value that are looked at
WINDOW = 2000  # nodes looked at to make sure that no path leaves a group and comes back


@dataclass(frozen=True)
class Group:
    """Nodes that one kernel computes.

    Attributes:
        nodes: inputs first.
        inputs: what it reads from memory, each once.
        outputs: what it stores.
        kind: "contraction", "reduction", "rows", "pointwise" or "single".
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
        """The inputs on which `output` may lie: of its type, and read by pointwise nodes alone, at the very index that
        is written. The compiler takes it that values of different dtypes share no memory. Where rows are summed they
        are read more than once, so nothing is."""
        if self.kind == "rows":
            return []
        others = {value for node in self.nodes if not _is_pointwise(node) for value in value_inputs(node)}
        before = self._before_the_sum()
        found = []
        for value in self.inputs:
            if value in self.other:
                continue
            readers = [node for node in self.nodes if value in value_inputs(node)]
            if value not in others and shapes[value] == shapes[output] and not any(n in before for n in readers):
                found.append(value)
        return found

    def _before_the_sum(self) -> set[Node]:
        """The nodes that the contraction or sum depends on, and itself."""
        needed = {node for node in self.nodes if not _is_pointwise(node)}
        for node in reversed(self.nodes):
            if node in needed:
                needed.update(value for value in value_inputs(node) if value in self.nodes)
        return needed


def fuse(graph: TypedGraph, views: frozenset[Node] = frozenset()) -> list[Group]:
    """Every computed node but `views` in one group; the groups in no particular order.

    Groups do not depend on each other in a circle.
    """
    fusion = _Fusion(graph, views)
    for node in graph.nodes:
        if node.op.contraction:
            fusion.grow_epilogue(node, "contraction")
    for node in graph.nodes:
        if _is_sum(node) and not _is_row_wise(node, graph):
            fusion.grow_reduction(node)
    for node in graph.nodes:
        if _is_row_wise(node, graph):
            fusion.grow_rows(node)
    # what is stored as numbers first, with the conditions it needs
    for node in sorted(graph.nodes, key=lambda node: graph.dtypes[node] not in FLOATS):
        if _is_pointwise(node):
            fusion.grow_pointwise(node)
    return fusion.groups()


def single_groups(graph: TypedGraph, views: frozenset[Node] = frozenset()) -> list[Group]:
    """Every computed node but `views` in a group of its own."""
    found = []
    for node in graph.nodes:
        if node not in views:
            inputs, kind = tuple(value_inputs(node)), "pointwise" if _is_pointwise(node) else "single"
            found.append(Group((node,), inputs, (node,), kind, _other(inputs, (node,), graph)))
    return found


def _other(inputs: Iterable[Node], outputs: Iterable[Node], graph: TypedGraph) -> tuple[Node, ...]:
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


def _is_pointwise(node: Node) -> bool:
    return node.op.elementwise and not node.op.is_view and not _is_constant(node)


def _is_constant(node: Node) -> bool:
    """Whether the node costs nothing to compute again: it is in every group that reads it."""
    return node.op.name == "full"


def _is_sum(node: Node) -> bool:
    return node.op.name in ("reducesum", "sum_to", "sum_to_like", "reducemax", "reducemin")


_ALONG = ("reducesum", "reducemax", "reducemin", "argmax", "argmin", "var", "std", "logsumexp")
_ALONG_ONE = ("softmax_along", "log_softmax_along")


def _rows_of(node: Node, graph: TypedGraph) -> Shape:
    """The shape of what a row-wise node reads."""
    return graph.shapes[node.inputs[0]]


def _is_row_wise(node: Node, graph: TypedGraph) -> bool:
    """Whether the node reduces or normalises along the last axis of its input."""
    if node.op.row_wise:
        return True
    if node.op.name not in (*_ALONG, *_ALONG_ONE):
        return False
    rank = len(graph.shapes[node.inputs[0]])
    axes = (node.attrs["axis"],) if node.op.name in _ALONG_ONE else node.attrs["axes"]
    return rank > 1 and axes is not None and tuple(axis % rank for axis in axes) == (rank - 1,)


class _Fusion:
    """The groups while they are formed."""

    def __init__(self, graph: TypedGraph, views: frozenset[Node]) -> None:
        self.graph = graph
        self.views = views
        self.consumers = graph.consumers()
        self.roots = set(graph.roots)
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self.group_of: dict[Node, list[Node]] = {}
        self.kinds: dict[int, str] = {}

    def _free(self, node: Node) -> bool:
        return not (node in self.group_of or node in self.views or node not in self.index or _is_constant(node))

    def _make(self, nodes: Iterable[Node], kind: str) -> None:
        members = sorted(nodes, key=self.index.__getitem__)
        self.kinds[id(members)] = kind
        for node in members:
            self.group_of[node] = members

    def _leaves(self, node: Node, members: set[Node]) -> bool:
        """Whether something outside reads the node."""
        return node in self.roots or any(user not in members for user in self.consumers[node])

    def _arrays(self, members: set[Node]) -> int:
        inputs = {value for node in members for value in value_inputs(node)} - members
        return len(inputs) + sum(self._leaves(node, members) for node in members)

    def _epilogue(self, start: set[Node], anchor: Node, shape: Shape) -> set[Node]:
        """`start` and the pointwise nodes of `shape` behind it, as far as all of it leaves by one node of the anchor's
        dtype.

        As nothing inside is read outside but that last node, no path can leave and come back.
        """
        members, best, dtype = set(start), set(start), self.graph.dtypes[anchor]
        while len(members) < MOST_NODES:
            found = [
                user
                for node in members
                for user in self.consumers[node]
                if user not in members
                and self._free(user)
                and _is_pointwise(user)
                and self.graph.shapes[user] == shape
                and self._dtype_fits(user, dtype)
            ]
            if not found:
                break
            members.add(min(found, key=self.index.__getitem__))
            leaving = [node for node in members if self._leaves(node, members)]
            one = len(leaving) == 1 and self.graph.dtypes[leaving[0]] == dtype
            if one and self._arrays(members) <= MOST_ARRAYS:
                best = set(members)
        return best

    def _dtype_fits(self, node: Node, dtype: str) -> bool:
        """Whether a group that stores `dtype` may compute the node, if it does not store it."""
        own = self.graph.dtypes[node]
        return own == dtype or own not in FLOATS

    def grow_epilogue(self, anchor: Node, kind: str) -> None:
        """The anchor, what is pointwise behind it, and what only that reads."""
        if self._free(anchor):
            shape = self.graph.shapes[anchor]
            self._make(self._with_producers(self._epilogue({anchor}, anchor, shape), shape), kind)

    def grow_reduction(self, anchor: Node) -> None:
        """What is pointwise before a sum and read by nothing else, the sum, and what is pointwise behind it."""
        if not self._free(anchor):
            return
        members = self._with_producers({anchor}, self.graph.shapes[anchor.inputs[0]])
        shape = self.graph.shapes[anchor]
        self._make(self._with_producers(self._epilogue(members, anchor, shape), shape), "reduction")

    def _with_producers(self, members: set[Node], shape: Shape) -> set[Node]:
        """The members, and the pointwise nodes of `shape` that only they read; operands of a contraction are stored."""
        members = set(members)
        dtypes = {self.graph.dtypes[node] for node in members}
        stack = [value for node in members if not node.op.contraction for value in value_inputs(node)]
        while stack and len(members) < MOST_NODES:
            node = stack.pop()
            if not (self._free(node) and _is_pointwise(node) and self.graph.shapes[node] == shape):
                continue
            if self.graph.dtypes[node] in FLOATS and self.graph.dtypes[node] not in dtypes:
                continue
            grown = {*members, node}
            if not self._leaves(node, grown) and self._arrays(grown) <= MOST_ARRAYS:
                members = grown
                stack += value_inputs(node)
        return members

    def grow_rows(self, anchor: Node) -> None:
        """All that shares the anchor's rows and is connected with it, or reads what it reads."""
        if not self._free(anchor):
            return
        wide = _rows_of(anchor, self.graph)
        rows = wide[:-1]

        def fits(node: Node) -> bool:
            if _is_row_wise(node, self.graph):
                return _rows_of(node, self.graph) == wide
            # TVM lowers no arrays of booleans within vectors, as the kernels of rows would make; and a constant is in
            # the group, where all has rows
            values = value_inputs(node)
            known = "bool" not in [self.graph.dtypes[value] for value in (node, *values)]
            known = known and all(self.graph.shapes[v] in (wide, (*rows, 1)) for v in values if _is_constant(v))
            return known and _is_pointwise(node) and self.graph.shapes[node] in (wide, (*rows, 1))

        self._grow(anchor, fits, "rows")

    def grow_pointwise(self, anchor: Node) -> None:
        """Pointwise nodes of one shape that read each other, or the same."""
        if not self._free(anchor):
            return
        shape = self.graph.shapes[anchor]
        self._grow(anchor, lambda n: _is_pointwise(n) and self.graph.shapes[n] == shape, "pointwise")

    def _grow(self, anchor: Node, fits: Callable[[Node], bool], kind: str) -> None:
        """A group from the anchor outwards: neighbours, and what reads an input together with a member."""
        members = {anchor}
        grown = True
        while grown and len(members) < MOST_NODES:  # a node that did not fit may, once the group has grown around it
            near = {user for node in members for user in self.consumers[node]}
            for value in {value for node in members for value in value_inputs(node)}:
                near |= {value, *self.consumers.get(value, [])[:SIBLINGS]}
            found = sorted((n for n in near if n not in members and self._free(n)), key=self.index.__getitem__)
            added = next((n for n in found if fits(n) and self._may_join(n, anchor, members)), None)
            grown = added is not None
            members |= {added} if added is not None else set()
        self._make(members, kind)

    def _may_join(self, node: Node, anchor: Node, members: set[Node]) -> bool:
        joined, dtype = {*members, node}, self.graph.dtypes[anchor]
        return (
            self._dtype_fits(node, dtype)
            and (self.graph.dtypes[node] == dtype or not self._leaves(node, joined))
            and self._arrays(joined) <= MOST_ARRAYS
            and self._is_convex(joined)
        )

    def _is_convex(self, members: set[Node]) -> bool:
        """Whether no path leaves the members and comes back; groups that exist are passed through whole."""
        last = max(self.index[node] for node in members)
        stack = [user for node in members for user in self.consumers[node] if user not in members]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen or self.index[node] > last:
                continue
            seen.add(node)
            if len(seen) > WINDOW:
                return False
            for passed in self.group_of.get(node, [node]):
                seen.add(passed)
                for user in self.consumers[passed]:
                    if user in members:
                        return False
                    stack.append(user)
        return True

    def groups(self) -> list[Group]:
        """All groups; those of a circle, which the search above may miss, are taken apart."""
        for node in self.graph.nodes:
            stored = node in self.roots or any(user in self.views for user in self.consumers[node])
            if self._free(node) or (_is_constant(node) and stored):
                self._make([node], "pointwise" if _is_pointwise(node) else "single")
        made = {id(members): self._group(members) for members in self.group_of.values()}
        groups = sorted(made.values(), key=lambda group: self.index[group.nodes[-1]])
        owner = {node: group for group in groups for node in group.outputs}

        def before(group: Group) -> list[Group]:
            return [owner[v] for value in group.inputs for v in self._computed(value)]

        if ordered(groups, before) is not None:
            return groups
        return single_groups(self.graph, self.views)

    def _computed(self, value: Node) -> list[Node]:
        """The node of a group whose memory `value` is; none if it was fed."""
        while value in self.views:
            value = value.inputs[0]
        return [value] if value in self.group_of else []

    def _group(self, members: list[Node]) -> Group:
        inside = set(members)
        read = dict.fromkeys(v for node in members for v in value_inputs(node) if v not in inside)
        constants = [v for v in read if _is_constant(v) and v in self.index]
        inputs = tuple(v for v in read if v not in constants)
        outputs = tuple(node for node in members if self._leaves(node, inside))
        other = _other(inputs, outputs, self.graph)
        return Group((*constants, *members), inputs, outputs, self.kinds[id(members)], other)
