"""The gradient of a loop: a loop over the slices backwards, whose gradient is found by the same rule.

It carries the gradients of what is carried, and goes over the gradients of the results and over those values of the
forward loop that its formulas read. The gradient of a matrix that each step multiplies with is one product, of what it
was multiplied with in all steps and of that product's gradients; that of a bias added to it is one sum of these. Of
other constants it is carried and added to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from ..graph import FLOATS, OPS, Node, below
from ..scopes import precision
from .arithmetic import add_op
from .inputs import full_op, zeroslike_op
from .linalg import matmul_gradient_op
from .loop import Body, loop_length, result, value_in_steps, variable_like
from .shape import sum_to_like_op
from .slicing import slice_op
from .types import known_dtype, known_shape

Adjoints = Callable[[Sequence[tuple[Node, Node]], Sequence[Node]], "list[Node | None]"]
"""From pairs of a node and the gradient that it gets to the gradient of each node of a list; None where it is zero."""


def loop_gradients(nodes: Sequence[Node], grads: Sequence[Node], adjoints: Adjoints) -> list[Node | None]:
    """The gradient with respect to each input of a loop, from those of several of its results."""
    with precision(None):  # each product says its own
        return _Backwards(nodes, grads).gradients(adjoints)


class _Backwards:
    """The gradients of a loop's results, and of its inputs."""

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
                self._add_to_track(of, grad)
        self.inside = set(self.body.variables[: self.body.carried + self.body.sliced])  # differs from step to step
        for node in self.body.nodes:
            if not self.inside.isdisjoint(node.inputs):
                self.inside.add(node)

    def _add_to_track(self, k: int, grad: Node) -> None:
        """Take the gradient of all that a carried value was: mostly that of a slice, the values before or after."""
        before, after = (slice_op(grad, self.body.slice_of(kind)) for kind in ("before", "after"))
        for term in _terms(grad):
            if term.op.name == "slice_gradient" and term.attrs["key"] == after.attrs["key"]:
                _add(self.in_steps, self.body.out[k], term.inputs[0])
            elif term.op.name == "slice_gradient" and term.attrs["key"] == before.attrs["key"]:
                _add(self.in_steps, k, term.inputs[0])
            else:
                _add(self.in_steps, self.body.out[k], slice_op(term, self.body.slice_of("after")))
                _add(self.at_start, k, slice_op(term, (-1 if self.body.reverse else 0,)))

    def gradients(self, adjoints: Adjoints) -> list[Node | None]:
        """The gradient with respect to each input; None where it is zero."""
        body, inputs = self.body, self.loop.inputs
        variables = body.variables
        floats = [known_dtype(variable) in (None, *FLOATS) for variable in variables]
        wanted = [variable for variable, is_float in zip(variables, floats, strict=True) if is_float]
        sliced = {of: variable_like(body.nodes[of], f"grad{of}") for of in self.in_steps}
        live = [k for k in range(body.carried) if floats[k]]
        while True:  # without the carried values that get no gradient in any step
            carried = {k: variable_like(variables[k], f"grad_carried{k}") for k in live}
            seeds = [(body.nodes[body.out[k]], carried[k]) for k in live]
            seeds += [(body.nodes[of], grad) for of, grad in sliced.items()]
            found = dict(zip(wanted, adjoints(seeds, wanted), strict=True))
            kept = [k for k in live if k in self.at_end or found[variables[k]] is not None]
            if kept == live:
                break
            live = kept
        steps = _Steps(self, carried, sliced)
        for k, total in carried.items():
            new = found[variables[k]]
            first = self.at_end[k] if k in self.at_end else zeroslike_op(inputs[k])
            steps.carry(total, zeroslike_op(total) if new is None else new, first)
        same = map(found.get, variables[body.carried + body.sliced :])
        stacks = _of_products([grad for grad in same if grad is not None])
        asked: list[Callable[[], Node | None]] = []
        for position, variable in enumerate(variables):
            grad: Node | None = found.get(variable)
            if position in carried:
                asked.append(steps.last(carried[position]))
            elif position < body.carried or grad is None:
                asked.append(lambda: None)
            elif position < body.carried + body.sliced:
                asked.append(steps.stacked(grad))
            else:
                asked.append(self._of_constant(position, grad, steps, stacks))
        steps.close()
        totals = [get() for get in asked]
        for k, more in self.at_start.items():
            before = totals[k]
            totals[k] = more if before is None else add_op(before, more)
        return totals

    def _of_constant(
        self, position: int, grad: Node, steps: _Steps, stacks: dict[Node, Node]
    ) -> Callable[[], Node]:
        """The gradient of what all steps read, from that of one step. `stacks`: see `_of_products`."""
        variable, whole = self.body.variables[position], self.loop.inputs[position]
        products: list[Callable[[], Node]] = []
        rest: Node | None = None
        for term in _terms(grad):
            rank = len(known_shape(variable) or ())
            found = term.op.name == "matmul_gradient" and term.inputs[2] is variable
            if found and 2 <= rank <= len(known_shape(term.inputs[0]) or ()):
                other, of_product = map(steps.stacked, term.inputs[:2])
                kind = (term.attrs["operand"], term.attrs["trans_A"], term.attrs["trans_B"])
                products.append(_product(other, of_product, whole, kind, term.attrs.get("precision")))
            elif term.op.name == "sum_to_like" and term.inputs[1] is variable and term.inputs[0] in stacks:
                terms = steps.stacked(stacks[term.inputs[0]])
                products.append(partial(_sum_of, terms, whole))
            else:
                rest = term if rest is None else add_op(rest, term)
        if rest is not None:
            total = variable_like(variable, f"grad_constant{position}")
            steps.carry(total, add_op(total, rest), zeroslike_op(whole))
            products.append(steps.last(total))
        return lambda: reduce(add_op, [product() for product in products])


