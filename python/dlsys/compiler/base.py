"""A graph whose types are known, and how a pass rewrites it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..device import VECTOR
from ..graph import Node, Shape, below
from ..ops import full_op
from ..ops.state import State
from ..ops.types import infer
from ..scopes import precision, scopes
from ..system import lazy

BOUNDARY = {"cpu": 4, "numpy": 4, "cuda": VECTOR}
"""Bytes, by the kind of context: kernels take it that their arrays begin at a multiple."""

Change = tuple[Node, str]
"""What replaces a node, and why."""

Rule = Callable[[Node, "TypedGraph"], "Change | Node | None"]
"""What a node, whose inputs are rewritten already, is replaced by, with a reason of its own or that of all the rule's
changes; None leaves it."""

Reason = tuple[str, tuple[Node, ...], str]
"""A decision: the pass or the kind of kernel, the nodes, and why. Of a pass the nodes are the former one and what
replaces it, or one that is dropped; of a kernel one of its nodes and one that joins it, or does not."""

SHAPES = "types", "the shapes are known"
"""What type inference is called, and its reason to make operators plain that depend on another node's shape."""


@dataclass(frozen=True, eq=False)
class TypedGraph:
    """The graph that one run computes, with types. Passes take one and return another; nodes are never changed.

    Attributes:
        nodes: what is computed, inputs first. What is only read for its shape is not among them.
        outputs: the values to return, in order; None for what has no value (a group of updates).
        updates: pairs of a parameter and the value it has after the run.
        fed: what is given: feeds and parameters.
        shapes, dtypes: of every node whose shape is needed, also where its value is not.
        current: for a node of the user's that was replaced, what stands for it.
        reasons: every change that passes have made, in order.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Node | None, ...]
    updates: tuple[tuple[Node, Node], ...]
    fed: frozenset[Node]
    shapes: dict[Node, Shape]
    dtypes: dict[Node, str]
    current: dict[Node, Node]
    reasons: tuple[Reason, ...] = ()

    @property
    def roots(self) -> list[Node]:
        """The values that outlive the run, each once."""
        values = [node for node in self.outputs if node is not None]
        return list(dict.fromkeys([*values, *(value for _, value in self.updates)]))

    @lazy
    def uses(self) -> Counter[Node]:
        """How many computed nodes read each node's value; being a root is one use more."""
        found = Counter(value for node in self.nodes for value in value_inputs(node))
        found.update(self.roots)
        return found

    def consumers(self) -> dict[Node, list[Node]]:
        """The computed nodes that read each node's value."""
        found: dict[Node, list[Node]] = {node: [] for node in [*self.nodes, *self.fed]}
        for node in self.nodes:
            for value in value_inputs(node):
                found[value].append(node)
        return found

    def size(self, node: Node) -> int:
        """How many elements a node's value has."""
        count = 1
        for extent in self.shapes[node]:
            count *= extent
        return count


def value_inputs(node: Node) -> list[Node]:
    """The inputs that are read for their values, each once, in order."""
    shape_only = node.op.shape_only
    if not shape_only:
        return list(dict.fromkeys(node.inputs))
    return list(dict.fromkeys(value for i, value in enumerate(node.inputs) if i not in shape_only))


@precision(None)  # it sets that of each node's products
def rewrite(
    graph: TypedGraph,
    rule: Rule,
    origins: dict[Node, Node] | None = None,
    now: Mapping[Node, Node] | None = None,
    *,
    name: str = "",
    why: str = "",
) -> TypedGraph:
    """The graph with `rule` applied to every node, inputs first, until it no longer applies there.

    A node with a replaced input is made anew, with its name and source line, before the rule sees it. A rule returns
    None or the node itself to leave it, one of its inputs, or new nodes, built from its inputs by the public functions
    of `ops`; these get the node's source line and precision, are made `plain`, and the rule sees them too. Types are up
    to date when the rule asks for them; `nodes` and `uses` are those of the graph before. `origins`, if given, is
    filled with the former node of each that is made anew. `now`: what is given, and stands for other nodes. `name` is
    the pass's, `why` the reason of changes for which the rule gives none.
    """
    shapes, dtypes = dict(graph.shapes), dict(graph.dtypes)
    typed = replace(graph, shapes=shapes, dtypes=dtypes)
    now = dict(now or {})
    replaced = now.keys()
    nodes: dict[Node, None] = {}
    reasons: list[Reason] = []

    def settle(node: Node, origin: Node) -> Node:
        """The node that stands for one whose inputs are in place and whose type is known."""
        scopes.precision = node.attrs.get("precision")  # of products that are made now
        found, (by, reason) = plain(node, typed) if node is not origin else None, SHAPES
        if found is None:
            change, by = rule(node, typed), name
            found, reason = change if isinstance(change, tuple) else (change, why)
        if found is None or found is node:
            nodes[node] = None
            return node
        if node is not origin:
            del shapes[node], dtypes[node]
        reasons.append((by, (node, found), reason))
        settled: dict[Node, Node] = {}
        made = below([found], shapes.__contains__)
        computed = needed(made, [found]) if any(new.op.shape_only for new in made) else set(made)
        for new in made:
            new.inputs = [settled.get(value, value) for value in new.inputs]
            new.placed_as(origin)
            infer(new, shapes, dtypes)
            if new in computed or new.op.constant:
                settled[new] = settle(new, origin)
        for new in made:
            if new not in computed and not new.op.constant:  # read for its shape, by what is plain now
                del shapes[new], dtypes[new]
        return settled.get(found, found)

    for old in graph.nodes:
        node = old
        if not replaced.isdisjoint(old.inputs):
            node = Node(old.op, [now.get(value, value) for value in old.inputs], old.attrs, old.name)
            node.placed_as(old)
            shapes[node], dtypes[node] = shapes[old], dtypes[old]
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
        outputs=tuple(now.get(node, node) if node is not None else None for node in graph.outputs),
        updates=tuple((parameter, now.get(value, value)) for parameter, value in graph.updates),
        current=_follow(graph, now),
        reasons=(*graph.reasons, *reasons),
    )


def plain(node: Node, graph: TypedGraph) -> Node | None:
    """The plain node of an operator that reads inputs for their shapes, now that these are known, see `Op.known`; one
    that stays reads constants there, so that nothing is computed for its shape."""
    shape_only = node.op.shape_only
    if not shape_only or isinstance(node.op, State):
        return None
    shapes, dtypes = graph.shapes, graph.dtypes
    types = [shapes[value] for value in node.inputs], [dtypes[value] for value in node.inputs]
    found = node.op.known(node, *types)
    if found is not None or all(node.inputs[i].op.constant for i in shape_only):
        return found
    inputs = list(node.inputs)
    for i in shape_only:
        inputs[i] = full_op(types[0][i], 0.0, types[1][i])
    return Node(node.op, inputs, node.attrs)


def _follow(graph: TypedGraph, now: dict[Node, Node]) -> dict[Node, Node]:
    """`graph.current` after the replacements `now`."""
    current = {old: now.get(node, node) for old, node in graph.current.items()}
    return {**now, **current}


def needed(
    order: Sequence[Node],
    roots: Iterable[Node],
    fed: Container[Node] = (),
    inputs: Callable[[Node], Iterable[Node]] = value_inputs,
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
    return tuple(node for node in graph.nodes if node in found)
