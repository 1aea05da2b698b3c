"""What the iterators of a contraction are for, found from what is read and written, not from names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvm import s_tir, tirx

LONG_SUM = 64  # additions beside which storing a tile by its columns weighs little


@dataclass(frozen=True)
class Roles:
    """Block iterators of a contraction by what they are for, as positions among the block's iterators."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: int  # which read is A, the operand that m runs over; the other is B
    axes: tuple[tuple[int, ...], ...]  # what each read is indexed by
    contiguous: tuple[int, ...]  # the axis along which each read is contiguous in memory, -1 if there is none
    extents: tuple[int, ...]

    def size(self, axes: tuple[int, ...]) -> int:
        """The product of the extents of `axes`."""
        return math.prod(self.extents[axis] for axis in axes)


def roles(block: s_tir.SBlock) -> Roles | None:
    """What each iterator of `C[...] += A[...] * B[...]` is for; None where the block is something else.

    n is the run of C's last axes that one operand reads and the other does not, so that vectors of C are
    contiguous; further axes of that operand alone, and axes that both read, are batches.
    """
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    product = store.value.b
    if not isinstance(product, tirx.Mul) or len(block.reads) != 2:
        return None
    loads = [product.a, product.b]
    if not all(hasattr(load, "indices") for load in loads):
        return None
    if not loads[0].source.same_as(block.reads[0].source):
        return None
    variables = [iv.var for iv in block.iter_vars]
    reduced = [iv.iter_type == tirx.IterVar.CommReduce for iv in block.iter_vars]
    used = [[v in _variables(list(load.indices)) for v in variables] for load in loads]
    spatial = [i for i in range(len(variables)) if not reduced[i]]
    k = tuple(i for i in range(len(variables)) if reduced[i])
    extents = tuple(int(iv.dom.extent) for iv in block.iter_vars)
    if len(store.indices) != len(spatial) or not all(
        extents[i] == 1 or index.same_as(variables[i])
        for index, i in zip(store.indices, spatial, strict=True)
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
    axes = tuple(tuple(i for i in range(len(variables)) if reads[i]) for reads in used)
    return Roles(batch, m, tuple(n), k, 1 - b, axes, tuple(_contiguous(x, variables) for x in loads), extents)


def turned(r: Roles, lanes: int) -> Roles:
    """The transposed product, C^T = B^T A^T, where A too lies ready for vectors and fewer of them are needed.

    The tile is then stored column by column, which is little work beside a long sum.
    """
    m, n = r.size(r.m), r.size(r.n)
    if r.batch or r.contiguous[r.a] != r.m[-1] or r.size(r.k) < LONG_SUM:
        return r

    def waste(columns: int) -> float:
        return -(-columns // lanes) * lanes / columns

    if waste(n) <= 1.02 * waste(m):
        return r
    return replace(r, m=r.n, n=r.m, a=1 - r.a)


def _fuse(r: Roles, axes: tuple[int, ...], variables: dict) -> tirx.PrimExpr:
    """One index running over several axes in row-major order."""
    index = 0
    for axis in axes:
        index = index * r.extents[axis] + variables.get(axis, 0)  # an axis of extent 1 is not always read
    return index


def index_map(r: Roles, axes: list[int], last: list[tuple[int, ...]]) -> tirx.IndexMap:
    """From iterators `axes` of the contraction to (those of the batch..., one fused index per group of `last`)."""

    def fused(*given):
        variables = dict(zip(axes, given, strict=True))
        return [variables[i] for i in axes if i in r.batch] + [_fuse(r, group, variables) for group in last]

    return tirx.IndexMap.from_func(fused, ndim=len(axes), index_dtype="int32")


def _variables(indices: list) -> set:
    found: set = set()
    for index in indices:
        found |= set(tirx.analysis.undefined_vars(index))
    return found


def _contiguous(load: tirx.PrimExpr, variables: list) -> int:
    """The axis whose next value is read from the next address: the last index is that axis plus others."""
    found = _variables([load.indices[-1]])
    own = [i for i, v in enumerate(variables) if v in found]
    return own[-1] if own and load.indices[-1].same_as(variables[own[-1]]) else -1
