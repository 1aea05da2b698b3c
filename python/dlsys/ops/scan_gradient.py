"""The gradient of a loop: a loop over the slices backwards, whose gradient is found by the same rule.

It carries the gradients of what is carried, and goes over the gradients of the results and over those values of the
forward loop that its formulas read. The gradient of a matrix that each step multiplies with is one product, of what it
was multiplied with in all steps and of that product's gradients; that of a bias added to it is one sum of these. Of
other constants it is carried and added to.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

from ..graph import FLOATS, OPS, Node
from ..hooks import hooks
from .elementwise import add_op, zeroslike_op
from .loop import Body, Carried, last_value, loop_of, value_in_steps, variable_like
from .types import known_dtype, known_shape


def loop_gradients(loop: Node, total: Node) -> list[Node | None]:
    """The gradient with respect to each input of a loop; None where it is zero. `total`: a sum of gradients of its
    results."""
    body: Body = loop.attrs["body"]
    variables, inputs, moving = body.variables, loop.inputs, body.moving
    at_end: dict[int, Node] = {}  # the gradient of a carried value's last
    in_steps: dict[int, Node] = {}  # by number in the body, (length, ...)
    for term in _terms(total):
        of = term.attrs["of"]
        sums, key = (at_end, body.out.index(of)) if term.attrs["last"] else (in_steps, of)
        sums[key] = _sum(sums.get(key), term.inputs[0])
    of_step: dict[int, Node] = {of: variable_like(body.nodes[of], f"grad{of}") for of in in_steps}
    totals, found = _of_a_step(body, at_end.keys(), of_step)
    carried: list[Carried] = []
    for k, own in totals.items():
        new, first = found.get(variables[k]), at_end.get(k)
        first = zeroslike_op(inputs[k]) if first is None else first
        carried.append((own, first, zeroslike_op(own) if new is None else new))

    of_slices = {i: found[variables[i]] for i in range(body.carried, moving) if variables[i] in found}
    terms_of = {i: _terms(found.get(variables[i])) for i in range(moving, len(variables))}
    together = {i: [t for t in terms if t.op.adds_up(t, variables[i])] for i, terms in terms_of.items()}
    products = [term for terms in together.values() for term in terms if term.op.kind == "contraction"]
    stored = dict.fromkeys([*of_slices.values(), *(value for term in products for value in _read(term))])
    for i, terms in together.items():  # a sum is taken of what is stored of all steps anyway
        together[i] = terms = [term for term in terms if stored.keys() >= set(_read(term))]
        if rest := [term for term in terms_of[i] if term not in set(terms)]:
            totals[i] = own = variable_like(variables[i], f"grad_constant{i}")
            carried.append((own, zeroslike_op(inputs[i]), add_op(own, reduce(add_op, rest))))

    sliced: dict[Node, Node] = {own: in_steps[of] for of, own in of_step.items()}
    if not sliced and body.sliced:  # which says how many steps there are
        sliced = {variable_like(variables[body.carried], "slice"): inputs[body.carried]}
    inside = body.differing()
    given = {node for node in inside.union(variables) if node.op.kind != "scan"}  # loops within are run again
    others = [value for value in stored if value not in inside]

    def outer(node: Node) -> tuple[Node, bool]:
        of = body.number[node]
        return (value_in_steps(loop, of), True) if node in inside else (inputs[of], False)

    back, numbers = loop_of(carried, sliced, others, given.__contains__, outer, not body.reverse, body.length)
    number = dict(zip(others, numbers[len(carried) :], strict=True))

    def in_all_steps(value: Node) -> Node:
        return value_in_steps(loop, body.number[value]) if value in inside else value_in_steps(back, number[value])

    grads = {i: in_all_steps(grad) for i, grad in of_slices.items()}
    for i, terms in together.items():
        for term in terms:
            values = [in_all_steps(value) for value in _read(term)]
            grads[i] = _sum(grads.get(i), term.op.make([*values, inputs[i]], term.attrs))
    for i, of in zip(totals, numbers, strict=False):
        grads[i] = _sum(grads.get(i), last_value(back, of))
    return [grads.get(i) for i in range(len(inputs))]


def _of_a_step(
    body: Body, at_end: Collection[int], of_step: dict[int, Node]
) -> tuple[dict[int, Node], dict[Node, Node]]:
    """Variables for the gradients of the carried values after a step, without those that are zero after each; and the
    gradients of a body's variables, but those that are zero. `of_step`: variables for the gradients of its values."""
    wanted = [variable for variable in body.variables if known_dtype(variable) in (None, *FLOATS)]
    live = [k for k in range(body.carried) if body.nodes[k] in set(wanted)]
    while True:
        totals: dict[int, Node] = {k: variable_like(body.nodes[k], f"grad_carried{k}") for k in live}
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


def _read(term: Node) -> list[Node]:
    """The values from which a term is computed, without the input that it has the shape of; where one is a sum over
    nothing, the term of that sum."""
    found = []
    for value in term.inputs[:-1]:
        while value.op is OPS["sum_to_like"] and known_shape(value) == known_shape(value.inputs[0]) is not None:
            value = value.inputs[0]
        found.append(value)
    return found
