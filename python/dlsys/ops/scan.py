"""Loops over the first axis of arrays, as JAX's `lax.scan` has them: a graph for one step, applied once for each slice.

A loop has several results, and each is a node of its own, a `scan` with the loop's inputs and its body: the last
carried value ("last"), a carried value before the first step and after each ("track"), or any value of the body in
every step ("stack"). The executor runs those of one loop as one; `gradients` asks for their gradients at once, and the
answer is a loop over the slices backwards, whose gradient is found by the same rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import DTypeError, GraphError, ShapeError
from ..graph import DTYPES, FLOATS, Node, Op, Shape, error_at, find_topo_sort, register, shape_error, stamp
from .arithmetic import add_op
from .inputs import Variable, full_op, zeroslike_op
from .linalg import matmul_gradient_op
from .slicing import slice_op
from .types import known_dtype, known_shape

STATE = ("assign", "group", "latest", "with_updates")
Adjoints = Callable[[Sequence[tuple[Node, Node]], Sequence[Node]], "list[Node | None]"]
"""From pairs of a node and the gradient that it gets to the gradient of each node of a list; None where it is zero."""


class Body:
    """What a loop does in a step: a graph from variables to values. Two are equal if they compute the same.

    Attributes:
        nodes: inputs first; at first the variables: of the values carried, of the slices, of what all steps read.
        number: of each node its place there.
        carried, sliced, constant: how many of each there are.
        out: for each value carried the number in `nodes` of its next value.
        reverse: whether the last slice comes first.
    """

    __slots__ = ("carried", "constant", "digest", "nodes", "number", "out", "reverse", "sliced")

    def __init__(
        self, variables: Sequence[Sequence[Node]], out: Sequence[Node], others: Iterable[Node], reverse: bool
    ) -> None:
        """`variables`: those carried, sliced, and constant; `others`: more nodes that are wanted of each step."""
        self.carried, self.sliced, self.constant = map(len, variables)
        first = [variable for kind in variables for variable in kind]
        below = find_topo_sort([*out, *others])
        self.nodes = tuple([*first, *(node for node in below if node not in set(first))])
        self.number = number = {node: i for i, node in enumerate(self.nodes)}
        self.out = tuple([number[node] for node in out])
        self.reverse = reverse
        told = [(node.op.name, sorted(node.attrs.items()), [number[v] for v in node.inputs]) for node in self.nodes]
        text = repr((self.carried, self.sliced, self.out, reverse, told))
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


@lru_cache(maxsize=512)
def _shapes(body: Body, given: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shape of each node of a body, from the variables'."""
    found: dict[Node, Shape] = dict(zip(body.variables, given, strict=True))
    for node in body.nodes[len(given) :]:
        found[node] = node.op.infer_shape(node, [found[value] for value in node.inputs])
    return tuple([found[node] for node in body.nodes])


@lru_cache(maxsize=512)
def _dtypes(body: Body, given: tuple[str, ...]) -> tuple[str, ...]:
    """The dtype of each node of a body, from the variables'."""
    found: dict[Node, str] = dict(zip(body.variables, given, strict=True))
    for node in body.nodes[len(given) :]:
        found[node] = node.op.infer_dtype(node, [found[value] for value in node.inputs])
    return tuple([found[node] for node in body.nodes])


def loop_length(node: Node, input_shapes: Sequence[Shape]) -> int:
    """How many steps a loop has. Raises ShapeError where slices disagree, and where there is none."""
    body = node.attrs["body"]
    xs = input_shapes[body.carried : body.carried + body.sliced]
    if any(not shape for shape in xs):
        raise shape_error(node, "what is sliced has a first axis, and one of xs has none")
    lengths = {shape[0] for shape in xs} | ({node.attrs["length"]} if node.attrs["length"] is not None else set())
    if len(lengths) != 1 or min(lengths) < 1:
        raise shape_error(node, f"xs must have one length, of one step or more, not {sorted(lengths)}")
    return int(lengths.pop())


