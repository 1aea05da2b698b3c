"""What has to be computed for a tensor: the graph down to nodes that hold arrays, and its structure, a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from ..devices import Context, cpu
from ..errors import GraphError
from ..graph import OPS, Node, Op, Type, error_at
from ..ops.replay import Call
from ..ops.state import Assign
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


class Update(Op):
    """(parameters, state, others...) -> their new values: what an optimizer's step changes, and what it reads.

    `formula` makes the new values, in the order of the first `attrs["new"] + attrs["state"]` inputs, of copies of all
    inputs, where the graph is compiled. Updates with one `key` have one formula.
    """

    name = "update"
    never = "an update is expanded as a graph is compiled"

    def __init__(self, key: Hashable, formula: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self.key: Hashable = key
        self.formula: Callable[[Sequence[Any]], Sequence[Any]] | None = formula

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Update) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def type_of(self, node: Node) -> None:
        return None

    def expanded(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The new values, of copies of the inputs. Afterwards the formula is forgotten: the key of an executor keeps
        the operator, and shall not keep a network."""
        assert self.formula is not None, "each graph has its own update"
        found, self.formula = self.formula(inputs), None
        return found


SETTLED, GRADIENTS, GRADIENT_OF = Settled(), Gradients(), GradientOf()
WITH_UPDATES = OPS["with_updates"]
_id_of = attrgetter("id")


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
        roots: the nodes for which.
        nodes: inputs first; those that are given hold arrays.
        place: of each node its place there.
        given: the nodes that hold arrays, in order.
        numbers: (node, which of its numbers, number) of those that may become inputs.
        assigns: assignments among the nodes, which are made after the run.
        structure: what graphs have in common that one executor computes.
    """

    def __init__(self, roots: Sequence[Node]) -> None:
        """Raises GraphError for a variable, and for an array that was overwritten since a node read it."""
        self.roots: Sequence[Node] = roots
        self.given: list[Node] = []
        self.assigns: list[Node] = []
        self.numbers: list[tuple[Node, int, Any]] = []
        self._computed: list[Node] = []
        self.has_gradients: bool = False
        constants: list[Node] = []
        for node, goes in _needed(roots).items():
            if node.op.immediate:
                constants.append(node)
            elif node.held is not None and (node.op.leaf or not (goes and node.tracks)):
                self.given.append(node)
            else:
                self._computed.append(node)
        self._computed.sort(key=_id_of)  # an input's id is smaller; leaves come as they are met, however new they are
        self.nodes: list[Node] = [*constants, *self.given, *self._computed]
        self.place: dict[Node, int] = {node: at for at, node in enumerate(self.nodes)}
        self.numbers += [(node, 0, node.attrs["value"]) for node in constants]
        entries: list[Any] = [node.attrs["dtype"] for node in constants]
        entries += [(node.value_type, node.tracks) for node in self.given]
        place = self.place
        for node in self._computed:
            op, attrs = node.op, node.attrs
            inputs = tuple([place[x] for x in node.inputs if x in place])  # not the assignments of an Executor
            if not attrs:
                entries.append((op, "", inputs, node.no_grad))
                if isinstance(op, Assign):
                    self.assigns.append(node)
                continue
            if type(attrs) is Call:
                entries.append((op, attrs, inputs, node.no_grad))
                continue
            if (lifted := numbers_of(node)) is not None:
                rest, numbers = lifted
                self.numbers += [(node, which, number) for which, number in enumerate(numbers)]
            else:
                rest = repr(attrs)  # 0.0 == -0.0, and NaN is not equal to itself
                self.has_gradients = self.has_gradients or op is GRADIENTS
            entries.append((op, rest, inputs, node.no_grad))
        self.structure: tuple[Any, ...] = tuple(entries)

    def to_keep(self) -> list[Node]:
        """The nodes whose values are kept besides the roots: outputs of modules, and what an earlier evaluation has
        computed on its way to another value, so that a loop that asks for values does not start from the leaves each
        time."""
        if not self.has_gradients:
            for node in self._computed:
                if not node.met:
                    for x in read_by(node):
                        x.keeps = x.keeps or x.met
            for node in self._computed:
                node.met = True
        return [node for node in self._computed if node.keeps and node.held is None and node.op.kind != "scan"]

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


def _needed(roots: Sequence[Node]) -> dict[Node, bool]:
    """The nodes that these need, down to those that hold arrays, and whether gradients go through each to leaves: then
    the array that a computed node holds is not taken."""
    through: dict[Node, bool] = {}
    stack = [(root, False) for root in roots]
    while stack:
        node, differentiated = stack.pop()
        if through.get(node, -1) >= differentiated:
            continue
        through[node] = differentiated
        op = node.op
        if op.immediate or (node.held is not None and (op.leaf or not (differentiated and node.tracks))):
            continue
        if op.variable:
            told = "has a value in a compiled function only: return what is read outside, or write it into a tensor"
            told = told if "recorded" in node.attrs else "is a variable without a value: feed it to an Executor"
            raise error_at(node, GraphError, f"{node.name} {told}")
        onward = (differentiated and not op.leaf) or op is GRADIENTS
        for x in node.inputs if op is not WITH_UPDATES else read_by(node):
            goes = onward and x.tracks
            if x.held is not None and x.held.written > node.id and (x.op.leaf or not goes):
                raise overwritten(node, x)
            if through.get(x, -1) < goes:
                stack.append((x, goes))
    return through


def read_by(node: Node) -> Sequence[Node]:
    """What a node reads: not the assignments of runs of an Executor."""
    return node.inputs[:1] if node.op is WITH_UPDATES else node.inputs


def overwritten(reader: Node, node: Node) -> GraphError:
    """The error for an array that a compiled step has overwritten since the reader was made."""
    gone = f"the value that {node.name} had then was overwritten since: compute this before, or anew"
    return error_at(reader, GraphError, gone)
