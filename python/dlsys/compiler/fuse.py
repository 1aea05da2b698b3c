"""Fusion: which nodes share a kernel.

Fusing saves memory traffic: a value that only the same kernel reads is never stored. One walk, inputs first: each node
begins a kernel of its own, which is united with the kernels that compute what it reads, then with those that read the
same values. Four kinds of kernel have several nodes; the rules of `schedule` know how to run each:

    contraction   a matrix product or convolution, and elementwise nodes of its shape; one result
    reduction     elementwise nodes that only a sum reads, the sum, and elementwise nodes of its shape; one result
    rows          sums and softmaxes along the last axis, elementwise nodes on the same rows, and on a CPU the sums
                  down their columns; several results
    elementwise   elementwise nodes of one shape; several results

All others have a kernel alone. `Fusion.why_not` has every condition, with its reason in words.

No kernel waits for itself: each has a level, larger than those of the kernels that it reads, and smaller than those of
its readers. Two kernels are united only if there is such a level for both.

An elementwise node that one node alone reads begins no kernel, but waits for its reader, if that computes it for
itself: an elementwise node, or a sum or softmax of it; a slice waits for its transpose. So the nodes behind a product
may branch and meet again, as in gelu, and what only a sum reads is not stored.

What a kernel stores is of one dtype. Values of booleans or integers that it computes for itself may be of another:
`where(x > 0, a, b)` is one kernel.

What is not stored is computed where it is read, so a node joins only where its values are read at the index at which
they are computed. A node of a smaller shape (a bias times two) stays outside, its value being read many times. Only
what costs nothing is computed twice, see `rematerialize`: constants, and short expressions of one array.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from ..compute import IN_ORDER
from ..graph import FLOATS, Node, Shape
from .aliases import SLICE, TRANSPOSE
from .base import Reason, TypedGraph, size_of
from .groups import Group, is_down_columns, is_elementwise, is_row_wise, kind_alone, loops_of, rows_of
from .rematerialize import FEW, HERE, rematerialized

MOST_NODES = 48  # of a kernel: compile time grows with it, and what is saved does not
MOST_ARRAYS = 24  # read and written by a kernel
SIBLINGS = 16  # readers of one value that are looked at

FUSED = ("contraction", "reduction", "rows", "elementwise")  # of two kinds the first is that of the united kernel
READS, READ = "reads it", "computes what it reads"
ALONE, SIBLING = "nothing else reads it", "shares an input with it"
COMPLETE = "its sums must be complete first"
OFTEN = "it is read many times, and would be computed each time"
OTHER_SHAPE, OTHER_DTYPE = "its shape is another", "its dtype is another"
PATH = "a path between them leads through other kernels"


@dataclass(eq=False)
class Kernel:
    """Nodes that will share a kernel, while the walk goes on.

    Attributes:
        kind: as of `Group`.
        nodes: inputs first.
        shape: of what its loops compute: of rows and elementwise nodes their own, else that of the result.
        root: the node that all others have joined, one by one.
        anchor: the sum or product of a kernel that has one.
        reads: the values from elsewhere.
        leaving: the nodes that others read, or that are returned.
        level: larger than the levels of the kernels that it reads.
        sums: whether it is a product or a sum that is no row's.
    """

    kind: str
    nodes: dict[Node, None]
    shape: Shape
    root: Node
    anchor: Node | None = None
    reads: dict[Node, None] = field(default_factory=dict)
    leaving: set[Node] = field(default_factory=set)
    level: float = 0
    sums: bool = False


def fuse(
    graph: TypedGraph,
    views: Container[Node] = (),
    columns: bool = False,
    reasons: list[Reason] | None = None,
) -> list[Group]:
    """Every computed node but `views` in one group; the groups in no particular order. `columns`: whether a group of
    rows may sum down their columns, too. To `reasons` are added, for each node that joined another one, the kind of
    kernel, the two, and why; and for each node and a value that it reads from another kernel "apart", the two, and why.

    Groups do not depend on each other in a circle.
    """
    fusion = Fusion(graph, views, columns)
    fusion.walk()
    if reasons is not None:
        reasons += fusion.reasons()
    return fusion.groups()


class Fusion:
    """The kernels of a graph while they are formed.

    Attributes:
        cheap, computed, inputs: see `rematerialized`.
        consumers: the nodes whose kernels read a value.
        kernel_of: the kernel of each node that has one.
        waiting: of each node that begins a kernel what waits for it, and the node itself.
        columns: sums that rows may take; they are placed last, when the rows are known.
        joined: of each node but a kernel's root the node that it has joined there, and why.
    """

    def __init__(self, graph: TypedGraph, views: Container[Node], columns: bool) -> None:
        self.graph, self.views = graph, views
        self.roots = set(graph.roots)
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self.cheap, self.computed, self.inputs = rematerialized(graph, views)
        self.consumers: dict[Node, list[Node]] = defaultdict(list)
        for node, read in self.inputs.items():
            for value in read if node not in self.cheap else ():
                self.consumers[value].append(node)
        self.loops = {node: members for members in loops_of(graph) for node in members}
        self.row_wise = {node for node in graph.nodes if is_row_wise(node)}
        self.columns = self._columns() if columns else set[Node]()
        self.kernel_of: dict[Node, Kernel] = {}
        self.joined: dict[Node, tuple[Node, str]] = {}
        self.waiting = self._waiting()

    def _columns(self) -> set[Node]:
        """Sums down the columns of what rows read too. Sums of few rows stay by themselves, as those must be added in
        order (`compute.IN_ORDER`)."""
        shapes = {rows_of(node) for node in self.row_wise}
        many = {shape for shape in shapes if math.prod(shape[:-1]) > IN_ORDER}
        many |= {(*shape[:-1], 1) for shape in many}
        return {node for node in self.graph.nodes if many and is_down_columns(node) and rows_of(node) in many}

    def _waiting(self) -> dict[Node, dict[Node, None]]:
        """Of each node that begins a kernel what waits for it, inputs first, and the node itself."""
        found: dict[Node, dict[Node, None]] = {}
        for node in self.graph.nodes:
            own = found.setdefault(node, {})
            own[node] = None
            if node in self.roots or node in self.views or node in self.cheap:
                continue
            users = self.consumers[node]
            if len(users) == 1 and users[0] not in self.views and self._waits(node, users[0], own):
                both = found.get(users[0], {}) | own
                if len(both) < MOST_NODES and len(self._reads(both)) < MOST_ARRAYS:
                    found[users[0]] = both
                    self.joined[node] = users[0], ALONE
                    del found[node]
        return found

    def _waits(self, node: Node, user: Node, own: dict[Node, None]) -> bool:
        """Whether the one reader of a node computes it, and `own`, what waits for it, for itself."""
        if node.op is SLICE:
            return user.op is TRANSPOSE
        if not is_elementwise(node) or self._floats_differ((node, user)):
            return False
        if is_elementwise(user):
            return user.shape == node.shape
        sums = user.op.kind == "reduction" or user in self.row_wise
        return sums and rows_of(user) == node.shape and not self._follows(node, own)

    def _follows(self, node: Node, own: dict[Node, None]) -> bool:
        """Whether the node, with what waits for it, may be computed as the end of a sum's or product's kernel."""
        for value in self._reads(own):
            sums = value.op.kind in ("contraction", "reduction") and value not in self.row_wise
            ends = sums and value not in self.roots and value.shape == node.shape
            if ends and own.keys() >= set(self.consumers[value]):
                return True
        return False

    def _reads(self, nodes: dict[Node, None]) -> dict[Node, None]:
        """The values that the nodes read and do not compute."""
        found: dict[Node, None] = {}
        for node in nodes:
            for value in self.inputs[node]:
                if value not in nodes:
                    found[value] = None
        return found

    def _floats_differ(self, nodes: Iterable[Node]) -> bool:
        return len({node.dtype for node in nodes} & set(FLOATS)) > 1

    # The walk

    def walk(self) -> None:
        """Puts each computed node in a kernel."""
        begins = [node for node in self.graph.nodes if node in self.waiting]
        for node in sorted(begins, key=self.columns.__contains__):  # the sums down columns last
            if node not in self.kernel_of and node not in self.views and node not in self.cheap:
                self._place(node)
        for node in self.graph.nodes:  # a cheap value that is read by others than kernels of several nodes
            stored = node in self.cheap and (node in self.roots or self.consumers[node])
            if stored and node not in self.kernel_of:
                self._place(node)

    def _place(self, node: Node) -> None:
        """Begins the node's kernel, with what waits for it, and unites it with others."""
        if node in self.loops:
            self._put(Kernel("loop", dict.fromkeys(self.loops[node]), (), node))
            return
        nodes = dict.fromkeys(sorted(self.waiting.get(node, {node: None}), key=self.index.__getitem__))
        kind, shape, anchor = kind_alone(node), node.shape, None
        if node in self.row_wise:
            kind, shape, anchor = "rows", rows_of(node), node
        elif node.op.kind in ("reduction", "contraction"):
            kind, anchor = node.op.kind, node
        kernel = self._put(Kernel(kind, nodes, shape, node, anchor))
        tried: dict[Kernel, None] = {}
        while (pair := self._next(kernel, tried)) is not None:
            other, how = pair
            tried[other] = None
            if not self.why_not(other, kernel):
                if kernel.root is node:
                    read = [value for value in kernel.reads if value in other.nodes]
                    self.joined[node] = read[0] if read else other.root, how
                else:
                    self.joined[other.root] = node, READ if how is READS else how
                kernel = self._put(self._united(other, kernel, other.root if kernel.root is node else kernel.root))

    def _put(self, kernel: Kernel) -> Kernel:
        """The kernel, with what follows from its nodes."""
        nodes = kernel.nodes
        kernel.sums = kernel.kind in ("contraction", "reduction")
        kernel.reads = self._reads(nodes)
        kernel.leaving = self._leaving(nodes, nodes)
        kernel.level = self._floor(kernel.reads, ()) + 1
        for node in nodes:
            self.kernel_of[node] = kernel
        return kernel

    def _next(self, kernel: Kernel, tried: Container[Kernel]) -> tuple[Kernel, str] | None:
        """The next kernel with which one may be united, and how they are related: first sums and products that it
        reads, then others that it reads, the last first, then readers of the same values."""
        found: Kernel | None = None
        for value in kernel.reads:
            other = self.kernel_of.get(value)
            if other is not None and other not in tried:
                after = found is None or (other.sums, other.level) > (found.sums, found.level)
                found = other if after else found
        if found is not None:
            return found, READS
        if kernel.kind in ("elementwise", "rows") or kernel.anchor in self.columns:
            size = math.prod(kernel.shape)
            for value in kernel.reads:
                if FEW * size_of(value) > size:  # no learning rate
                    for user in self.consumers[value][:SIBLINGS]:
                        near = self.kernel_of.get(user, kernel)
                        if near is not kernel and near not in tried and near.kind in ("elementwise", "rows"):
                            return near, SIBLING
        return None

    def _united(self, a: Kernel, b: Kernel, root: Node) -> Kernel:
        """The nodes of two kernels in one."""
        kind = self._kind(a, b)
        first = a if a.kind == kind else b
        nodes = sorted([*a.nodes, *b.nodes], key=self.index.__getitem__)
        return Kernel(kind, dict.fromkeys(nodes), first.shape, root, first.anchor)

    # Conditions

    def why_not(self, a: Kernel, b: Kernel) -> str:
        """Why two kernels cannot be one; empty if they can."""
        for kernel in (a, b):
            if kernel.kind not in FUSED:
                return f"{next(iter(kernel.nodes)).op.name} has a kernel of its own"
        kind = self._kind(a, b)
        return self._why_not_shapes(kind, a, b) or self._why_not_borders(kind, a, b)

    def _kind(self, a: Kernel, b: Kernel) -> str:
        """The kind of both as one."""
        if {a.kind, b.kind} == {"rows", "reduction"}:
            return "rows"
        return min(a.kind, b.kind, key=FUSED.index)

    def _why_not_shapes(self, kind: str, a: Kernel, b: Kernel) -> str:
        main, other = (a, b) if a.kind == kind else (b, a)
        if kind == "elementwise":
            return "" if a.shape == b.shape else OTHER_SHAPE
        if kind == "rows":
            return self._why_not_rows(main, other)
        if other.kind != "elementwise":
            return COMPLETE
        assert main.anchor is not None
        if other.leaving.isdisjoint(self._read_before(main)):
            return "" if other.shape == main.shape else OTHER_SHAPE
        if kind == "contraction":
            return "a product reads it many times"
        return "" if other.shape == rows_of(main.anchor) else OTHER_SHAPE

    def _read_before(self, kernel: Kernel) -> set[Node]:
        """What a kernel's sum or product depends on, of what the kernel computes and of what it reads."""
        found: set[Node] = set()
        stack = [kernel.anchor]
        while stack:
            if (node := stack.pop()) in kernel.nodes:
                new = [value for value in self.inputs[node] if value not in found]
                found.update(new)
                stack += new
        return found

    def _why_not_rows(self, rows: Kernel, other: Kernel) -> str:
        row, one = rows.shape, (*rows.shape[:-1], 1)
        if other.kind == "reduction":
            if other.anchor not in self.columns or (read := rows_of(other.anchor)) not in (row, one):
                return COMPLETE
            alike = [node.shape == read for node in other.nodes if node is not other.anchor]
            return "" if all(alike) else OTHER_SHAPE
        if other.kind == "rows":
            return "" if other.shape == row else "its rows are others"
        shapes = {value.shape for node in other.nodes for value in self.computed[node]}
        return "" if shapes <= {row, one} else OTHER_SHAPE

    def _why_not_borders(self, kind: str, a: Kernel, b: Kernel) -> str:
        """Why the two are too large together, or store or read what one kernel cannot."""
        nodes = a.nodes | b.nodes
        if self._floats_differ(nodes):
            return OTHER_DTYPE
        leaving = self._leaving([*a.leaving, *b.leaving], nodes)
        if kind in ("contraction", "reduction") and len(leaving) > 1:
            return "more than one value would leave the kernel" if leaving.isdisjoint(self.roots) else "it is returned"
        if len({node.dtype for node in leaving}) > 1:
            return OTHER_DTYPE
        reads = [value for value in a.reads | b.reads if value not in nodes]
        if len(reads) + len(leaving) > MOST_ARRAYS:
            return "the kernel would have too many arrays"
        if len({one for node in nodes for one in self.computed[node] if not one.op.constant}) > MOST_NODES:
            return "the kernel has as many nodes as it may"
        if kind == "contraction" and self._reads_slowly(a if a.kind == kind else b, reads):
            return "tiles of the product would read other arrays slowly"
        return PATH if self._floor(reads, nodes) + 1 >= self._ceiling(leaving, nodes) else ""

    def _reads_slowly(self, kernel: Kernel, reads: Iterable[Node]) -> bool:
        """Whether a product that stores its results apart (`Op.scatters`) would read other arrays there: another kernel
        reads them row by row. So ResNet-18's training step takes 399 ms, else 425."""
        product = kernel.anchor
        assert product is not None
        apart = product.op.scatters(product)
        others = set(reads).difference(self.inputs[product])
        return apart and any(value.shape == product.shape for value in others)

    def _leaving(self, candidates: Iterable[Node], nodes: Iterable[Node]) -> set[Node]:
        """The candidates that are returned, or read by others than the nodes."""
        inside, found = set(nodes), set[Node]()
        for node in candidates:
            users = self.consumers[node]
            if node in self.roots or not users or not inside.issuperset(users):
                found.add(node)
        return found

    def _floor(self, reads: Iterable[Node], nodes: Container[Node]) -> float:
        """The greatest level of the kernels that compute what is read; infinite if that is a view of one of `nodes`."""
        found: float = 0
        stack = [*reads]
        while stack:
            value = stack.pop()
            if value in self.views:
                stack += self.inputs[value]
            elif value in nodes:
                return math.inf
            elif value in self.index:
                if value not in self.kernel_of:
                    self._place(value)
                found = max(found, self.kernel_of[value].level)
        return found

    def _ceiling(self, leaving: Iterable[Node], nodes: Container[Node]) -> float:
        """The least level of the kernels that read what leaves the nodes, or views of it."""
        found = math.inf
        stack = [*leaving]
        while stack:
            for user in self.consumers[stack.pop()]:
                if user in self.views:
                    stack.append(user)
                elif user not in nodes and user in self.kernel_of:
                    found = min(found, self.kernel_of[user].level)
        return found

    # The result

    def groups(self) -> list[Group]:
        """The kernels as groups, with the constants and cheap values among their nodes."""
        kernels = dict.fromkeys(self.kernel_of.values())
        return sorted(map(self._group, kernels), key=lambda group: self.index[group.nodes[-1]])

    def _group(self, kernel: Kernel) -> Group:
        members, inputs = tuple(kernel.nodes), tuple(kernel.reads)
        if kernel.kind == "loop":
            return Group(members, inputs, members, "loop")
        nodes = dict.fromkeys([one for node in members for one in self.computed[node]])
        outputs = tuple([node for node in members if node in kernel.leaving])
        return Group(tuple(nodes), inputs, outputs, kernel.kind)

    def reasons(self) -> list[Reason]:
        """Why nodes share a kernel, and why not."""
        found: list[Reason] = []
        for node, kernel in self.kernel_of.items():
            for value in self.computed[node][:-1]:
                if not value.op.constant:
                    found.append(("rematerialize", (node, value), HERE))
            for value in self.inputs[node]:
                other = self.kernel_of.get(value)
                if other is not None and other is not kernel:
                    why = self.why_not(other, kernel) or PATH
                    if why == OTHER_SHAPE and other.kind != "elementwise":
                        why = COMPLETE
                    elif why == OTHER_SHAPE and size_of(value) < max(size_of(node), math.prod(kernel.shape)):
                        why = OFTEN
                    found.append(("apart", (value, node), why))
        found += [(self.kernel_of[node].kind, (member, node), how) for node, (member, how) in self.joined.items()]
        return found
