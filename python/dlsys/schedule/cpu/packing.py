"""Panels: copies of an operand in the order in which tiles read it, [.., panel, k, index within the panel]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ..codegen import PARALLEL, SERIAL, UNROLLED, array, cut, in_steps, sequence, unravelled
from ..common import PARALLEL_WORK
from ..squares import SIDE, turned
from ..stages import Expr
from .nest import ZERO, Nest, placed
from .plan import Plan, is_packed_by_squares, run_of_terms


@dataclass(frozen=True)
class Part:
    """Some of the terms of a sum: at an index of each group outside one that is cut, `fixed`, and of this `group` from
    step `first` on `count` steps, at most `most`; where the count is None, what is left behind whole steps."""

    fixed: Mapping[int, Expr]
    group: int
    first: Expr
    count: Expr | None
    most: int


@dataclass(frozen=True)
class Place:
    """Where a tile is: an index of each group of results, in the place of those of the tile their tiles' numbers; where
    its sums lie between two parts; and the part."""

    spatial: Sequence[Expr]
    slot: Sequence[Expr] = ()
    part: Part | None = None


Read = Callable[[Place, Expr, Expr], Expr]
"""A packed operand's element: of a tile's place, its column and the number of the term."""


class Packing:
    """The panels of one load, along the vectors."""

    def __init__(self, nest: Nest, plan: Plan, load: int, value: Expr) -> None:
        """`value`: what is packed of the load, an expression of the stage's axes."""
        self.nest, self.load, self.value = nest, load, value
        self.group, self.width = plan.along, plan.width
        self.panels: int = -(-nest.sizes[self.group] // self.width)
        self.lead: list[int] = [g for g in range(nest.results) if g != self.group and nest.strides[load][g]]
        self.by_squares: bool = is_packed_by_squares(nest, load, self.group, self.width)

    def array(self, shape: Sequence[int]) -> Any:
        """An array of panels."""
        return array((*shape, self.nest.terms, self.width), str(self.value.ty), "panels")

    def whole(self, parallel: bool) -> tuple[tirx.Stmt, Read]:
        """The loops that pack all panels, and how they are read."""
        nest = self.nest
        shape = [*(nest.sizes[g] for g in self.lead), self.panels]
        to = self.array(shape)

        def panel(number: Expr) -> tirx.Stmt:
            *index, own = unravelled(number, shape)
            spatial: list[Expr] = [ZERO] * nest.results
            for g, at in zip(self.lead, index, strict=True):
                spatial[g] = at
            return self.copied(own, spatial, lambda value, k, x: tirx.BufferStore(to, value, [*index, own, k, x]))

        def read(place: Place, column: Expr, k: Expr) -> Expr:
            return tirx.BufferLoad(to, [*(place.spatial[g] for g in (*self.lead, self.group)), k, column])

        many = parallel and math.prod(shape) * nest.terms * self.width >= PARALLEL_WORK
        return nest.loop(math.prod(shape), panel, PARALLEL if many else SERIAL, "panel"), read

    def of_share(self) -> tuple[Any, Callable[..., tirx.Stmt], Read]:
        """The array of one panel, the loops that pack it, at an index of all groups, and how it is read."""
        to = self.array(())

        def copied(spatial: Sequence[Expr]) -> tirx.Stmt:
            return self.copied(spatial[self.group], spatial, lambda value, k, x: tirx.BufferStore(to, value, [k, x]))

        def read(_: Place, column: Expr, k: Expr) -> Expr:
            return tirx.BufferLoad(to, [k, column])

        return to, copied, read

    def copied(self, panel: Expr, spatial: Sequence[Expr], store: Callable[..., tirx.Stmt]) -> tirx.Stmt:
        """The copy of a panel; `store`: of a value, the number of its term and its index within the panel."""
        nest, index = self.nest, panel * self.width

        def value(terms: Sequence[Expr], x: Expr) -> Expr:
            own = [*spatial]
            own[self.group] = index + x
            return placed(self.value, nest.at(own, terms), nest.neighbour)

        def of(width: int) -> tirx.Stmt:
            if self.by_squares:
                return self._squares(width, value, store)
            return each_term(nest, lambda terms, k, _: nest.vector(width, lambda x: store(value(terms, x), k, x)))

        return cut(panel, nest.sizes[self.group], self.width, of)

    def _squares(self, width: int, value: Callable[..., Expr], store: Callable[..., tirx.Stmt]) -> tirx.Stmt:
        """The copy of so many indices, square by square: rows of memory are turned in registers."""
        nest, first = self.nest, run_of_terms(self.nest, self.load) - self.nest.results
        lead, run = nest.reduced.sizes[:first], nest.reduced.sizes[first:]

        def square(number: Expr, k: Expr, steps: int, x: Expr, rows: int) -> tirx.Stmt:
            def element(r: Expr, c: Expr) -> Expr:
                return value([*unravelled(number, lead), *unravelled(k + c, run)], x + r)

            made, read = turned(element, rows, steps, str(self.value.ty), "int32")
            at = number * math.prod(run) + k
            put = lambda c: nest.vector(rows, lambda r: store(read(r, c), at + c, x + r))  # noqa: E731
            return sequence([made, nest.loop(steps, put, UNROLLED)])

        def steps(number: Expr, k: Expr, many: int) -> tirx.Stmt:
            return in_steps(width, SIDE, lambda x, rows: square(number, k, many, x, rows))

        return nest.loop(math.prod(lead), lambda i: in_steps(math.prod(run), SIDE, lambda k, n: steps(i, k, n)))


def each_term(
    nest: Nest,
    body: Callable[[list[Expr], Expr, int], tirx.Stmt],
    axis: int = -1,
    width: int = 1,
    part: Part | None = None,
    order: Sequence[int] = (),
    kind: int = SERIAL,
) -> tirx.Stmt:
    """`body` of the index of each group of terms, the number of the term, and how many of group `axis` come at once:
    `width`, and at the end what is left; of a `part` only its terms. `order` and `kind`: of the
    loops."""
    sizes = nest.reduced.sizes
    order = order or range(len(sizes))

    def steps(at: int, index: dict[int, Expr], many: int) -> tirx.Stmt:
        if at == len(sizes):
            number: Expr = ZERO
            for g, size in enumerate(sizes):
                number = number * size + index[g]
            return body([index[g] for g in range(len(sizes))], nest.simple(number), many)
        own = order[at]
        size, step = sizes[own], width if own == axis else 1

        def of(k: Expr, some: int) -> tirx.Stmt:
            return steps(at + 1, {**index, own: k}, some if own == axis else many)

        if part is not None and own in part.fixed:
            return of(part.fixed[own], 1)
        if part is not None and own == part.group and part.count is None:
            return of(nest.simple(part.first * step), size % step)
        if part is not None and own == part.group:
            of_part = lambda k: of(nest.simple((part.first + k) * step), step)  # noqa: E731
            return nest.loop_to(part.count, part.most, of_part, "k")
        whole, rest = divmod(size, step)
        loops = [nest.loop(whole, lambda k: of(k * step, step), kind, "k")] if whole else []
        return sequence([*loops, *([of(tirx.IntImm("int32", whole * step), rest)] if rest else [])])

    return steps(0, {}, 1)
