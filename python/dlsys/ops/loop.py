"""What a loop does in a step, and what is known of it: shapes, dtypes, results. The operator is in `scan`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..graph import OPS, Node, Shape, below, error_at, find_topo_sort, shape_error
from .inputs import Variable
from .slicing import slice_op
from .types import DTYPE, SHAPE, Inference, known_dtype, known_shape


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
        self.nodes = (*first, *(node for node in below if node not in known))
        self.number = number = {node: i for i, node in enumerate(self.nodes)}
        self.out = tuple([number[node] for node in out])
        self.reverse, self.length = reverse, None if self.sliced else length
        told = [
            (node.op.name, node.op.edition, sorted(node.attrs.items()), [number[v] for v in node.inputs], node.no_grad)
            for node in self.nodes
        ]
        text = repr((self.carried, self.sliced, self.out, reverse, self.length, told))
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<{len(self.nodes)} nodes, {self.digest}>"

    @property
    def variables(self) -> tuple[Node, ...]:
        """All variables, in the order of a loop's inputs."""
        return self.nodes[: self.carried + self.sliced + self.constant]

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

    def slice_of(self, kind: str) -> tuple[slice, ...]:
        """The key that takes from a track the values "before" or "after" each step."""
        return (slice(1, None) if (kind == "after") != self.reverse else slice(None, -1),)


@lru_cache(maxsize=1024)
def _of_body(kind: Inference, body: Body, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape or dtype of each node of a body, from the variables'."""
    found = dict(zip(body.variables, given, strict=True))
    kind.along(body.nodes[len(given) :], found)
    return tuple([found[node] for node in body.nodes])


def loop_length(node: Node, input_shapes: Sequence[Shape]) -> int:
    """How many steps a loop has. Raises ShapeError where slices disagree, and where there is none."""
    body = node.attrs["body"]
    xs = input_shapes[body.carried : body.carried + body.sliced]
    if any(not shape for shape in xs):
        raise shape_error(node, "what is sliced has a first axis, and one of xs has none")
    lengths = {shape[0] for shape in xs} if xs else {body.length}
    if len(lengths) != 1 or min(lengths) < 1:
        raise shape_error(node, f"xs must have one length, of one step or more, not {sorted(lengths)}")
    return int(lengths.pop())


def step_shapes(node: Node, input_shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shape of each node of a loop's body. Raises ShapeError where a carried value would change its own."""
    body: Body = node.attrs["body"]
    end = body.carried + body.sliced
    slices = [shape[1:] for shape in input_shapes[body.carried : end]]
    return _of_step(SHAPE, node, (*input_shapes[: body.carried], *slices, *input_shapes[end:]))


def step_dtypes(node: Node, input_dtypes: Sequence[str]) -> tuple[str, ...]:
    """The dtype of each node of a loop's body. Raises DTypeError where a carried value would change its own."""
    return _of_step(DTYPE, node, tuple(input_dtypes))


def _of_step(kind: Inference, node: Node, given: tuple[Any, ...]) -> tuple[Any, ...]:
    body: Body = node.attrs["body"]
    found = _of_body(kind, body, given)
    for k, last in enumerate(body.out):
        if found[last] != found[k]:
            other = f"shape {found[last]}" if kind is SHAPE else found[last]
            raise error_at(node, kind.error, f"the body makes of carried value {k}, {found[k]}, one of {other}")
    return found


def joint_key(node: Node) -> tuple[Any, ...]:
    """Equal for the results of one loop: its body and its inputs."""
    return (node.attrs["body"], *node.inputs)


def result(loop: Node, what: str, of: int) -> Node:
    """Another result of a node's loop."""
    return OPS["scan"].make(loop.inputs, {**loop.attrs, "what": what, "of": of})


def value_in_steps(loop: Node, of: int) -> Node:
    """The value that is number `of` in the body, in all steps: (length, ...)."""
    body: Body = loop.attrs["body"]
    if of < body.carried:
        return slice_op(result(loop, "track", of), body.slice_of("before"))
    if of < body.carried + body.sliced:
        return loop.inputs[of]
    if of in body.out:
        return slice_op(result(loop, "track", body.out.index(of)), body.slice_of("after"))
    return result(loop, "stack", of)


def variable_like(node: Node, name: str) -> Node:
    """A variable of a node's shape and dtype, as far as they are known."""
    return Variable(name, known_shape(node), known_dtype(node))


def by_numpy(node: Node, inputs: list[np.ndarray]) -> np.ndarray:
    """The node's value by the operators' NumPy rules, also of one that has none as its shape is another node's."""
    plain = None
    if node.op.shape_only:
        plain = node.op.known(node, [x.shape for x in inputs], [str(x.dtype) for x in inputs])
    if plain is None:
        return node.op.numpy(node, inputs)
    values = dict(zip(node.inputs, inputs, strict=True))
    for one in below([plain], values.__contains__):
        values[one] = by_numpy(one, [values[value] for value in one.inputs])
    return values[plain]
