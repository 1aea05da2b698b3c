"""Plans of a sum: which of its groups runs along vectors, which rows lie beside them in registers, what is packed.
Which plans are good follows from the strides. A load that moves along the vectors and not along the rows is loaded once
for all rows; one that moves along the rows alone is an element, broadcast to a vector. The transposed product, the
direct convolution, several rows of a matrix at once are plans, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from ..intrinsics import term_of
from ..squares import SIDE, STRIDES
from .nest import Nest

MOST_VECTORS = 4  # in a row of a tile
SUMMED_ROWS = 6  # at once, where vectors run along terms: each row has vectors of sums


@dataclass(frozen=True)
class Plan:
    """The tile of a sum, and how its operands are read.

    Attributes:
        along: the group along which vectors run: of results, or of terms.
        width: indices of that group in a tile, whole vectors.
        rows: other groups of results, and how many indices of each a tile has.
        packed: the loads that are packed along the vectors, into panels[.., panel, k, column].
        block: tiles that pass a panel before the next panel comes.
    """

    along: int
    width: int
    rows: tuple[tuple[int, int], ...] = ()
    packed: tuple[int, ...] = ()
    block: int = 1

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of the rows."""
        return tuple(g for g, _ in self.rows)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many indices of each of them a tile has."""
        return tuple(n for _, n in self.rows)


def plans(nest: Nest) -> Iterator[Plan]:
    """All plans of a sum, of which nothing is packed yet."""
    machine, sizes = nest.machine, nest.sizes
    by_instruction = term_of(nest.stage.value.b) is not None
    for along in _along(nest, by_instruction):
        others = [g for g in range(nest.results) if g != along and sizes[g] > 1 and _share_vectors(nest, along, g)]
        for groups in [(), *((g,) for g in others), *combinations(others, 2)]:
            for vectors in range(1, MOST_VECTORS + 1):
                if (vectors - 1) * nest.lanes >= sizes[along]:
                    break
                most = (machine.registers - vectors - 1) // vectors
                for counts in _counts(nest, along, groups, most):
                    width = vectors * nest.lanes if along < nest.results else min(vectors * nest.lanes, sizes[along])
                    yield Plan(along, width, tuple(zip(groups, counts, strict=True)))


def _along(nest: Nest, by_instruction: bool) -> Iterator[int]:
    """The groups along which vectors may run: of results, and of terms that lie side by side."""
    results = nest.sizes[: nest.results]
    for g, size in enumerate(nest.sizes):
        steps = [strides[g] for strides in nest.strides[:-1]]
        if g < nest.results:
            if size > 1 or max(results) == 1:
                yield g
        elif size >= 4 and all(step in (0, 1, *STRIDES) for step in steps) and 1 in steps and not by_instruction:
            yield g


def _share_vectors(nest: Nest, along: int, group: int) -> bool:
    """Whether rows of a group read the same vectors."""
    own = along >= nest.results
    return any(strides[group] == 0 and (own or strides[along] != 0) for strides in nest.strides[:-1])


def _counts(nest: Nest, along: int, groups: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """How many indices of each group of rows a tile may have; of two groups all of one."""
    # rows that lie in the same lines have their addresses from one pointer, others one each
    near = all(abs(steps[g]) * nest.bytes <= nest.machine.line for g in groups for steps in nest.strides[:-1])
    registers, most = most, min(most, nest.machine.registers * (7 if near else 6) // 16)
    sizes = [nest.sizes[g] for g in groups]
    if along >= nest.results:
        own = [range(2, min(SUMMED_ROWS, size) + 1) for size in sizes]
        return [counts for counts in product(*own) if math.prod(counts) <= max(registers, 1)]
    if len(groups) < 2:
        return [(n,) for size in sizes for n in range(2, min(most, size) + 1)] if groups else [()]
    a, b = sizes
    found = {(a, n) for n in range(2, b + 1)} | {(n, b) for n in range(2, a + 1)}
    return sorted(counts for counts in found if math.prod(counts) <= most)


def packings(nest: Nest, plan: Plan, made: Container[Any] = ()) -> Iterator[Plan]:
    """The plan with what may be packed: loads that move along the vectors, and along no row, which come strided or from
    far. `made`: the arrays that are computed on the way: packed they need no place of their own."""
    by_instruction, found = term_of(nest.stage.value.b) is not None, list[list[tuple[int, ...]]]()
    for n, strides in enumerate(nest.strides[:-1]):
        still = strides[plan.along] != 0 and not nest.moves(n, plan.groups)
        if plan.along >= nest.results or not still or not (plan.rows or by_instruction):
            continue
        if by_instruction or strides[plan.along] != 1 or _is_far(nest, n, plan):
            must = by_instruction or nest.loads[n].source in made
            found.append([(n,)] if must else [(), (n,)])
    for chosen in product(*found):
        yield replace(plan, packed=sum(chosen, ()))


def _is_far(nest: Nest, load: int, plan: Plan) -> bool:
    """Whether steps of the terms read rows far apart, of more than the first cache holds, and often."""
    step, machine = nest.strides[load][-1], nest.machine
    return step not in (0, 1) and nest.sizes[plan.along] * nest.terms * nest.bytes > machine.l1


def tiles(nest: Nest, plan: Plan) -> list[int]:
    """How many tiles lie along each group of rows."""
    return [-(-nest.sizes[g] // n) for g, n in plan.rows]


def others(nest: Nest, plan: Plan) -> list[int]:
    """The groups of results outside tiles."""
    return [g for g in range(nest.results) if g != plan.along and g not in plan.groups]


def run_of(nest: Nest, plan: Plan, counts: Sequence[int]) -> int:
    """How many rows of a tile, the last ones, lie side by side in the result."""
    run, strides = 1, nest.strides[-1]
    for (g, _), count in reversed([*zip(plan.rows, counts, strict=True)]):
        if strides[g] != run:
            return run
        run *= count
        if count != nest.sizes[g]:
            return run
    return run


def is_packed_by_squares(nest: Nest, load: int, group: int, width: int) -> bool:
    """Whether a load is packed along a group square by square: memory runs along terms."""
    run = math.prod(nest.sizes[run_of_terms(nest, load) :])
    return nest.strides[load][group] != 1 and min(run, nest.sizes[group], width) >= SIDE


def run_of_terms(nest: Nest, load: int) -> int:
    """The first of the groups of terms, the last ones, that a load goes through as one."""
    first, step = len(nest.sizes), 1
    while first > nest.results and nest.strides[load][first - 1] == step:
        first -= 1
        step *= nest.sizes[first]
    return first