def step_shapes(node: Node, input_shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shape of each node of a loop's body. Raises ShapeError where a carried value would change its own."""
    body: Body = node.attrs["body"]
    end = body.carried + body.sliced
    slices = [shape[1:] for shape in input_shapes[body.carried : end]]
    found = _shapes(body, (*input_shapes[: body.carried], *slices, *input_shapes[end:]))
    for k, last in enumerate(body.out):
        if found[last] != found[k]:
            raise shape_error(node, f"the body makes of carried value {k}, {found[k]}, one of shape {found[last]}")
    return found


def step_dtypes(node: Node, input_dtypes: Sequence[str]) -> tuple[str, ...]:
    """The dtype of each node of a loop's body. Raises DTypeError where a carried value would change its own."""
    body: Body = node.attrs["body"]
    found = _dtypes(body, tuple(input_dtypes))
    for k, last in enumerate(body.out):
        if found[last] != found[k]:
            changed = f"the body makes of carried value {k}, {found[k]}, one of {found[last]}"
            raise error_at(node, DTypeError, changed)
    return found


@register
class Scan(Op):
    """A result of a loop: `attrs["what"]`, see the module, of the value that is number `attrs["of"]` in the body.

    The inputs are the first carried values, what is sliced along its first axis, and what all steps read.
    `attrs["length"]`: the number of steps, where nothing is sliced.
    """

    name = "scan"
    dtypes = DTYPES
    joint = True
    never = "a loop has no formula: see `dlsys.compiler.loops`, and `unrolled`"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        length, shapes = loop_length(node, input_shapes), step_shapes(node, input_shapes)
        lead = {"last": (), "track": (length + 1,), "stack": (length,)}[node.attrs["what"]]
        return (*lead, *shapes[node.attrs["of"]])

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return step_dtypes(node, input_dtypes)[node.attrs["of"]]

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 0  # its kernels say theirs

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        body, what, of = node.attrs["body"], node.attrs["what"], node.attrs["of"]
        length = loop_length(node, [x.shape for x in inputs])
        end = body.carried + body.sliced
        needed = body.needed([of])
        carried, found = list(inputs[: body.carried]), []
        before = [carried[of]] if what == "track" else []
        for t in reversed(range(length)) if body.reverse else range(length):
            slices = [x[t] for x in inputs[body.carried : end]]
            values = dict(zip(body.variables, [*carried, *slices, *inputs[end:]], strict=True))
            for i in needed:
                own = body.nodes[i]
                if own not in values:
                    values[own] = own.op.numpy(own, [values[value] for value in own.inputs])
            carried = [values.get(body.nodes[out], carried[k]) for k, out in enumerate(body.out)]
            found.append(carried[of] if what == "track" else values[body.nodes[of]])
        if what == "last":
            return np.array(carried[of])
        return np.stack([*before, *found][:: -1 if body.reverse else 1])

    def joint_gradient(
        self, nodes: Sequence[Node], grads: Sequence[Node], adjoints: Adjoints
    ) -> list[Node | None]:
        """The gradient with respect to each input of a loop, of several of its results."""
        return _Backwards(nodes, grads).gradients(adjoints)


def result(loop: Node, what: str, of: int) -> Node:
    """Another result of a node's loop."""
    return Scan.make(loop.inputs, {**loop.attrs, "what": what, "of": of})


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


class _Backwards:
    """The loop that computes the gradients of a loop.

    It carries the gradients of what is carried, and goes over the gradients of the results and over those values of the
    forward loop that its formulas read. The gradient of a matrix that each step multiplies with is one product of what
    was multiplied with it in all steps and of that product's gradients; of other constants it is carried and added to.
    """

    def __init__(self, nodes: Sequence[Node], grads: Sequence[Node]) -> None:
        self.loop = nodes[0]
        self.body: Body = self.loop.attrs["body"]
        self.at_end: dict[int, Node] = {}  # the gradient of a carried value's last
        self.at_start: dict[int, Node] = {}  # what its first gets besides
        self.in_steps: dict[int, Node] = {}  # by number in the body, (length, ...)
        for node, grad in zip(nodes, grads, strict=True):
            of, what = node.attrs["of"], node.attrs["what"]
            if what == "last":
                _add(self.at_end, of, grad)
            elif what == "stack":
                _add(self.in_steps, of, grad)
            else:
                _add(self.at_start, of, slice_op(grad, (-1 if self.body.reverse else 0,)))
                _add(self.in_steps, self.body.out[of], slice_op(grad, self.body.slice_of("after")))
        self.inside = set(self.body.variables[: self.body.carried + self.body.sliced])  # differs from step to step
        for node in self.body.nodes:
            if not self.inside.isdisjoint(node.inputs):
                self.inside.add(node)

    def gradients(self, adjoints: Adjoints) -> list[Node | None]:
        body, inputs = self.body, self.loop.inputs
        variables = body.variables
        floats = [known_dtype(variable) in (None, *FLOATS) for variable in variables]
        wanted = [variable for variable, is_float in zip(variables, floats, strict=True) if is_float]
        sliced = {of: _like(body.nodes[of], f"grad{of}") for of in self.in_steps}
        live = [k for k in range(body.carried) if floats[k]]
        while True:  # without the carried values that get no gradient in any step
            carried = {k: _like(variables[k], f"grad_carried{k}") for k in live}
            seeds = [(body.nodes[body.out[k]], carried[k]) for k in live]
            seeds += [(body.nodes[of], grad) for of, grad in sliced.items()]
            found = dict(zip(wanted, adjoints(seeds, wanted), strict=True))
            kept = [k for k in live if k in self.at_end or found[variables[k]] is not None]
            if kept == live:
                break
            live = kept
        steps = _Steps(self, carried, sliced)
        for k, grad in carried.items():
            new = found[variables[k]]
            first = self.at_end[k] if k in self.at_end else zeroslike_op(inputs[k])
            steps.carry(grad, zeroslike_op(grad) if new is None else new, first)
        asked: list[Callable[[], Node | None]] = []
        for position, variable in enumerate(variables):
            grad = found.get(variable)
            if position in carried:
                asked.append(steps.last(carried[position]))
            elif position < body.carried or grad is None:
                asked.append(lambda: None)
            elif position < body.carried + body.sliced:
                asked.append(steps.stacked(grad))
            else:
                asked.append(self._of_constant(position, grad, steps))
        steps.close()
        totals = [get() for get in asked]
        for k, more in self.at_start.items():
            before = totals[k]
            totals[k] = more if before is None else add_op(before, more)
        return totals

    def _of_constant(self, position: int, grad: Node, steps: _Steps) -> Callable[[], Node]:
        """The gradient of what all steps read, from that of one step."""
        variable, whole = self.body.variables[position], self.loop.inputs[position]
        products: list[Callable[[], Node]] = []
        rest: Node | None = None
        for term in _terms(grad):
            rank = len(known_shape(variable) or ())
            found = term.op.name == "matmul_gradient" and term.inputs[2] is variable
            if found and 2 <= rank <= len(known_shape(term.inputs[0]) or ()):
                other, of_product = map(steps.stacked, term.inputs[:2])
                kind = (term.attrs["operand"], term.attrs["trans_A"], term.attrs["trans_B"])
                products.append(
                    lambda a=other, g=of_product, kind=kind: matmul_gradient_op(a(), g(), whole, *kind)
                )
            else:
                rest = term if rest is None else add_op(rest, term)
        if rest is not None:
            total = _like(variable, f"grad_constant{position}")
            steps.carry(total, add_op(total, rest), zeroslike_op(whole))
            products.append(steps.last(total))

        def sum_of_all() -> Node:
            first, *others = (product() for product in products)
            for other in others:
                first = add_op(first, other)
            return first

        return sum_of_all


class _Steps:
    """A backward loop while it is put together: what it carries, slices and reads, and its results."""

    def __init__(self, forward: _Backwards, carried: dict[int, Node], sliced: dict[int, Node]) -> None:
        self.forward = forward
        self.loop = forward.loop
        self.carried: list[tuple[Node, Node, Node]] = []  # variable, its next value, its first
        self.sliced: dict[Node, tuple[Node, Node]] = {}  # what stands for it in a step, and all of it
        self.constant: dict[Node, tuple[Node, Node]] = {}
        self.others: list[Node] = []
        self.now: dict[Node, Node] = {}
        self.made: Node | None = None
        for of, variable in sliced.items():
            self.sliced[variable] = variable, forward.in_steps[of]

    def carry(self, variable: Node, new: Node, first: Node) -> None:
        """Carry a value."""
        self.carried.append((variable, new, first))

    def last(self, variable: Node) -> Callable[[], Node]:
        """The last value of what is carried, once the loop is closed."""
        number = next(i for i, (own, _, _) in enumerate(self.carried) if own is variable)
        return lambda: result(self._closed(), "last", number)

    def stacked(self, value: Node) -> Callable[[], Node]:
        """A value in all steps, once the loop is closed; what the forward loop computed is not computed again."""
        if value in self.forward.inside:
            return lambda: value_in_steps(self.loop, self.forward.body.number[value])
        self.others.append(value)
        return lambda: value_in_steps(self._closed(), self._body().number[self.now[value]])

    def _closed(self) -> Node:
        assert self.made is not None, "the loop is not closed yet"
        return self.made

    def _body(self) -> Body:
        return self._closed().attrs["body"]  # type: ignore[no-any-return]

    def close(self) -> None:
        """Make the loop."""
        for variable, _, _ in self.carried:
            self.now[variable] = variable
        for variable, _ in list(self.sliced.values()):
            self.now[variable] = variable
        outputs = [*(new for _, new, _ in self.carried), *self.others]
        for node in _below(outputs, self.forward.inside.__contains__):  # what is read of these is sliced, see `_read`
            if node not in self.now:
                self.now[node] = self._copied(node)
        new = [self._read(value) for _, value, _ in self.carried]
        others = [self._read(value) for value in self.others]
        variables = ([v for v, _, _ in self.carried], [v for v, _ in self.sliced.values()])
        body = Body((*variables, [v for v, _ in self.constant.values()]), new, others, not self.forward.body.reverse)
        inputs = [first for _, _, first in self.carried]
        inputs += [whole for _, whole in (*self.sliced.values(), *self.constant.values())]
        length = self.loop.attrs["length"]
        if length is None and not self.sliced:
            length = loop_length(self.loop, [_shape_here(value) for value in self.loop.inputs])
        self.made = Scan.make(inputs, {"body": body, "what": "last", "of": 0, "length": length})

    def _copied(self, node: Node) -> Node:
        """A node of the backward step, with the inputs that stand for its own there."""
        if node in self.forward.body.number and not node.inputs and node.op.name != "full":  # a constant
            position = self.forward.body.number[node]
            variable = _like(node, node.name)
            self.constant[node] = variable, self.loop.inputs[position]
            return variable
        inputs = [self._read(v, i in node.op.shape_only) for i, v in enumerate(node.inputs)]
        made = node.op.make(inputs, node.attrs)
        made.placed_as(node)
        return made

    def _read(self, value: Node, shape_only: bool = False) -> Node:
        """What stands for a value in the backward step."""
        if value not in self.forward.inside:
            return self.now[value]
        shape, dtype = known_shape(value), known_dtype(value)
        if shape_only and shape is not None and dtype is not None:
            return full_op(shape, 0.0, dtype)
        if value not in self.sliced:
            whole = value_in_steps(self.loop, self.forward.body.number[value])
            self.sliced[value] = _like(value, value.name), whole
        return self.sliced[value][0]


def _shape_here(node: Node) -> Shape:
    return known_shape(node) or ()


def _like(node: Node, name: str) -> Node:
    """A variable of a node's shape and dtype, as far as they are known."""
    return Variable(name, known_shape(node), known_dtype(node))


def _add(sums: dict[int, Node], key: int, value: Node) -> None:
    sums[key] = value if key not in sums else add_op(sums[key], value)


def _terms(total: Node) -> list[Node]:
    """The terms of a sum, from the left."""
    found: list[Node] = []
    stack = [total]
    while stack:
        node = stack.pop()
        if node.op.name == "add":
            stack += reversed(node.inputs)
        else:
            found.append(node)
    return found


def scan_op(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """A loop over the first axis of xs that carries values: returns (carry, ys), as JAX's `lax.scan`.

    Args:
        body: a function from the carried values and a slice of xs to a pair: the next carried values, of the same
            shapes and dtypes, and what is kept of the step. It is called once, with variables.
        init: the first carried values, a node or a tuple of nodes; `body` gets and returns them in the same form.
        xs: what is sliced, a node or a tuple of nodes of one length, or None.
        length: the number of steps, needed where xs is None.
        reverse: go from the last slice to the first; ys are at the places of their slices.

    carry is what the last step returned; each of ys has an axis of the steps before those of `body`'s values. Of the
    graph outside, `body` may read any nodes. Raises GraphError for other arguments and results, and for a body that
    changes state or draws random numbers: do that before the loop.
    """
    carried, slices = _listed("init", init), _listed("xs", xs)
    if length is None and not slices:
        raise GraphError("scan: without xs the length must be given")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise GraphError(f"scan: the length must be a positive integer, not {length!r}")
    variables = [_like(value, f"carry{i}") for i, value in enumerate(carried)]
    for i, value in enumerate(slices):
        shape = known_shape(value)
        if shape == ():
            raise ShapeError(f"scan: xs has no axis to slice: {value.name} is a number [made at {value.location}]")
        variables.append(Variable(f"slice{i}", None if shape is None else shape[1:], known_dtype(value)))
    mark = stamp()
    returned = body(_formed(variables[: len(carried)], init), _formed(variables[len(carried) :], xs))
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise GraphError(f"scan: the body must return a pair, the next carried values and what is kept, not {returned!r}")
    out, kept = _listed("the body's carried values", returned[0]), _listed("what the body keeps", returned[1])
    if len(out) != len(carried):
        raise GraphError(f"scan: {len(carried)} values are carried, and the body returns {len(out)}")
    now, constants = _closed([*out, *kept], variables, mark)
    own = [list(variables[: len(carried)]), list(variables[len(carried) :]), [v for v, _ in constants]]
    made = Body(own, [now[node] for node in out], [now[node] for node in kept], reverse)
    inputs = [*carried, *slices, *(value for _, value in constants)]
    loop = Scan.make(inputs, {"body": made, "what": "last", "of": 0, "length": length if not slices else None})
    last = [result(loop, "last", k) for k in range(len(carried))]
    ys = [value_in_steps(loop, made.number[now[node]]) for node in kept]
    return _formed(last, returned[0]), _formed(ys, returned[1])


def _listed(what: str, given: Any) -> list[Node]:
    """Nodes given as one, several or None. Raises GraphError for anything else."""
    found = [] if given is None else list(given) if isinstance(given, (tuple, list)) else [given]
    for node in found:
        if not isinstance(node, Node):
            raise GraphError(f"scan: {what} must be a node or a tuple of nodes, not of {type(node).__name__}")
    return found


def _formed(nodes: Sequence[Node], like: Any) -> Any:
    """The nodes in the form in which they were given."""
    return tuple(nodes) if isinstance(like, (tuple, list)) else None if like is None else nodes[0]


def _closed(
    outputs: Sequence[Node], variables: Sequence[Node], mark: int
) -> tuple[dict[Node, Node], list[tuple[Node, Node]]]:
    """The nodes of a body, copied, with variables for what they read of the graph outside; and these variables, each
    with its node. `mark`: the id beyond which nodes were made in the body. Raises GraphError."""
    now: dict[Node, Node] = {variable: variable for variable in variables}
    constants: dict[Node, Node] = {}

    def read(node: Node) -> Node:
        if node not in now:
            constants[node] = now[node] = _like(node, node.name)
        return now[node]

    for node in _below(outputs, lambda node: node.id <= mark or node in now):
        if node.op.name in STATE:
            raise error_at(node, GraphError, "a loop's body changes no state and draws no random numbers")
        if node.op.name == "full":
            now[node] = node
        elif any(value in now and value not in constants for value in node.inputs):
            made = node.op.make([read(value) for value in node.inputs], node.attrs)
            made.placed_as(node)
            now[node] = made
    for node in outputs:
        read(node)
    return now, [(variable, node) for node, variable in constants.items()]


def _below(outputs: Sequence[Node], is_behind: Callable[[Node], bool]) -> list[Node]:
    """The nodes below these, inputs first, as far as the border: nodes that are behind it are not there."""
    found, stack = set(), list(outputs)
    while stack:
        node = stack.pop()
        if node not in found and not is_behind(node):
            found.add(node)
            stack += node.inputs
    return sorted(found, key=lambda node: node.id)  # a node has a larger id than its inputs
