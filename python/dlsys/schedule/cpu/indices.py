"""Indices of a product's loops, and the elements that lie there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, sym, tirx

from ..codegen import SERIAL, array, lanes, loop, unravelled
from ..common import found_in, mutated, renamed
from ..products import Axes, Operand, Product
from ..stages import Expr

Names = Mapping[int, Expr]
"""A value for each of some axes of a product."""


@dataclass(frozen=True)
class Part:
    """A part of k: its number, the index of each axis at its first step, and the number of that step."""

    number: Expr
    starts: Names
    first: Expr


@dataclass(frozen=True)
class Place:
    """Where a tile is: its batch, row and panel, panel and row in the share, and the part of k."""

    batch: Names
    tile: Expr
    panel: Expr
    local: tuple[Expr, Expr]
    part: Part


@dataclass(frozen=True)
class Term:
    """A step of k: the index of each axis, and the number of the step."""

    names: Names
    number: Expr


Read = Callable[[Place, Expr, Term], Expr]
"""An operand's element in a row of a tile, or in a column of a panel, at a step of k."""


def placed(code: Expr, values: Mapping[Any, Expr], place: Callable[[Expr], Expr]) -> Expr:
    """An expression with values for its iterators; `place` simplifies an index."""

    def load(item: ir.TensorLoad, mutator: Any) -> Expr:
        return tirx.BufferLoad(item.source, [place(renamed(mutator.mutate(i), values)) for i in item.indices])

    return renamed(mutated(code, {ir.TensorLoad: load}), values)


class Indices:
    """Indices of a product, whose loops' bounds are known where they are simplified."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.index: str = str(product.stage.iters[0].var.ty)
        self.dtype: str = product.dtype
        self.m: int = product.size(product.m)
        self.n: int = product.size(product.n)
        self.k: int = product.size(product.k)
        self.analyzer: sym.Analyzer = sym.Analyzer()

    def loop(self, extent: int, body: Callable[[Expr], tirx.Stmt], kind: int = SERIAL, name: str = "i") -> tirx.Stmt:
        """`codegen.loop`."""
        return loop(extent, self._bound(extent, body), kind=kind, dtype=self.index, name=name)

    def loop_to(
        self, end: Expr, most: int, body: Callable[[Expr], tirx.Stmt], kind: int = SERIAL, name: str = "i"
    ) -> tirx.Stmt:
        """A loop to an end that varies, and is `most` at most."""
        found, end = self.loop(most, body, kind, name), self.simple(end)
        if isinstance(end, tirx.IntImm) and int(end) == most:
            return found
        if isinstance(found, tirx.For):
            return tirx.For(found.loop_var, 0, end, found.kind, found.body)
        return tirx.IfThenElse(end > 0, found, None)

    def vector(self, width: int, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """`codegen.lanes`."""
        return lanes(width, self._bound(width, body), dtype=self.index)

    def _bound(self, extent: int, body: Callable[[Expr], tirx.Stmt]) -> Callable[[Expr], tirx.Stmt]:
        """The body, before which the analyzer learns that the index is less than the extent."""

        def of(index: Expr) -> tirx.Stmt:
            if isinstance(index, tirx.Var):
                self.analyzer.bind(index, ir.Range(0, self.number(extent)))
            return body(index)

        return of

    def number(self, value: int) -> Expr:
        """A number among the indices."""
        return tirx.IntImm(self.index, value)

    def indices(self, axes: Axes, number: Expr) -> dict[int, Expr]:
        """The index of each of some axes, at a number that counts through them in row-major order."""
        return dict(zip(axes, unravelled(number, self.product.shape(axes)), strict=True))

    def at(self, axes: Axes, number: Expr) -> dict[int, Expr]:
        """`indices`, simplified."""
        return {axis: self.simple(part) for axis, part in self.indices(axes, number).items()}

    def simple(self, index: Expr) -> Expr:
        """An index, simplified by what is known of the loops."""
        return self.analyzer.simplify(index)

    def neighbour(self, index: Expr) -> Expr:
        """An index, simplified if no divisions are left: else TVM finds, in the whole address, that they cancel out."""
        found = self.simple(index)
        return index if found_in(found, tirx.FloorDiv, tirx.FloorMod) else found

    def flat(self, axes: Sequence[int], names: Names) -> Expr:
        """The number of an index of some axes."""
        found: Expr = self.number(0)
        for axis in axes:
            found = found * self.product.extents[axis] + names[axis]
        return self.simple(found)

    def element(self, operand: Operand, names: Names) -> Expr:
        """A factor at an index of the product."""
        own = {v.var: names.get(i, self.number(0)) for i, v in enumerate(self.product.stage.iters)}
        return placed(operand.value, own, self.simple)

    def array(self, shape: Sequence[int], name: str, scope: str = "global") -> Any:
        """An array of the product's numbers."""
        return array(shape, self.dtype, name, scope)

