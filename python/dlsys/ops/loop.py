"""The body of a loop, the types of its values, and their values in all steps. The operators are in `scan`."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..errors import DTypeError
from ..graph import OPS, Made, Node, Shape, Type, below, error_at, find_topo_sort, shape_error
from ..scopes import precision
from .replay import replay
from .state import variable_of


class Body:
    """The graph of a loop's step, from variables to values. Two are equal if they compute the same.

    Attributes:
        nodes: inputs first; at first the variables: of the values carried, of the slices, of what all steps read.
        number: of each node its place there.
        carried, sliced, constant: how many of each there are.
        out: for each value carried the number in `nodes` of its next value.
        reverse: whether the last slice comes first.
        length: the number of steps, where nothing is sliced.
    """

    carried: int
    sliced: int
    constant: int
    number: dict[Node, int]
    reverse: bool
    __slots__ = ("carried", "constant", "digest", "length", "nodes", "number", "out", "reverse", "sliced")

    def __init__(
        self,
        variables: Sequence[Sequence[Node]],
        out: Sequence[Node],
        others: Iterable[Node],
        reverse: bool,
        length: int | None,
    ) -> None:
        """`variables`: those carried, sliced, and constant; `others`: more nodes that are wanted of each step."""
        self.carried, self.sliced, self.constant = map(len, variables)
        first = [variable for kind in variables for variable in kind]
        below = find_topo_sort([*out, *others])
        known = set(first)
        self.nodes: tuple[Node, ...] = (*first, *(node for node in below if node not in known))
        self.number = number = {node: i for i, node in enumerate(self.nodes)}
        self.out: tuple[int, ...] = tuple([number[node] for node in out])
        self.reverse = reverse
        self.length: int | None = None if self.sliced else length
        told = [
            (
                *(node.op.name, node.op.edition, node.value_type, sorted(node.attrs.items())),
                *([number[value] for value in node.inputs], node.no_grad),
            )
            for node in self.nodes
        ]
        text = repr((self.carried, self.sliced, self.out, reverse, self.length, told))
        self.digest: str = hashlib.sha256(text.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<{len(self.nodes)} nodes, {self.digest}>"

    @property
    def variables(self) -> tuple[Node, ...]:
        """All variables, in the order of a loop's inputs."""
        return self.nodes[: self.moving + self.constant]

    @property
    def moving(self) -> int:
        """How many of the variables differ from step to step: the first ones."""
        return self.carried + self.sliced

    def is_slice(self, of: int) -> bool:
        """Whether variable number `of` is a slice of the loop's input."""
        return self.carried <= of < self.moving

    def typed(self, types: Sequence[Type | None]) -> tuple[Body, list[int]]:
        """The same with variables of these types, and for each of the nodes the number of what stands for it there."""
        now, _ = replay(self.nodes, dict(zip(self.variables, types, strict=True)))  # type: ignore[arg-type]
        nodes = [now.get(node, node) for node in self.nodes]
        limits = 0, self.carried, self.moving, self.moving + self.constant
        variables = [nodes[start:end] for start, end in itertools.pairwise(limits)]
        others = [node for node in nodes if isinstance(node, Node)]  # a call of several results is a tuple
        body = Body(variables, [nodes[of] for of in self.out], others, self.reverse, self.length)
        return body, [body.number[node] if isinstance(node, Node) else -1 for node in nodes]

    def differing(self) -> set[Node]:
        """The nodes whose values differ from step to step."""
        found = set(self.nodes[: self.moving])
        for node in self.nodes:
            if not found.isdisjoint(node.inputs):
                found.add(node)
        return found

    def needed(self, numbers: Iterable[int]) -> list[int]:
        """The numbers of the nodes on whose values these depend in some step, in order."""
        found: set[int] = set()
        stack = list(numbers)
        while stack:
            i = stack.pop()
            if i not in found:
                found.add(i)
                stack += [self.number[value] for value in self.nodes[i].inputs]
                stack += [self.out[i]] if i < self.carried else []
        return sorted(found)


def require_types(loop: Node, body: Body) -> None:
    """Raises ShapeError or DTypeError where a step would change the type of a carried value."""
    for k, last in enumerate(body.out):
        before, after = body.nodes[k], body.nodes[last]
        if after.shape != before.shape:
            wrong = f"{before.shape}, one of shape {after.shape}"
            raise shape_error(loop, f"the body makes of carried value {k}, {wrong}")
        if after.dtype != before.dtype:
            wrong = f"{before.dtype}, one of {after.dtype}"
            raise error_at(loop, DTypeError, f"the body makes of carried value {k}, {wrong}")


def loop_length(node: Node, input_shapes: Sequence[Shape]) -> int:
    """How many steps a loop has. Raises ShapeError where slices disagree, and where there is none."""
    body = node.attrs["body"]
    xs = input_shapes[body.carried : body.moving]
    if any(not shape for shape in xs):
        raise shape_error(node, "what is sliced has a first axis, and one of xs has none")
    lengths = {shape[0] for shape in xs} if xs else {body.length}
    if len(lengths) != 1 or min(lengths) < 1:
        raise shape_error(node, f"xs must have one length, of one step or more, not {sorted(lengths)}")
    return int(lengths.pop())


def last_value(loop: Node, of: int) -> Made:
    """The value that is number `of` in the body, of the last step."""
    return OPS["scan_result"](loop, of=of, last=True)


def value_in_steps(loop: Node, of: int) -> Node:
    """The value that is number `of` in the body, in all steps: (length, ...)."""
    body: Body = loop.attrs["body"]
    if body.is_slice(of):
        return loop.inputs[of]
    return OPS["scan_result"](loop, of=of, last=False)


Carried = tuple[Node, Node, Node]
"""A variable, its value in the first step, and the node of its next value."""


def loop_of(
    carried: Sequence[Carried],
    sliced: Mapping[Node, Node],
    others: Sequence[Node],
    is_outside: Callable[[Node], bool],
    outer: Callable[[Node], tuple[Node, bool]],
    reverse: bool,
    length: int | None,
) -> tuple[Made, list[int]]:
    """A loop, and the numbers in its body of the next values and of `others`, which are wanted of all steps.

    The body has copies of the nodes below these. What it reads of the graph outside becomes variables.

    Args:
        sliced: variables, and the arrays that are sliced for them.
        is_outside: of which nodes the value is read, and not computed in the step.
        outer: the node of such a value that the loop is given, and whether it is sliced, or the same in all steps.
    """
    now = {variable: variable for variable in (*(own for own, _, _ in carried), *sliced)}
    slices, constants = dict(sliced), dict[Node, Node]()

    def read(value: Node) -> Node:
        if value not in now:
            now[value] = variable = variable_of(value.value_type, value.name)
            given, is_sliced = outer(value)
            (slices if is_sliced else constants)[variable] = given
        return now[value]

    ends = [*(new for _, _, new in carried), *others]
    for node in below(ends, lambda node: node in now or (is_outside(node) and not node.op.constant)):
        now[node] = node
        if not node.op.constant:
            with precision(None):  # each product says its own
                now[node] = made = node.op(*[read(value) for value in node.inputs], **node.attrs)
            made.placed_as(node)
    ends = [read(value) for value in ends]
    variables = [own for own, _, _ in carried], list(slices), list(constants)
    body = Body(variables, ends[: len(carried)], ends[len(carried) :], reverse, length)
    inputs = [*(first for _, first, _ in carried), *slices.values(), *constants.values()]
    return OPS["scan"](*inputs, body=body), [body.number[value] for value in ends]
