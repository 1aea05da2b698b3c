"""What has to be computed for a tensor: the graph down to nodes that hold arrays, and its structure, a key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..devices import Context, cpu
from ..errors import GraphError
from ..graph import Node, Op, Type, error_at
from ..ops.state import Assign, WithUpdates
from .lifting import numbers_of


class Settled(Op):
    """(value) -> value, as a leaf: what an assignment makes of a tensor's new value, and `detach` of a tensor.
    Gradients end there, as at every leaf. Once the value is computed the node needs its input no more."""

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


def settled_of(value: Node, name: str | None = None, **attrs: Any) -> Node:
    """A leaf that has a value, without its history, once that is computed."""
    node = Node(SETTLED, [value], attrs, name)
    node.no_grad = node.keeps = True
    node.tracks = False
    return node


def hold(node: Node, value: Any) -> None:
    """Let a node hold its value."""
    node.held = value
    if node.op is SETTLED:
        node.inputs = []  # which may have a long history


def ends_gradients(node: Node) -> bool:
    """Whether the node is a leaf for gradients: it holds data, or was assigned."""
    return node.op.leaf


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
            op, attrs, inputs = node.op, node.attrs, read_by(node)
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
                    for x in read_by(node):
                        x.keeps = x.keeps or x.met
            for node in computed:
                node.met = True
        return [node for node in computed if node.keeps and node.held is None and node.op.kind != "scan"]

    @property
    def context(self) -> Context:
        """Where it is computed."""
        return device_of(self.given)


def device_of(nodes: Iterable[Node]) -> Context:
    """Where a graph is computed: on the GPU where one of the arrays of its nodes lies, else on the CPU. Others are
    copied there."""
    for node in nodes:
        context = node.attrs.get("recorded") if node.held is None else node.held.context
        if context is not None and context.kind == "cuda" and not node.attrs.get("roams"):
            return context
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
            told = "has a value in a compiled function only: return what is read outside, or write it into a tensor"
            told = told if "recorded" in node.attrs else "is a variable without a value: feed it to an Executor"
            raise error_at(node, GraphError, f"{node.name} {told}")
        onward = (differentiated and not ends_gradients(node)) or node.op is GRADIENTS
        for x in read_by(node):
            if x.held is not None and x.held.written > node.id and _is_given(x, onward and x.tracks):
                raise overwritten(node, x)
            stack.append((x, onward and x.tracks))
    return through


def read_by(node: Node) -> Sequence[Node]:
    """What a node reads: not the assignments of runs of an Executor."""
    return node.inputs[:1] if isinstance(node.op, WithUpdates) else node.inputs


def overwritten(reader: Node, node: Node) -> GraphError:
    """The error for an array that a compiled step has overwritten since the reader was made."""
    gone = f"the value that {node.name} had then was overwritten since: compute this before, or anew"
    return error_at(reader, GraphError, gone)
