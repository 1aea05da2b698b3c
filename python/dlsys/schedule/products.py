"""Products, C[m, n] = sum over k of A(m, k) B(k, n), recognised from the expression of a stage, not from names. A and B
are whatever expressions the stage multiplies: so all four transposes, batches, convolutions and both their gradients
are products, and so is an array with itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tvm
from tvm import ir, tirx

from . import common
from .codegen import unravelled
from .intrinsics import Intrinsic, term_of
from .stages import Expr, Stage, extents, loads_of

Axes = tuple[int, ...]
"""Some iterators of a stage, as positions among them."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A factor of a product: its expression, the iterators that it hangs on, and how it lies in memory.

    Attributes:
        windows: iterators that are added up in one of its indices, as a convolution's positions and taps are.
        strides: elements between an iterator's next values; None for several loads, and where that varies.
        contiguous: the iterator, other than of a batch, along which memory runs; -1 for none.
        panel: columns of the panels in which it lies already; 0 where it does not.
        place: 0 for the first factor of the term, 1 for the second.
    """

    value: Expr
    axes: Axes
    windows: tuple[frozenset[int], ...] = ()
    strides: tuple[int, ...] | None = None
    contiguous: int = -1
    panel: int = 0
    place: int = 0


@dataclass(frozen=True, eq=False)
class Product:
    """A stage that is a product, and its iterators: rows `m` of A alone, columns `n` of B alone, terms `k`, the `batch`
    of both or neither. `intrinsic`: the instruction for a step of groups of terms; None for a multiply-add."""

    stage: Stage
    a: Operand
    b: Operand
    batch: Axes
    m: Axes
    n: Axes
    k: Axes
    intrinsic: Intrinsic | None = None

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Of all iterators."""
        return extents(self.stage.iters)

    @cached_property
    def dtype(self) -> str:
        """Of the results."""
        return str(self.stage.buffer.dtype)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a result."""
        return tvm.DataType(self.dtype).bits // 8

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many batches there are, rows, columns and terms."""
        return self.size(self.batch), self.size(self.m), self.size(self.n), self.size(self.k)

    @cached_property
    def matrices(self) -> tuple[int, int]:
        """How many matrices A has, and B."""
        a, b = (tuple(axis for axis in self.batch if axis in one.axes) for one in (self.a, self.b))
        return self.size(a), self.size(b)

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """The extents of some iterators."""
        return tuple(self.extents[i] for i in axes)

    def size(self, axes: Axes) -> int:
        """Their product."""
        return math.prod(map(self.extents.__getitem__, axes))

    def last(self, axes: Axes) -> int:
        """The last of some iterators that has more than one value; the last where there is none."""
        return next((i for i in reversed(axes) if self.extents[i] > 1), axes[-1])

    def run(self, operand: Operand, axes: Axes) -> Axes:
        """The last of some iterators over which all steps between addresses of an operand are the same."""
        return tuple(common.contiguous({axis: self.extents[axis] for axis in axes}, [operand.strides])[-1])

    def at(self, places: Mapping[Axes, Expr]) -> dict[ir.Var, Expr]:
        """The value of each iterator, from one index for each group of them, in row-major order."""
        found: dict[ir.Var, Expr] = {}
        for axes, place in places.items():
            indices = unravelled(place, self.shape(axes))
            found |= {self.stage.iters[i].var: index for i, index in zip(axes, indices, strict=True)}
        return found

    def transposed(self) -> Product:
        """C^T = B^T A^T."""
        return replace(self, a=self.b, b=self.a, m=self.n, n=self.m)


def product_of(stage: Stage, in_runs: bool = False) -> Product | None:
    """The stage as a product whose columns run along the last axis of its result; None where it is none. `in_runs`:
    columns are only those last axes of the result that B alone has, contiguous in C; its others are a batch."""
    value = stage.value.b if isinstance(stage.value, tirx.Add) and stage.reduced else None
    found = (None, value.a, value.b) if isinstance(value, tirx.Mul) else term_of(value)
    if found is None or not stage.is_plain:
        return None
    spatial = [i for i, v in enumerate(stage.iters) if v.iter_type == tirx.IterVar.DataPar]
    k = tuple(i for i in range(len(stage.iters)) if i not in spatial)
    intrinsic, *factors = found
    reads = [_reads(factor, stage) for factor in factors]
    used = [set(_axes(read, stage)) for read in reads]
    long = [i for i in spatial if i in used[0] | used[1]]
    wide = [i for i in k if int(stage.iters[i].dom.extent) > 1]
    if not long or not all(i in own for i in wide for own in used) or long[-1] in used[0] & used[1]:
        return None
    b = 1 if long[-1] in used[1] else 0
    m, n = ([i for i in long if i in used[one] and i not in used[1 - one]] for one in (1 - b, b))
    if in_runs:
        n = [i for i in n if long[long.index(i) :] == n[n.index(i) :]]
    batch = [i for i in spatial if i not in m and i not in n]
    rows, columns = (replace(_operand(factors[one], reads[one], stage, batch), place=one) for one in (1 - b, b))
    return Product(stage, rows, columns, tuple(batch), tuple(m), tuple(n), k, intrinsic)


def _reads(factor: Expr, stage: Stage) -> list[Expr]:
    """The indices of a load without the iterators of one value; any other factor as it is."""
    if not isinstance(factor, ir.TensorLoad):
        return [factor]
    return list(map(common.analyzer_of(stage.iters).simplify, factor.indices))


def _axes(code: Sequence[Expr], stage: Stage) -> Axes:
    """The iterators of more than one value that occur in expressions."""
    found = {var for one in code for var in tirx.analysis.undefined_vars(one)}
    return tuple(i for i, v in enumerate(stage.iters) if v.var in found and int(v.dom.extent) > 1)


def _operand(factor: Expr, read: list[Expr], stage: Stage, batch: Sequence[int]) -> Operand:
    """A factor, whose indices are given without iterators of one value."""
    loads, axes = loads_of([factor]), _axes(read, stage)
    if len(loads) != 1:
        return Operand(factor, axes)
    strides = common.strides_of(stage.block, loads[0].source, loads[0].indices)
    if not isinstance(factor, ir.TensorLoad):
        return Operand(factor, axes, strides=strides)
    windows = (frozenset(_axes([index], stage)) - {*batch} for index in read)
    own = tuple(w for w in windows if len(w) > 1)
    return Operand(factor, axes, own, strides, _contiguous(factor, read, stage, batch, strides), _panel(read, stage))


def _contiguous(
    load: Expr, read: list[Expr], stage: Stage, batch: Sequence[int], strides: tuple[int, ...] | None
) -> int:
    """See `Operand`: that iterator alone is in the last index of more than one value."""
    last = [index for index, extent in zip(read, load.source.shape, strict=True) if int(extent) > 1][-1:]
    own = [axis for axis in _axes(last, stage) if axis not in batch]
    if len(own) != 1 or (strides is not None and strides[own[0]] != 1):
        return -1
    return own[0] if strides is not None or last[0].same_as(stage.iters[own[0]].var) else -1


def _panel(read: list[Expr], stage: Stage) -> int:
    """The columns of a panel, where an iterator alone is split into one index and the last: n // 32 and n % 32."""
    last = read[-1] if read else None
    if not isinstance(last, tirx.FloorMod) or not any(last.a.same_as(v.var) for v in stage.iters):
        return 0
    parts = [i for i in read if isinstance(i, tirx.FloorDiv) and i.a.same_as(last.a)]
    return int(last.b) if any(int(part.b) == int(last.b) for part in parts) else 0
