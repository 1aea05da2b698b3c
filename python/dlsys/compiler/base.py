"""A graph whose types are known, and how a pass rewrites it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from ..devices import VECTOR
from ..graph import Node, Type, below
from ..scopes import scopes
from .listing import extents, labels, term

BOUNDARY = {"cpu": 4, "numpy": 4, "cuda": VECTOR}
"""Bytes, by the kind of context: kernels take it that their arrays begin at a multiple."""

Change = tuple[Node, str] | tuple[Node, str, str]
"""What replaces a node, why, and by which pass, where the sweep has the rules of several."""

Rule = Callable[[Node, "TypedGraph"], "Change | Node | None"]
"""What a node, whose inputs are rewritten already, is replaced by, with a reason of its own or that of all the rule's
changes; None leaves it."""

Reason = tuple[str, tuple[Node, ...], str]
"""A decision: the pass or the kind of kernel, the nodes, and why. Of a pass the nodes are the former one and what
replaces it, or one that is dropped; of a kernel one of its nodes and one that joins it, or does not."""


@dataclass(frozen=True, eq=False)
class TypedGraph:
    """The graph that one run computes, with types. Passes take one and return another; nodes are never changed.

    Attributes:
        nodes: what is computed, inputs first. What is only read for its shape is not among them.
        outputs: the values to return, in order; None for what has no value (a group of updates).
        updates: pairs of a parameter and the value it has after the run.
        fed: what is given: feeds and parameters.
        current: for a node of the user's that was replaced, what stands for it.
        reasons: every change that passes have made, in order.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Node | None, ...]
    updates: tuple[tuple[Node, Node], ...]
    fed: frozenset[Node]
    current: dict[Node, Node]
    reasons: tuple[Reason, ...] = ()

    @property
    def roots(self) -> list[Node]:
        """The values that outlive the run, each once."""
        values = [node for node in self.outputs if node is not None]
        return list(dict.fromkeys([*values, *(value for _, value in self.updates)]))

    def consumers(self) -> dict[Node, list[Node]]:
        """The computed nodes that read each node's value."""
        found: dict[Node, list[Node]] = {node: [] for node in [*self.nodes, *self.fed]}
        for node in self.nodes:
            for value in value_inputs(node):
                found[value].append(node)
        return found

    def leaf_of(self, node: Node) -> Node:
        """The node of `fed` that stands for one that the user feeds: of a computed one a variable."""
        return self.current.get(node, node)

    def types(self, nodes: Iterable[Node]) -> dict[Node, Type]:
        """The types of a user's nodes, but for those that depend on what was not fed."""
        found = {node: node.value_type or self.current.get(node, node).value_type for node in nodes}
        return {node: of for node, of in found.items() if of is not None}

    def listing(self, reasons: bool = False) -> str:
        """The graph as text, one line per node: `add_6: float32[1000, 256] = add(matmul_5, b1)   # train.py:31`. Feeds
        and parameters come first, updates and results last; then, with `reasons`, each change of a pass."""
        name, fed, lines = labels(sorted([*self.fed, *self.nodes], key=attrgetter("id"))), self.fed, []
        read = {value for node in self.nodes for value in node.inputs} | set(self.roots)
        for node in [*(node for node in name if node in fed and node in read), *self.nodes]:
            typed = f"{name[node]}: {node.dtype}{extents(node)}"
            lines.append(f"{typed} = {term(node, name, fed)}   # {node.location}")
        lines += [f"{name.get(parameter, parameter.name)} <- {name[value]}" for parameter, value in self.updates]
        if results := [name[node] for node in self.outputs if node is not None]:
            lines.append(f"return {', '.join(results)}")
        for rule, nodes, why in self.reasons if reasons else ():
            terms = (name[node] if node in fed else f"{node.name} = {term(node, name)}" for node in nodes)
            lines.append(f"{rule}: {' -> '.join(terms)}   # {why}")
        return "\n".join(lines)

    __str__ = listing


def size_of(node: Node) -> int:
    """How many elements a node's value has."""
    assert node.value_type is not None
    return node.value_type.size


def nbytes_of(node: Node) -> int:
    """The bytes of a node's value; 0 of a loop's, whose results have them."""
    assert node.value_type is not None
    return node.value_type.nbytes


def value_inputs(node: Node) -> list[Node]:
    """The inputs that are read for their values from memory, each once, in order."""
    if node.reads is None:
        reads = dict.fromkeys(node.inputs)
        for value in node.inputs:
            if value.op.immediate:
                reads.pop(value, None)
        node.reads = list(reads)
    return node.reads


