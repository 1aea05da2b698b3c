"""Fusion: which nodes share a kernel.

Fusing saves memory traffic: a value that only the same kernel reads is never stored. Four kinds of group are formed, in
this order; the rules of `schedule` know how to run each:

    contraction   a matrix product or convolution, then elementwise nodes of its shape while there is one result
    reduction     elementwise nodes that only a sum reads, the sum, then elementwise nodes of the sum's shape
    rows          sums and softmaxes along the last axis, elementwise nodes on the same rows, and on a CPU the sums
                  down their columns; several results
    elementwise     connected elementwise nodes of one shape, several results

All others have a kernel alone, but for a slice and the transpose of its rows, as of attention's heads, which are one
view: inference of a Transformer of 4 x 128 takes 0.98 of the time.

A group grows from a node of its kind, neighbour by neighbour, in the ways that `GROWTHS` says.

What a group stores is of one dtype. Values of booleans or integers that it computes for itself alone may be of
another: `where(x > 0, a, b)` is one kernel. So may floats beside integers: a product of bytes, scaled and rounded to
bytes again, is one.

What is not stored is computed where it is read, so a node joins only where its values are read at the index at which
they are computed. A node of a smaller shape (a bias times two) stays outside, its value being read many times. Only
what costs nothing is computed twice, see `rematerialize`: constants, and short expressions of one array.

A product whose kernel stores its results apart (`Op.scatters`) keeps no epilogue that reads other arrays: another
kernel reads them row by row. So ResNet-18's training step takes 399 ms, else 425.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from ..compute import IN_ORDER
from ..graph import FLOATS, Node, Shape
from ..ops.slicing import Slice
from ..ops.views import View
from .base import Reason, TypedGraph
from .groups import (
    Group,
    Members,
    is_down_columns,
    is_elementwise,
    is_row_wise,
    kind_alone,
    loops_of,
    rows_of,
)
from .order import Order
from .rematerialize import FEW, HERE, rematerialized

MOST_NODES = 48  # of a group: compile time grows with it, and what is saved does not
MOST_ARRAYS = 24  # read and written by a group
SIBLINGS = 16  # readers of one value that are looked at


TAKEN = "another kernel computes it already"  # which says least of why two nodes are apart
OTHER_KIND, OTHER_SHAPE, OTHER_DTYPE = "its kind is another", "its shape is another", "its dtype is another"


@dataclass(frozen=True)
class Growth:
    """One way in which a group grows from an anchor.

    Attributes:
        finds: how nodes are found that may join: from a member its "readers", the "values" that it reads, and the
            "siblings" that read one of these too, if it is not much smaller; for each what is told of those that join.
        leave: how many of those that join may be stored: none, one, or "several" of the anchor's dtype.
        operand: whether they have the shape of what the anchor reads, else its own.
        rows: whether they may be computed row by row, too, and be one number a row.
    """

    finds: Mapping[str, str]
    leave: str
    operand: bool = False
    rows: bool = False


BEFORE = Growth({"values": "nothing else reads it"}, "none")
BEHIND = Growth({"readers": "pointwise behind it"}, "one")
AROUND = Growth(
    {"readers": "reads it", "values": "is read by it", "siblings": "shares an input with it"}, "several"
)
GROWTHS: dict[str, tuple[Growth, ...]] = {
    "contraction": (BEHIND, BEFORE),
    "reduction": (replace(BEFORE, operand=True), BEHIND, BEFORE),
    "rows": (replace(AROUND, operand=True, rows=True),),
    "elementwise": (AROUND,),
}


def fuse(
    graph: TypedGraph,
    views: Container[Node] = (),
    columns: bool = False,
    reasons: list[Reason] | None = None,
) -> list[Group]:
    """Every computed node but `views` in one group; the groups in no particular order. `columns`: whether a group of
    rows may sum down their columns, too. To `reasons` are added, for each node that joined another one, the kind of
    kernel, the two, and why; and for pairs that share no kernel "apart", the two, and why not.

    Groups do not depend on each other in a circle.
    """
    fusion = _Fusion(graph, views)
    for members in loops_of(graph):
        fusion.make(members, "loop")
    products = [node for node in graph.nodes if node.op.kind == "contraction"]
    row_wise = [node for node in graph.nodes if is_row_wise(node, graph)]
    down = fusion.find_columns(row_wise) if columns else {}
    sums = [n for n in graph.nodes if n.op.kind == "reduction" and not is_row_wise(n, graph) and n not in down]
    # what is stored as numbers first, with the conditions it needs
    pointwise = sorted(filter(is_elementwise, graph.nodes), key=lambda node: graph.dtypes[node] not in FLOATS)
    for kind, anchors in (
        ("contraction", products),
        ("reduction", sums),
        ("rows", row_wise),
        ("reduction", down),
        ("elementwise", pointwise),
    ):
        for anchor in filter(fusion.is_free, anchors):
            fusion.grow(anchor, kind)
    for node in filter(fusion.moves_rows, graph.nodes):
        fusion.make((node.inputs[0], node), "single")
    groups = fusion.groups()
    if reasons is not None:
        reasons += fusion.reasons()
    return groups


class _Fusion:
    """The groups while they are formed."""

    def __init__(self, graph: TypedGraph, views: Container[Node]) -> None:
        self.graph = graph
        self.views = views
        self.roots = set(graph.roots)
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self.group_of: dict[Node, list[Node]] = {}
        self.kinds: dict[int, str] = {}
        self.flow = flow = rematerialized(graph, views)
        self.cheap, self.computed, self.reads, self.consumers = flow.cheap, flow.computed, flow.inputs, flow.consumers
        self.order = Order(graph.nodes, self.reads, self.consumers, self.group_of)
        self.columns: dict[Node, None] = {}  # sums that rows may take
        self.joined: dict[Node, tuple[Node, str]] = {}  # the member by which a node was found, and what it is of that
        self.apart: dict[tuple[Node, Node], str] = {}  # a member, and a node that was refused

    def find_columns(self, row_wise: Iterable[Node]) -> dict[Node, None]:
        """Sums down columns that are left to rows of that shape: these are read once for both. Sums of few rows stay by
        themselves, as those must be added in order (`compute.IN_ORDER`)."""
        shapes = {rows_of(node, self.graph) for node in row_wise}
        many = {shape for shape in shapes if math.prod(shape[:-1]) > IN_ORDER}
        down = (node for node in self.graph.nodes if is_down_columns(node, self.graph))
        self.columns = {node: None for node in down if rows_of(node, self.graph) in many}
        return self.columns

    def is_free(self, node: Node) -> bool:
        return not (node in self.group_of or node in self.views or node not in self.index or node in self.cheap)

    def make(self, nodes: Iterable[Node], kind: str) -> None:
        """Makes the nodes one group of a kind."""
        members = sorted(nodes, key=self.index.__getitem__)
        self.kinds[id(members)] = kind
        self.order.gather(members)
        for node in members:
            self.group_of[node] = members

    def _refuse(self, node: Node, why: str) -> None:
        """Notes why a node is not of the group of the member by which it was found."""
        self.apart[self.joined[node][0], node] = why

    def _unfit(self, node: Node, shape: Shape, rows: bool) -> str:
        """Why a group may not have the node: an elementwise one of the shape, or of rows; empty if it may."""
        taken = "" if self.is_free(node) else TAKEN
        if rows and (is_row_wise(node, self.graph) or node in self.columns):
            return taken if rows_of(node, self.graph) == shape else "its rows are others"
        if not is_elementwise(node):
            return OTHER_KIND
        own = [self.graph.shapes[value] for value in (self.computed[node] if rows else (node,))]
        return taken if all(one == shape or (rows and one == (*shape[:-1], 1)) for one in own) else OTHER_SHAPE

    def _members(self, nodes: Iterable[Node] = ()) -> Members:
        return Members(nodes, self.flow, self.roots)

    def _found(self, node: Node, how: str) -> Iterable[Node]:
        """The nodes that are found from a member; none by the operands of a product, which are stored."""
        if how == "readers":
            return self.consumers[node]
        values = self.reads[node] if node.op.kind != "contraction" else []
        if how == "values":
            return values
        shared = (v for v in values if FEW * self.graph.size(v) > self.graph.size(node))  # no learning rate
        return (user for value in shared for user in self.consumers[value][:SIBLINGS])

    def _grow(self, start: Members, anchor: Node, growth: Growth) -> Members:
        """`start` and what joins it: neighbours from its nodes on, inputs first."""
        shape = self.graph.shapes[anchor.inputs[0] if growth.operand else anchor]
        members, best, dtype = start.copy(), start, self.graph.dtypes[anchor]
        near: list[tuple[int, Node]] = []
        seen = set(start.nodes)
        barred: dict[Node, Node] = {}  # by the node that is between it and the members
        refused: dict[Node, str] = {}  # why a neighbour may not join yet

        def look_around(node: Node) -> None:
            for where, how in growth.finds.items():
                for other in self._found(node, where):
                    if other not in seen:
                        seen.add(other)
                        why = self._unfit(other, shape, growth.rows)
                        if why or not self._dtype_fits(other, dtype):
                            self.apart[node, other] = why or OTHER_DTYPE
                        else:
                            self.joined[other] = node, how
                            insort(near, (self.index[other], other))

        def why_not(node: Node) -> str:
            if growth.leave == "one":  # as nothing inside is read outside but that, no path can leave and come back
                return ""
            if node in barred and barred[node] not in members:
                return refused[node]
            joined = members.with_node(node)
            if joined.arrays > MOST_ARRAYS:
                return "the kernel would have too many arrays"
            if node in joined.leaving and growth.leave == "none":
                return "it is returned" if node in self.roots else "others read it, too"
            if len({self.graph.dtypes[left] for left in joined.leaving}) > 1:
                return OTHER_DTYPE
            if growth.leave == "several" and (between := self.order.between(node, members.nodes)) is not None:
                barred[node] = between
                return "a path between them leads through other kernels"
            return ""

        def may_join(node: Node) -> bool:
            refused[node] = why_not(node)
            return not refused[node]

        for node in sorted(start.nodes, key=self.index.__getitem__):
            look_around(node)
        grown = True
        while grown and len(members) < MOST_NODES:  # a node that did not fit may, once the group has grown around it
            found = next((pair for pair in near if may_join(pair[1])), None)
            grown = found is not None
            if found is not None:
                near.remove(found)
                members.add(found[1])
                look_around(found[1])
                if growth.leave != "one":
                    best = members
                elif members.arrays <= MOST_ARRAYS and len(members.leaving) == 1:
                    best = members.copy()
        for _, node in near:
            self._refuse(node, refused.get(node, "the kernel has as many nodes as it may"))
        for node in members.nodes - best.nodes:
            self._refuse(node, "more than one value would leave the kernel")
        return best

    def _dtype_fits(self, node: Node, dtype: str) -> bool:
        """Whether a group whose anchor is of `dtype` may compute the node: floats are of one dtype."""
        return dtype not in FLOATS or self.graph.dtypes[node] == dtype or self.graph.dtypes[node] not in FLOATS

    def grow(self, anchor: Node, kind: str) -> None:
        """The group of an anchor, which has joined none."""
        self.joined.pop(anchor, None)
        members = self._members([anchor])
        for growth in GROWTHS[kind]:
            members = self._grow(members, anchor, growth)
        nodes = members.nodes
        if kind == "contraction" and self._reads_slowly(anchor, nodes):
            for node in nodes - {anchor}:
                self._refuse(node, "tiles of the product would read other arrays slowly")
            nodes = {anchor}
        self.make(nodes, kind)

    def _reads_slowly(self, anchor: Node, nodes: set[Node]) -> bool:
        """Whether a product that stores its results apart has an epilogue that reads other arrays there."""
        read = {value for node in nodes if node is not anchor for value in self.reads[node]} - nodes
        return anchor.op.scatters(anchor) and any(self.graph.shapes[x] == self.graph.shapes[anchor] for x in read)

    def moves_rows(self, node: Node) -> bool:
        """Whether the node puts the rows of a slice, which nothing else reads, in another order."""
        if not self.is_free(node) or node.op.kind != "single" or len(node.inputs) != 1:
            return False
        x, shapes = node.inputs[0], self.graph.shapes
        if not (isinstance(x.op, Slice) and self.is_free(x)) or x in self.roots or len(self.consumers[x]) > 1:
            return False
        rows = x.op.view(x, View.of(shapes[x.inputs[0]]))
        moved = node.op.view(node, rows)
        return bool(moved and moved.strides) and moved.strides[-1] == rows.strides[-1] == 1

    def groups(self) -> list[Group]:
        """All groups, also of the nodes that none has taken."""
        for node in self.graph.nodes:
            stored = node in self.roots or self.consumers[node]
            if self.is_free(node) or (node in self.cheap and stored):
                self.make([node], kind_alone(node))
                for other in (*self.reads[node], *self.consumers[node]):
                    self.apart.setdefault((node, other), OTHER_KIND)
        found = {id(members): members for members in self.group_of.values()}
        return sorted(map(self._group, found.values()), key=lambda group: self.index[group.nodes[-1]])

    def reasons(self) -> list[Reason]:
        """Why nodes joined others, and why pairs of nodes are in different groups."""
        found: list[Reason] = []
        for node in self.group_of:
            cheap = (value for value in self.computed[node][:-1] if not value.op.constant)
            found += [("rematerialize", (node, value), HERE) for value in cheap]
        for node, (member, how) in self.joined.items():
            if (group := self.group_of.get(node)) is not None and group is self.group_of.get(member):
                found.append((self.kinds[id(group)], (member, node), how))
        for pair, why in self.apart.items():
            a, b = map(self.group_of.get, pair)
            if a is not None and b is not None and a is not b:
                found.append(("apart", pair, why))
        return found

    def _group(self, members: list[Node]) -> Group:
        """The members as a Group: what it reads and writes, with the constants among its inputs in it."""
        inside = set(members)
        inputs = tuple(dict.fromkeys(v for node in members for v in self.reads[node] if v not in inside))
        if self.kinds[id(members)] == "loop":
            return Group(tuple(members), inputs, tuple(members), "loop")
        border = self._members(members)
        outputs = tuple(node for node in members if node in border.leaving)
        nodes = dict.fromkeys(chain(*(self.computed[node] for node in members)))
        return Group(tuple(nodes), inputs, outputs, self.kinds[id(members)])
