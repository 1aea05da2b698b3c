"""What the iterators of a contraction are for, found from what is read and written, not from names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import ir, sym, tirx

from .common import strides_of
from .stages import Stage
from .stages import extents as sizes

LONG_SUM = 64  # additions beside which storing a tile by its columns weighs little
CONFLICT = 512  # elements; rows a multiple of that apart share few lines of L1, so turning many of them is slow


@dataclass(frozen=True)
class Roles:
    """Block iterators of a contraction by what they are for, as positions among the block's iterators."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: int  # which read is A, the operand that m runs over; the other is B
    axes: tuple[tuple[int, ...], ...]  # what each read is indexed by, but for axes of one element
    windows: tuple[tuple[frozenset[int], ...], ...]  # axes that a read adds up in an index, as convolution's
    contiguous: tuple[int, ...]  # the axis along which each read is contiguous in memory, -1 if there is none
    extents: tuple[int, ...]
    panels: tuple[int, ...] = (0, 0)  # columns of the panels in which a read lies already, 0 where it does not
    strides: tuple[tuple[int, ...] | None, ...] = (None, None)  # of the reads' addresses, None where they vary

    def size(self, axes: tuple[int, ...]) -> int:
        """The product of the extents of `axes`."""
        return math.prod(self.extents[axis] for axis in axes)

    def last(self, axes: tuple[int, ...]) -> int:
        """The last of `axes` along which there is more than one element; the last where there is none."""
        return next((axis for axis in reversed(axes) if self.extents[axis] > 1), axes[-1])

    def run(self, read: int, axes: tuple[int, ...]) -> int:
        """Elements over `axes`, in row-major order, up to where the step from one address of a read to the next
        changes."""
        strides, wide = self.strides[read], [axis for axis in axes if self.extents[axis] > 1] or [axes[-1]]
        run = self.extents[wide[-1]]
        for axis in reversed(wide[:-1]):
            if strides is None or strides[axis] != strides[wide[-1]] * run:
                return run
            run *= self.extents[axis]
        return run


def factors_of(stage: Stage) -> tuple[Any, Any]:
    """The two loads whose products a contraction adds up."""
    return stage.value.b.a, stage.value.b.b


def roles(stage: Stage) -> Roles | None:
    """The role of each iterator of `C[...] += A[...] * B[...]`; None where the stage is something else.

    n is the run of C's last axes that one operand reads and the other does not, so that vectors of C are
    contiguous; further axes of that operand alone, and axes that both read, are batches.
    """
    product = stage.value.b if isinstance(stage.value, tirx.Add) and stage.reduced else None
    if not isinstance(product, tirx.Mul) or not all(isinstance(x, ir.TensorLoad) for x in (product.a, product.b)):
        return None
    loads = factors_of(stage)
    variables = [iv.var for iv in stage.iters]
    reduced = [iv.iter_type == tirx.IterVar.CommReduce for iv in stage.iters]
    extents = sizes(stage.iters)
    reads = [_indices(load, stage.iters) for load in loads]
    axes = [_axes(read, variables) for read in reads]
    used = [[i in own for i in range(len(variables))] for own in axes]
    spatial = [i for i in range(len(variables)) if not reduced[i]]
    k = tuple(i for i in range(len(variables)) if reduced[i])
    if len(stage.indices) != len(spatial) or not all(
        extents[i] == 1 or index.same_as(variables[i])
        for index, i in zip(stage.indices, spatial, strict=True)
    ):
        return None
    long = [i for i in spatial if used[0][i] or used[1][i]]  # an axis of extent 1 may be read by neither
    if not k or not long or not all(used[0][i] and used[1][i] for i in k if extents[i] > 1):
        return None
    last = long[-1]
    if used[0][last] and used[1][last]:
        return None
    b = 0 if used[0][last] else 1
    n: list[int] = []
    for i in reversed(long):
        if not used[b][i] or used[1 - b][i]:
            break
        n.insert(0, i)
    m = tuple(i for i in long if used[1 - b][i] and not used[b][i])
    batch = tuple(i for i in spatial if i not in n and i not in m)
    windows = tuple(
        tuple(w for index in read if len(w := frozenset(_axes([index], variables)) - {*batch}) > 1) for read in reads
    )
    strides = [strides_of(stage.block, load.source, load.indices) for load in loads]
    panels = tuple(_panel(read, variables) for read in reads)
    contiguous = tuple(
        _contiguous(load, read, variables, batch, own) for load, read, own in zip(loads, reads, strides, strict=True)
    )
    return Roles(batch, m, tuple(n), k, 1 - b, tuple(axes), windows, contiguous, extents, panels, tuple(strides))


