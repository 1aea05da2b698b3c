"""Products, C[m, n] = sum over k of A(m, k) B(k, n), recognised from the expression of a stage, not from names. A and B
are whatever expressions the stage multiplies: so all four transposes, batches, convolutions and both their gradients
are products, and so is an array with itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx

from .. import common
from ..codegen import unravelled
from ..stages import Expr, Stage, extents, loads_of

Axes = tuple[int, ...]
"""Some iterators of a stage, as positions among them."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A factor of a product: its expression, and the elements between an iterator's next values; None for several
    loads, and where that varies."""

    value: Expr
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Product:
    """A stage that is a product, and its iterators: rows `m` of A alone, columns `n` of B alone, terms `k`, the `batch`
    of both or neither."""

    stage: Stage
    a: Operand
    b: Operand
    batch: Axes
    m: Axes
    n: Axes
    k: Axes

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Of all iterators."""
        return extents(self.stage.iters)

    @cached_property
    def dtype(self) -> str:
        """Of the results."""
        return str(self.stage.buffer.dtype)

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many batches there are, rows, columns and terms."""
        return self.size(self.batch), self.size(self.m), self.size(self.n), self.size(self.k)

    def size(self, axes: Axes) -> int:
        """The product of some iterators' extents."""
        return math.prod(map(self.extents.__getitem__, axes))

    def last(self, axes: Axes) -> int:
        """The last of some iterators that has more than one value; the last where there is none."""
        return next((i for i in reversed(axes) if self.extents[i] > 1), axes[-1])

    def at(self, places: Mapping[Axes, Expr]) -> dict[ir.Var, Expr]:
        """The value of each iterator, from one index for each group of them, in row-major order."""
        found: dict[ir.Var, Expr] = {}
        for axes, place in places.items():
            indices = unravelled(place, [self.extents[i] for i in axes])
            found |= {self.stage.iters[i].var: index for i, index in zip(axes, indices, strict=True)}
        return found


def product_of(stage: Stage) -> Product | None:
    """The stage as a product whose columns run along the last axis of its result; None where it is none."""
    value = stage.value.b if isinstance(stage.value, tirx.Add) and stage.reduced else None
    if not isinstance(value, tirx.Mul) or not stage.is_plain:
        return None
    spatial = [i for i, v in enumerate(stage.iters) if v.iter_type == tirx.IterVar.DataPar]
    k = tuple(i for i in range(len(stage.iters)) if i not in spatial)
    used = [_axes(factor, stage) for factor in (value.a, value.b)]
    long = [i for i in spatial if i in used[0] | used[1]]
    wide = [i for i in k if int(stage.iters[i].dom.extent) > 1]
    if not long or not all(i in own for i in wide for own in used) or long[-1] in used[0] & used[1]:
        return None
    b = 1 if long[-1] in used[1] else 0
    m, n = ([i for i in long if i in used[one] and i not in used[1 - one]] for one in (1 - b, b))
    batch = [i for i in spatial if i not in m and i not in n]
    operands = [_operand(factor, stage) for factor in (value.a, value.b)]
    return Product(stage, operands[1 - b], operands[b], tuple(batch), tuple(m), tuple(n), k)


def _axes(factor: Expr, stage: Stage) -> set[int]:
    """The iterators of more than one value that occur in a factor; in a load whose indices are simplified."""
    read: Sequence[Expr] = [factor]
    if isinstance(factor, ir.TensorLoad):
        read = list(map(common.analyzer_of(stage.iters).simplify, factor.indices))
    found = {var for one in read for var in tirx.analysis.undefined_vars(one)}
    return {i for i, v in enumerate(stage.iters) if v.var in found and int(v.dom.extent) > 1}


def _operand(factor: Expr, stage: Stage) -> Operand:
    loads = loads_of([factor])
    if len(loads) != 1:
        return Operand(factor)
    return Operand(factor, common.strides_of(stage.block, loads[0].source, loads[0].indices))
