"""The gradient of a loop: a loop over the slices backwards, whose gradient is found by the same rule.

It carries the gradients of what is carried, and goes over the gradients of the results and over those values of the
forward loop that its formulas read. The gradient of a matrix that each step multiplies with is one product, of what it
was multiplied with in all steps and of that product's gradients; that of a bias added to it is one sum of these. Of
other constants it is carried and added to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

from ..graph import FLOATS, OPS, Node, Shape
from ..hooks import hooks
from .elementwise import add_op, zeroslike_op
from .loop import Body, Carried, last_value, loop_of, value_in_steps
from .moves import reshape_op
from .reduction import reducesum_op
from .state import variable_of


def loop_gradients(loop: Node, total: Node) -> list[Node | None]:
    """The gradient with respect to each input of a loop; None where it is zero. `total`: a sum of gradients of its
    results."""
    body: Body = loop.attrs["body"]
    variables, inputs, moving = body.variables, loop.inputs, body.moving
    at_end: dict[int, Node] = {}  # the gradient of a carried value's last
    in_steps: dict[int, Node] = {}  # by number in the body, (length, ...)
    for term in _terms(total):
        of = term.attrs["of"]
        given, key = (at_end, body.out.index(of)) if term.attrs["last"] else (in_steps, of)
        given[key] = _sum(given.get(key), term.inputs[0])
    of_step: dict[int, Node] = {of: variable_of(body.nodes[of].value_type, f"grad{of}") for of in in_steps}
    totals, found = _of_a_step(body, at_end.keys(), of_step)
    carried: list[Carried] = []
    for k, own in totals.items():
        new, first = found.get(variables[k]), at_end.get(k)
        first = zeroslike_op(inputs[k]) if first is None else first
        carried.append((own, first, zeroslike_op(own) if new is None else new))

    of_slices = {i: found[variables[i]] for i in range(body.carried, moving) if variables[i] in found}
    sums = {i: [_Sum(t) for t in _terms(found.get(variables[i]))] for i in range(moving, len(variables))}
    factors = [value for of in sums.values() for one in of if one.is_product for value in one.values]
    stored = dict.fromkeys([*of_slices.values(), *factors])
    for i, terms in sums.items():  # a sum is taken of what is stored of all steps anyway
        rest = [one.term for one in terms if not stored.keys() >= set(one.values)]
        sums[i] = [one for one in terms if stored.keys() >= set(one.values)]
        if rest:
            totals[i] = own = variable_of(variables[i].value_type, f"grad_constant{i}")
            carried.append((own, zeroslike_op(inputs[i]), add_op(own, reduce(add_op, rest))))

    sliced: dict[Node, Node] = {own: in_steps[of] for of, own in of_step.items()}
    if not sliced and body.sliced:  # which says how many steps there are
        sliced = {variable_of(variables[body.carried].value_type, "slice"): inputs[body.carried]}
    inside = body.differing()
    outside = {node for node in inside.union(variables) if node.op.kind != "scan"}  # loops within are run again
    others = [value for value in stored if value not in inside]

    def outer(node: Node) -> tuple[Node, bool]:
        of = body.number[node]
        return (value_in_steps(loop, of), True) if node in inside else (inputs[of], False)

    back, numbers = loop_of(carried, sliced, others, outside.__contains__, outer, not body.reverse, body.length)
    number = dict(zip(others, numbers[len(carried) :], strict=True))

    def in_all_steps(value: Node) -> Node:
        return value_in_steps(loop, body.number[value]) if value in inside else value_in_steps(back, number[value])

    grads = {i: in_all_steps(grad) for i, grad in of_slices.items()}
    for i, terms in sums.items():
        for one in terms:
            values = [in_all_steps(value) for value in one.values]
            grads[i] = _sum(grads.get(i), one.over_steps(values, inputs[i].shape))
    for i, of in zip(totals, numbers, strict=False):
        grads[i] = _sum(grads.get(i), last_value(back, of))
    return [grads.get(i) for i in range(len(inputs))]


def _of_a_step(
    body: Body, at_end: Collection[int], of_step: dict[int, Node]
) -> tuple[dict[int, Node], dict[Node, Node]]:
    """Variables for the gradients of the carried values after a step, without those that are zero after each; and the
    gradients of a body's variables, but those that are zero. `of_step`: variables for the gradients of its values."""
    wanted = [variable for variable in body.variables if variable.dtype in FLOATS]
    live = [k for k in range(body.carried) if body.nodes[k] in set(wanted)]
    while True:
        totals: dict[int, Node] = {k: variable_of(body.nodes[k].value_type, f"grad_carried{k}") for k in live}
        seeds = [(body.nodes[body.out[k]], own) for k, own in totals.items()]
        seeds += [(body.nodes[of], own) for of, own in of_step.items()]
        grads = zip(wanted, hooks.adjoints(seeds, wanted), strict=True)
        found = {variable: grad for variable, grad in grads if grad is not None}
        kept = [k for k in live if k in at_end or body.nodes[k] in found]
        if kept == live:
            return totals, found
        live = kept


def _sum(total: Node | None, value: Node) -> Node:
    return value if total is None else add_op(total, value)


def _terms(total: Node | None) -> list[Node]:
    """The terms of a sum, from the left."""
    found: list[Node] = []
    stack = [] if total is None else [total]
    while stack:
        node = stack.pop()
        if node.op is OPS["add"]:
            stack += reversed(node.inputs)
        else:
            found.append(node)
    return found


class _Sum:
    """A term of the gradient of a matrix or bias that all steps read, whose sum over the steps is one product, or one
    sum, of values of all steps.

    Attributes:
        term: the term of one step.
        is_product: whether it is X^T G of two matrices: the sum is the product of all steps' rows.
        values: what is needed of all steps: X and G; of a sum over axes what is summed; else the term.
    """

    def __init__(self, term: Node) -> None:
        self.term, self._of = term, _reshaped(term)
        of, attrs = self._of, self._of.attrs
        is_matmul = of.op is OPS["matmul"] and attrs["trans_A"] and not attrs["trans_B"]
        self.is_product: bool = is_matmul and all(len(x.shape) == 2 for x in of.inputs)
        self.is_sum: bool = of.op is OPS["reducesum"]
        self.values = [_reshaped(x) for x in of.inputs] if self.is_product or self.is_sum else [of]

    def over_steps(self, values: Sequence[Node], shape: Shape) -> Node:
        """The sum over all steps, of `shape`, from `values` of all steps, each (length, ...)."""
        of, length = self._of, values[0].shape[0]
        if self.is_product:
            pairs = zip(values, of.inputs, strict=True)
            rows = [reshape_op(value, (length * x.shape[0], x.shape[1])) for value, x in pairs]
            return reshape_op(of.op(*rows, **of.attrs), shape)
        if not self.is_sum:
            return reshape_op(reducesum_op(values[0], 0), shape)
        stacked = reshape_op(values[0], (length, *of.inputs[0].shape))
        return reshape_op(reducesum_op(stacked, (0, *(axis + 1 for axis in of.attrs["axes"]))), shape)


def _reshaped(node: Node) -> Node:
    """What a node is, under another shape."""
    while node.op is OPS["reshape"]:
        node = node.inputs[0]
    return node