def turned(r: Roles, lanes: int) -> Roles:
    """The transposed product, C^T = B^T A^T, where A too lies ready for vectors and fewer of them are needed, or where
    both lie row by row of k, so that one has to be turned for vectors, and A is the smaller one.

    The tile is then stored column by column, which is little work beside a long sum.
    """
    m, n = r.size(r.m), r.size(r.n)
    if r.batch or r.size(r.k) < LONG_SUM:
        return r
    by_row = r.contiguous == (r.last(r.k), r.last(r.k))
    if by_row and m < n and (m <= 2 * lanes or r.size(r.k) % CONFLICT == 0):
        return replace(r, m=r.n, n=r.m, a=1 - r.a)
    if r.contiguous[r.a] != r.m[-1]:
        return r

    def waste(columns: int) -> float:
        return -(-columns // lanes) * lanes / columns

    if waste(n) <= 1.02 * waste(m):
        return r
    return replace(r, m=r.n, n=r.m, a=1 - r.a)


def over_windows(r: Roles) -> Roles:
    """The transposed product of a convolution: m runs over the windows, n over the operand that has none.

    The axis of k that shares an index with m's last one does not come last: two of its steps read the same
    elements for two rows, and the compiler, to load them once, would keep more of them than there are registers.
    """
    a, m = 1 - r.a, r.n
    beside = {i for window in r.windows[a] if m[-1] in window for i in window}
    k = [i for i in r.k if i not in beside]
    at = k.index(r.last(tuple(k))) if k else 0
    k[at:at] = [i for i in r.k if i in beside]
    return replace(r, m=m, n=r.m, k=tuple(k), a=a)


def _variables(indices: list) -> set:
    found: set = set()
    for index in indices:
        found |= set(tirx.analysis.undefined_vars(index))
    return found


def _indices(load: tirx.PrimExpr, iters: tuple[tirx.IterVar, ...]) -> list[tirx.PrimExpr]:
    """The indices of a load without the axes of one element."""
    analyzer = sym.Analyzer()
    for iv in iters:
        analyzer.bind(iv.var, tvm.ir.Range(0, iv.dom.extent))
    return [analyzer.simplify(index) for index in load.indices]


def _axes(indices: list, variables: list) -> tuple[int, ...]:
    """The axes that occur in `indices`."""
    found = _variables(indices)
    return tuple(i for i, v in enumerate(variables) if v in found)


def _contiguous(
    load: tirx.PrimExpr, indices: list, variables: list, batch: tuple[int, ...], strides: tuple[int, ...] | None
) -> int:
    """The axis, other than of a batch, whose next value is read from the next address: it alone is in the last index of
    more than one value."""
    last = [index for index, extent in zip(indices, load.source.shape, strict=True) if int(extent) > 1][-1:]
    own = [axis for axis in _axes(last, variables) if axis not in batch]
    if len(own) != 1 or (strides is not None and strides[own[0]] != 1):
        return -1
    return own[0] if strides is not None or last[0].same_as(variables[own[0]]) else -1


def _panel(indices: list, variables: list) -> int:
    """The columns of a panel, where an axis alone is split into one index and the last: n // 32 and n % 32."""
    last = indices[-1] if indices else None
    if not isinstance(last, tirx.FloorMod) or not any(last.a.same_as(v) for v in variables):
        return 0
    parts = [i for i in indices if isinstance(i, tirx.FloorDiv) and i.a.same_as(last.a)]
    return int(last.b) if any(int(part.b) == int(last.b) for part in parts) else 0
