"""Products, C[m, n] = sum over k of A(m, k) B(k, n), recognised from the expression of a stage. A and B are whatever
expressions the stage multiplies: so all four transposes, batches, convolutions and both their gradients are products,
and so is an array with itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from . import common
from .codegen import unravelled
from .stages import Expr, Stage, extents

Axes = tuple[int, ...]
"""Some iterators of a stage, as positions among them."""


@dataclass(frozen=True)
class Product:
    """A stage that is a product: its factors, and what each of its iterators is for.

    Attributes:
        a, b: the factors; b is the one that columns run along.
        batch: iterators of results that both factors have, or neither.
        m: those that A alone has, the rows.
        n: those that B alone has, the columns: the last of C's axes among them.
        k: those of the terms.
    """

    stage: Stage
    a: Expr
    b: Expr
    batch: Axes
    m: Axes
    n: Axes
    k: Axes

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """The extents of some iterators."""
        return extents(self.stage.iters[i] for i in axes)

    def size(self, axes: Axes) -> int:
        """Their product."""
        return math.prod(self.shape(axes))

    def last(self, axes: Axes) -> int | None:
        """The last of some iterators that has more than one value; None where there is none."""
        return next((i for i in reversed(axes) if int(self.stage.iters[i].dom.extent) > 1), None)

    def at(self, places: Mapping[Axes, Expr]) -> dict[ir.Var, Expr]:
        """The value of each iterator, from one index for each group of them, in row-major order."""
        found: dict[ir.Var, Expr] = {}
        for axes, place in places.items():
            indices = unravelled(place, self.shape(axes))
            found |= {self.stage.iters[i].var: index for i, index in zip(axes, indices, strict=True)}
        return found

    def strides(self, factor: Expr) -> Sequence[int] | None:
        """Elements stepped over in a factor's memory when an iterator advances; None for a factor of several loads, and
        where that varies."""
        found: list[ir.TensorLoad] = []
        tvm_ffi.structural_walk(factor, (ir.TensorLoad, found.append))
        return common.strides_of(self.stage.block, found[0].source, found[0].indices) if len(found) == 1 else None


def product_of(stage: Stage) -> Product | None:
    """The stage as a product whose columns run along the last axis of its result; None where it is none."""
    value, iters = stage.value, stage.iters
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    if not isinstance(value.a, ir.TensorLoad) or not value.a.source.same_as(stage.buffer):
        return None
    reads = [set(tirx.analysis.undefined_vars(factor)) for factor in (value.b.a, value.b.b)]
    spatial = [i for i, v in enumerate(iters) if v.iter_type == tirx.IterVar.DataPar]
    used = {i: tuple(iters[i].var in read for read in reads) for i in spatial}
    last = next((i for i in reversed(spatial) if int(iters[i].dom.extent) > 1), None)
    if last is None or used[last] in ((True, True), (False, False)):
        return None
    a, b = (value.b.a, value.b.b) if used[last] == (False, True) else (value.b.b, value.b.a)
    m = tuple(i for i in spatial if used[i] == used[last][::-1])
    n = tuple(i for i in spatial if used[i] == used[last])
    batch = tuple(i for i in spatial if i not in m and i not in n)
    return Product(stage, a, b, batch, m, n, tuple(i for i in range(len(iters)) if i not in spatial))
