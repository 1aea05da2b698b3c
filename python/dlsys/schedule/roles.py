"""What the iterators of a contraction are for, found from what is read and written, not from names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, sym, tirx
from tvm.s_tir.analysis import get_sblock_access_region

from .common import anew, renamed, rewritten, strides_of
from .stages import buffers, read_stages, with_nests

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


def roles(block: s_tir.SBlock) -> Roles | None:
    """The role of each iterator of `C[...] += A[...] * B[...]`; None where the block is something else.

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
    extents = tuple(int(iv.dom.extent) for iv in block.iter_vars)
    reads = [_indices(load, block.iter_vars) for load in loads]
    axes = [_axes(read, variables) for read in reads]
    used = [[i in own for i in range(len(variables))] for own in axes]
    spatial = [i for i in range(len(variables)) if not reduced[i]]
    k = tuple(i for i in range(len(variables)) if reduced[i])
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
    windows = tuple(
        tuple(w for index in read if len(w := frozenset(_axes([index], variables))) > 1) for read in reads
    )
    contiguous = tuple(_contiguous(load, read, variables) for load, read in zip(loads, reads, strict=True))
    panels = tuple(_panel(read, variables) for read in reads)
    strides = [strides_of(block, load.source, load.indices) for load in loads]
    return Roles(batch, m, tuple(n), k, 1 - b, tuple(axes), windows, contiguous, extents, panels, tuple(strides))


def apart(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[Any, Any]]:
    """The function with a product of an array with itself, x @ x, as one of two arrays, which `roles` can tell apart;
    and the parameter that stands for x there, with x. An array that is made on the way is made twice."""
    stages = read_stages(func) or []
    number = next((i for i, one in enumerate(stages) if one.reduced and _squared(one.value) is not None), None)
    if number is None:
        return func, {}
    source = _squared(stages[number].value)
    other = tirx.decl_buffer(source.shape, str(source.dtype), f"{source.name}_again", layout=None)

    def of_two(block: s_tir.SBlock) -> s_tir.SBlock:
        store, (a, b) = block.body, (block.body.value.b.a, block.body.value.b.b)
        value = tirx.Add(store.value.a, tirx.Mul(a, tirx.BufferLoad(other, b.indices)))
        found = tirx.BufferStore(store.buffer, value, store.indices)
        plain = s_tir.SBlock(block.iter_vars, [], [], block.name_hint, found, block.init)
        reads, writes, _ = get_sblock_access_region(plain, {x: x for x in buffers(found)})
        reads = [region for region in reads if not region.source.same_as(store.buffer)]
        return s_tir.SBlock(block.iter_vars, reads, writes, block.name_hint, found, block.init)

    nests = [one.loops for one in stages]
    nests[number] = rewritten(nests[number], s_tir.SBlock, of_two)
    made = next((one.loops for one in stages if one.buffer.same_as(source)), None)
    if made is not None:
        nests.insert(number, renamed(made, {source: other, **anew(made)}))
        return with_nests(func, nests, [other]), {}
    func = with_nests(func, nests)
    return tirx.PrimFunc([*func.params, other], func.body, func.ret_type, attrs=func.attrs), {other: source}


def joined(func: tirx.PrimFunc, given: Mapping[Any, Any]) -> tirx.PrimFunc:
    """The function without the parameters that stand for others: it reads those."""
    params = [param for param in func.params if param not in given]
    return tirx.PrimFunc(params, renamed(func.body, given), func.ret_type, attrs=func.attrs)


def _squared(value: Any) -> Any:
    """The array that both factors of an added product are read from; None where there is none."""
    product = value.b if isinstance(value, tirx.Add) else None
    if not isinstance(product, tirx.Mul):
        return None
    a, b = product.a, product.b
    loads = isinstance(a, tvm.ir.TensorLoad) and isinstance(b, tvm.ir.TensorLoad)
    return a.source if loads and a.source.same_as(b.source) else None


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


def _fuse(r: Roles, axes: tuple[int, ...], variables: dict) -> tirx.PrimExpr:
    """One index running over several axes in row-major order."""
    index = 0
    for axis in axes:
        index = index * r.extents[axis] + variables.get(axis, 0)  # an axis of extent 1 is not always read
    return index


def index_map(r: Roles, axes: list[int], last: list[tuple[int, ...]]) -> tirx.IndexMap:
    """From iterators `axes` of the contraction to (those of the batch..., one fused index per group of `last`)."""

    def fused(*given: Any) -> list[Any]:
        variables = dict(zip(axes, given, strict=True))
        return [variables[i] for i in axes if i in r.batch] + [_fuse(r, group, variables) for group in last]

    return tirx.IndexMap.from_func(fused, ndim=len(axes), index_dtype="int32")


def _variables(indices: list) -> set:
    found: set = set()
    for index in indices:
        found |= set(tirx.analysis.undefined_vars(index))
    return found


def axes_of(block: s_tir.SBlock, read: int) -> list[int]:
    """The axes of a contraction that index its operand `read`, each of which is an axis alone."""
    variables = [iv.var for iv in block.iter_vars]
    product = block.body.value.b
    load = (product.a, product.b)[read]
    return [next(i for i, v in enumerate(variables) if index.same_as(v)) for index in load.indices]


def _indices(load: tirx.PrimExpr, iters: list[tirx.IterVar]) -> list[tirx.PrimExpr]:
    """The indices of a load without the axes of one element."""
    analyzer = sym.Analyzer()
    for iv in iters:
        analyzer.bind(iv.var, tvm.ir.Range(0, iv.dom.extent))
    return [analyzer.simplify(index) for index in load.indices]


def _axes(indices: list, variables: list) -> tuple[int, ...]:
    """The axes that occur in `indices`."""
    found = _variables(indices)
    return tuple(i for i, v in enumerate(variables) if v in found)


def _contiguous(load: tirx.PrimExpr, indices: list, variables: list) -> int:
    """The axis whose next value is read from the next address: it alone is the last index of more than one value."""
    last = [index for index, extent in zip(indices, load.source.shape, strict=True) if int(extent) > 1][-1:]
    own = _axes(last, variables)
    return own[0] if own and last[0].same_as(variables[own[0]]) else -1


def _panel(indices: list, variables: list) -> int:
    """The columns of a panel, where an axis alone is split into one index and the last: n // 32 and n % 32."""
    last = indices[-1] if indices else None
    if not isinstance(last, tirx.FloorMod) or not any(last.a.same_as(v) for v in variables):
        return 0
    parts = [i for i in indices if isinstance(i, tirx.FloorDiv) and i.a.same_as(last.a)]
    return int(last.b) if any(int(part.b) == int(last.b) for part in parts) else 0