def _of_products(grads: Sequence[Node]) -> dict[Node, Node]:
    """The gradients of products that are needed of all steps, each also by the value of its shape that it is."""
    found: dict[Node, Node] = {}
    for term in (term for grad in grads for term in _terms(grad)):
        if term.op.name == "matmul_gradient":
            value = term.inputs[1]
            found[value] = value
            while value.op.name == "sum_to_like" and known_shape(value) == known_shape(value.inputs[0]) is not None:
                found[value.inputs[0]] = found[value]
                value = value.inputs[0]
    return found


def _sum_of(terms: Callable[[], Node], like: Node) -> Node:
    return sum_to_like_op(terms(), like)


def _product(
    other: Callable[[], Node], grad: Callable[[], Node], like: Node, kind: tuple[str, bool, bool], dtype: str | None
) -> Callable[[], Node]:
    def make() -> Node:
        with precision(dtype):
            return matmul_gradient_op(other(), grad(), like, *kind)

    return make


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
        return self._closed().attrs["body"]

    def close(self) -> None:
        """Make the loop."""
        for variable, _, _ in self.carried:
            self.now[variable] = variable
        for variable, _ in list(self.sliced.values()):
            self.now[variable] = variable
        outputs = [*(new for _, new, _ in self.carried), *self.others]
        for node in below(outputs, lambda node: node in self.forward.inside):  # these are sliced, see `_read`
            if node not in self.now:
                self.now[node] = self._copied(node)
        new = [self._read(value) for _, value, _ in self.carried]
        others = [self._read(value) for value in self.others]
        variables = ([v for v, _, _ in self.carried], [v for v, _ in self.sliced.values()])
        length, reverse = self.forward.body.length, not self.forward.body.reverse
        if not self.sliced and length is None:
            length = loop_length(self.loop, [known_shape(value) or () for value in self.loop.inputs])
        body = Body((*variables, [v for v, _ in self.constant.values()]), new, others, reverse, length)
        inputs = [first for _, _, first in self.carried]
        inputs += [whole for _, whole in (*self.sliced.values(), *self.constant.values())]
        self.made = OPS["scan"].make(inputs, {"body": body, "what": "last", "of": 0})

    def _copied(self, node: Node) -> Node:
        """A node of the backward step, with the inputs that stand for its own there."""
        if node in self.forward.body.number and not node.inputs and node.op.name != "full":  # a constant
            position = self.forward.body.number[node]
            variable = variable_like(node, node.name)
            self.constant[node] = variable, self.loop.inputs[position]
            return variable
        inputs = [self._read(v, i in node.op.shape_only) for i, v in enumerate(node.inputs)]
        made = node.op.make(inputs, node.attrs)
        made.placed_as(node)
        return made

    def _read(self, value: Node, shape_only: bool = False) -> Node:
        """The node of a value in the backward step: of the forward loop's, a slice of that value in all steps."""
        if value not in self.forward.inside:
            return self.now[value]
        shape, dtype = known_shape(value), known_dtype(value)
        if shape_only and shape is not None and dtype is not None:
            return full_op(shape, 0.0, dtype)
        if value not in self.sliced:
            whole = value_in_steps(self.loop, self.forward.body.number[value])
            self.sliced[value] = variable_like(value, value.name), whole
        return self.sliced[value][0]


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
