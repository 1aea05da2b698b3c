"""A sum as the tiler sees it: axes that all accesses step through as one are a group, and each access has one stride a
group. Matrices in any order, batches, convolutions and their gradients differ in these numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import ir, sym, tirx

from .. import common
from ..codegen import SERIAL, lanes, loop
from ..common import renamed
from ..stages import Expr, Stage, extents, iterator
from ..target import Machine

PARALLEL_FLOP = 2_000_000  # about 20 us on one core; below, a parallel region costs more than it gives
ZERO = tirx.IntImm("int32", 0)


def placed(code: Expr, values: Mapping[Any, Expr], place: Callable[[Expr], Expr]) -> Expr:
    """An expression with values for its iterators; `place` simplifies an index."""

    def load(item: ir.TensorLoad, mutator: Any) -> Expr:
        return tirx.BufferLoad(item.source, [place(renamed(mutator.mutate(i), values)) for i in item.indices])

    return renamed(common.mutated(code, {ir.TensorLoad: load}), values)


def split(stage: Stage) -> tuple[Stage, dict[ir.Var, Expr]]:
    """The stage with two axes for one wherever a load divides its index by a number, as panels of weights do; and what
    stands for each of the old axes."""
    divided: dict[ir.Var, int] = {}
    for load in stage.loads():
        for found in common.found_in(load, tirx.FloorDiv, tirx.FloorMod):
            axis = next((v for v in stage.iters if found.a.same_as(v.var)), None)
            step = int(found.b) if isinstance(found.b, tirx.IntImm) else 0
            if axis is not None and 1 < step < int(axis.dom.extent) and int(axis.dom.extent) % step == 0:
                divided.setdefault(axis.var, step)
    if not divided:
        return stage, {v.var: v.var for v in stage.iters}
    iters, names = list[tirx.IterVar](), dict[ir.Var, Expr]()
    for v in stage.iters:
        if step := divided.get(v.var, 0):
            outer, inner = (iterator(v.var.name, v, n, v.iter_type) for n in (int(v.dom.extent) // step, step))
            iters += [outer, inner]
            names[v.var] = outer.var * step + inner.var
        else:
            iters.append(v)
            names[v.var] = v.var
    simplify = common.analyzer_of(iters).simplify
    indices = tuple(simplify(renamed(index, names)) for index in stage.indices)
    return replace(stage, iters=tuple(iters), value=placed(stage.value, names, simplify), indices=indices), names


class Nest:
    """A sum of products, and its axes in groups.

    Attributes:
        whole: the sum as the function has it.
        stage: the sum, whose axes are split where loads divide them; `names` has what stands for each old axis.
        loads: the loads of a term.
        sizes: the extent of each group; those of the results come first, `results` of them, then those of the terms.
        strides: of each load, and last of the result: elements between a group's next values.
        is_linear: whether there are such strides, and a group of results and one of terms.
        order: the groups of terms as loops, outermost first.
        bytes: of an element of the result.
        lanes: elements of a vector.
    """

    def __init__(self, stage: Stage, machine: Machine) -> None:
        self.machine, self.whole, (self.stage, self.names) = machine, stage, split(stage)
        shape, kinds = extents(self.stage.iters), [v.iter_type for v in self.stage.iters]
        self.loads: list[Any] = self.stage.loads()
        places = [(load.source, load.indices) for load in self.loads] + [(self.stage.buffer, self.stage.indices)]
        accesses = [common.strides_of(self.stage.block, *place) for place in places]
        spatial = [i for i, kind in enumerate(kinds) if kind == tirx.IterVar.DataPar]
        self.spatial = common.axes_of(shape, spatial, accesses)
        self.reduced = common.axes_of(shape, [i for i in range(len(shape)) if i not in spatial], accesses)
        self.results = len(self.spatial.sizes)
        self.sizes = [*self.spatial.sizes, *self.reduced.sizes]
        groups = (*self.spatial.strides, *self.reduced.strides)
        found = [[group[n] for group in groups] for n in range(len(accesses))]
        known = all(step is not None for steps in found for step in steps)
        self.is_linear: bool = known and 0 < self.results < len(self.sizes)
        self.strides: list[list[int]] = [[step or 0 for step in steps] for steps in found]
        self.order: list[int] = [*range(len(self.reduced.sizes))]
        self.terms = math.prod(self.reduced.sizes)
        self.dtype = str(self.stage.buffer.dtype)
        self.bytes = tvm.DataType(self.dtype).bits // 8
        self.lanes: int = machine.lanes(self.dtype)
        self.work = 2 * math.prod(shape)
        self.analyzer: sym.Analyzer = sym.Analyzer()

    def moves(self, load: int, groups: Sequence[int]) -> bool:
        """Whether a load moves along any of some groups."""
        return any(self.strides[load][g] != 0 for g in groups)

    @property
    def is_parallel(self) -> bool:
        """Whether threads share the sum."""
        return self.machine.threads > 1 and self.work >= PARALLEL_FLOP

    @property
    def is_read_once(self) -> bool:
        """Whether each element of an operand is in one term alone."""
        sources = [load.source for load in self.loads]
        return any(math.prod(map(int, source.shape)) >= math.prod(self.sizes) for source in sources)

    def order_terms(self, rows: Sequence[int]) -> None:
        """Puts the loops over terms that step as rows do, as a filter's taps do along an image's row, outside another
        one: the compiler would load what two rows have in common once, into more registers than there are."""
        terms = range(self.results, len(self.sizes))

        def meet(step: int, size: int, row: int) -> bool:
            """Whether so many steps of terms reach what a later row reads."""
            return step != 0 and row % step == 0 and 0 < row // step < size

        beside = [
            g
            for g in terms
            if any(meet(steps[g], self.sizes[g], steps[row]) for steps in self.strides[:-1] for row in rows)
        ]
        *outer, inner = [g for g in terms if g not in beside] or [terms[-1]]
        if beside and inner not in beside:
            self.order = [g - self.results for g in (*outer, *beside, inner)]

    # Indices

    def loop(self, extent: int, body: Callable[[Expr], tirx.Stmt], kind: int = SERIAL, name: str = "i") -> tirx.Stmt:
        """`codegen.loop`, whose index is known to be less than the extent."""
        return loop(extent, self._bound(extent, body), kind=kind, name=name)

    def loop_to(self, end: Expr, most: int, body: Callable[[Expr], tirx.Stmt], name: str = "i") -> tirx.Stmt:
        """A loop to an end that varies, and is `most` at most."""
        found, end = self.loop(most, body, name=name), self.simple(end)
        if isinstance(end, int) or (isinstance(end, tirx.IntImm) and int(end) == most):
            return found
        if isinstance(found, tirx.For):
            return tirx.For(found.loop_var, 0, end, found.kind, found.body)
        return tirx.IfThenElse(end > 0, found, None)

    def vector(self, width: int, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """`codegen.lanes`, whose lane is known to be less than the width."""
        return lanes(width, self._bound(width, body))

    def _bound(self, extent: int, body: Callable[[Expr], tirx.Stmt]) -> Callable[[Expr], tirx.Stmt]:
        def of(index: Expr) -> tirx.Stmt:
            if isinstance(index, tirx.Var):
                self.analyzer.bind(index, ir.Range(0, extent))
            return body(index)

        return of

    def simple(self, index: Expr) -> Expr:
        """An index, simplified by what is known of the loops."""
        return self.analyzer.simplify(index) if not isinstance(index, int) else index

    def neighbour(self, index: Expr) -> Expr:
        """An index, simplified if no divisions are left: else TVM finds, in the whole address, that they cancel out."""
        found = self.simple(index)
        return index if common.found_in(found, tirx.FloorDiv, tirx.FloorMod) else found

    def at(self, spatial: Sequence[Expr], terms: Sequence[Expr] = ()) -> dict[ir.Var, Expr]:
        """The value of each axis at an index of each group of results and of terms; 0 of terms that are not given."""
        found = self.spatial.index(spatial)
        if terms:
            found |= self.reduced.index(terms)
        return {v.var: found.get(i, ZERO) for i, v in enumerate(self.stage.iters)}