@scopes.inside(origin=None, precision=None)  # those of each node in turn
def rewrite(
    graph: TypedGraph,
    rule: Rule,
    origins: dict[Node, Node] | None = None,
    now: Mapping[Node, Node] | None = None,
    *,
    name: str = "",
    why: str = "",
    merge: bool = False,
) -> TypedGraph:
    """The graph with `rule` applied to every node, inputs first, until it no longer applies there.

    A node with a replaced input is made anew, with its name and source line, before the rule sees it. A rule returns
    None or the node itself to leave it, one of its inputs, or new nodes, built from its inputs, which get the node's
    source line and precision, and which the rule sees too. So every node of the result is in normal form: rules that
    look at a node and what is below it need one sweep. `current` is up to date when the rule asks for it; `nodes` are
    those of the graph before.

    `origins`, if given, is filled with the former node of each that is made anew. `now`: what is given, and stands for
    other nodes. `name` is the pass's, `why` the reason of changes for which the rule gives none. `merge`: of the nodes
    with one operator, the same inputs (of sums and products in either order) and the same attributes, the first stands
    for all.
    """
    now = dict(now or {})
    typed = replace(graph, current=now)
    known = {*graph.fed, *now.values()}  # what is given, and nodes in normal form
    nodes: dict[Node, None] = {}
    reasons: list[Reason] = []
    normal: dict[object, Node] = {}  # by the node, or where equal ones are merged by what it computes

    def settle(node: Node, origin: Node) -> Node:
        """The normal form of a node whose inputs are in normal form."""
        key = _computed(node) if merge else node
        if (first := normal.get(key)) is not None:
            if node.name == origin.name:
                reasons.append(("cse", (node, first), "the same operator of the same inputs"))
            return first
        change = rule(node, typed)
        found, reason, by = (*change, name)[:3] if isinstance(change, tuple) else (change, why, name)
        result = node
        if found is None or found is node:
            nodes[node] = None
        else:
            reasons.append((by, (node, found), reason))
            result = made(found, origin)
        normal[key] = result
        known.add(result)
        return result

    def made(found: Node, origin: Node) -> Node:
        """The normal form of nodes that a rule has made."""
        settled: dict[Node, Node] = {}
        for node in below([found], known.__contains__):
            own = node if settled.keys().isdisjoint(node.inputs) else _reading(node, settled)
            result = own if own.op.immediate else settle(own, origin)
            if result is not node:
                settled[node] = result
        return settled.get(found, found)

    for old in graph.nodes:
        scopes.origin, scopes.precision = old, old.attrs.get("precision")
        node = old
        if not now.keys().isdisjoint(old.inputs):
            node = _reading(old, now)
            if origins is not None:
                origins[node] = old
        node = settle(node, old)
        if node is not old:
            now[old] = node
            if origins is not None:
                origins.setdefault(node, old)
    if not now:
        return graph
    return replace(
        typed,
        nodes=tuple(nodes),
        outputs=tuple([now.get(node, node) if node is not None else None for node in graph.outputs]),
        updates=tuple([(parameter, now.get(value, value)) for parameter, value in graph.updates]),
        current={**now, **{old: now.get(node, node) for old, node in graph.current.items()}},
        reasons=(*graph.reasons, *reasons),
    )


def _reading(node: Node, now: Mapping[Node, Node]) -> Node:
    """The node, made anew of what stands for its inputs."""
    return Node(node.op, [now.get(value, value) for value in node.inputs], node.attrs, node.name)


def _computed(node: Node) -> object:
    """The operator, inputs and attributes of a node: equal where two nodes compute the same."""
    inputs = tuple([repr(x.attrs["value"]) if x.op.immediate else x for x in node.inputs])
    if node.op.commutative and not node.inputs[1].op.immediate and node.inputs[1].id < node.inputs[0].id:
        inputs = inputs[::-1]
    attributes = repr(node.attrs) if node.attrs else ""  # 0.0 == -0.0, and NaN is not equal to itself
    return node.op, inputs, attributes


def needed(
    order: Sequence[Node],
    roots: Iterable[Node],
    fed: Container[Node] = (),
    inputs: Callable[[Node], Iterable[Node]] = attrgetter("inputs"),
) -> set[Node]:
    """The nodes that `roots` depend on by these inputs, and the roots; behind fed nodes none. `order`: topological."""
    found = set(roots)
    for node in reversed(order):
        if node in found and node not in fed:
            found.update(inputs(node))
    return found


def sorted_nodes(graph: TypedGraph) -> tuple[Node, ...]:
    """Of the graph's nodes those that its roots depend on."""
    found = needed(graph.nodes, graph.roots)
    return tuple([node for node in graph.nodes if node in found])


def drop_dead(graph: TypedGraph) -> TypedGraph:
    """Only what the roots depend on is computed, and `current` names what still stands."""
    nodes = sorted_nodes(graph)
    if len(nodes) == len(graph.nodes):
        return graph
    standing = {*nodes, *graph.fed}
    dropped = [("dead", (node,), "nothing returned depends on it") for node in graph.nodes if node not in standing]
    return replace(
        graph,
        nodes=nodes,
        current={old: node for old, node in graph.current.items() if node in standing},
        reasons=(*graph.reasons, *dropped),
    )
