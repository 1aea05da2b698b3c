"""Images with their borders of zeros, which a convolution reads through windows: they are made before the loops that
read them, those of one batch after another where a thread has whole batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from tvm import ir, sym, tirx

from .. import common
from ..codegen import PARALLEL, SERIAL, array, lanes, unravelled
from ..common import SHORT, divisor, is_branch, reads, renamed, with_loads
from ..products import Product
from ..stages import Stage, extents, loads_of


@dataclass(frozen=True)
class Images:
    """Images that a stage makes in a buffer before a product reads them: all, or those at one index of some axes of the
    product, at which iterators of the stage are `fixed`."""

    stage: Stage
    buffer: Any
    fixed: Mapping[int, int]

    def of_batch(self, reader: Product) -> tuple[Images, Product] | None:
        """The images at one index of a product's batch, and the product that reads them; None where that cannot be."""
        iters, sides = reader.stage.iters, (reader.a, reader.b)
        unit = {v.var: tirx.IntImm(v.var.ty, 0) for v in iters if int(v.dom.extent) == 1}
        simple = sym.Analyzer().simplify
        loads = [load for load in loads_of(one.value for one in sides) if load.source.same_as(self.buffer)]
        places = [[simple(renamed(index, unit)) for index in load.indices] for load in loads]
        batch = {axis: iters[axis].var for axis in reader.batch}
        fixed: dict[int, int] = {}
        for i in range(len(self.stage.iters)):
            for axis, var in batch.items():
                if all(place[i].same_as(var) for place in places):
                    fixed[i] = axis
            if i not in fixed and any(reads(place[i], var) for place in places for var in batch.values()):
                return None
        free = [i for i in range(len(self.stage.iters)) if i not in fixed]
        shape = [int(self.stage.iters[i].dom.extent) for i in free]
        own = array(shape, self.buffer.dtype, self.buffer.name)

        def load(item: ir.TensorLoad) -> Any:
            return tirx.BufferLoad(own, [item.indices[i] for i in free]) if item.source.same_as(self.buffer) else None

        if not fixed or len(free) < 2:
            return None
        a, b = (replace(side, value=with_loads(side.value, load)) for side in sides)
        return Images(self.stage, own, fixed), replace(reader, a=a, b=b)

    def laid(self, loop: Any, index: Mapping[int, Any], most: int, parallel: bool = False) -> tirx.Stmt:
        """The loops that make the images, at an `index` of those axes. Each plane, of the last two axes, is cleared,
        and what is within its borders copied, up to `most` elements at a time; others are computed one by one."""
        stage, buffer, fixed = self.stage, self.buffer, {i: index[axis] for i, axis in self.fixed.items()}
        *outer, y, x = free = [i for i in range(len(stage.iters)) if i not in fixed]
        sizes, (borders, exact) = extents(stage.iters), _borders(stage)
        inside = {i: borders[i] if exact else (0, sizes[i]) for i in free}
        (top, height), (left, width) = ((low, high - low) for low, high in (inside[y], inside[x]))
        zero, value = tirx.const(0, str(buffer.dtype)), stage.value.args[1] if exact else stage.value
        step = (divisor(width, 1, most) or 1) if exact else 1
        step = step if step >= SHORT else 1

        def store(what: Any, at: Mapping[int, Any]) -> tirx.Stmt:
            names = {stage.iters[i].var: place for i, place in {**fixed, **at}.items()}
            return tirx.BufferStore(buffer, renamed(what, names), [at[i] for i in free])

        def part(at: Mapping[int, Any], i: Any, start: Any) -> tirx.Stmt:
            index = str(stage.iters[x].var.ty)
            return lanes(step, lambda lane: store(value, {**at, y: top + i, x: left + start + lane}), index)

        def plane(number: Any) -> tirx.Stmt:
            at = dict(zip(outer, unravelled(number, [sizes[i] for i in outer]), strict=True))
            copy = loop(height, lambda i: loop(width // step, lambda j: part(at, i, j * step)))
            if not exact:
                return copy
            clear = loop(sizes[y], lambda i: loop(sizes[x], lambda j: store(zero, {**at, y: i, x: j})))
            within = [low <= at[i] for i, (low, _) in inside.items() if i in at and low > 0]
            within += [at[i] < high for i, (_, high) in inside.items() if i in at and high < sizes[i]]
            return tirx.SeqStmt([clear, tirx.IfThenElse(tirx.all(*within), copy, None) if within else copy])

        return loop(math.prod(sizes[i] for i in outer), plane, PARALLEL if parallel else SERIAL)


@lru_cache(8)
def _borders(stage: Stage) -> tuple[dict[int, tuple[int, int]], bool]:
    """For each iterator of a stage that sets something into zeros, within what it has that, by the conditions on that
    iterator alone; and whether those are all. Nothing of other stages."""
    if not (isinstance(stage.value, ir.Call) and _is_set_into_zeros(stage.value)):
        return {}, False
    parts, simplify = common.conjuncts(stage.value.args[0]), sym.Analyzer().simplify
    found = dict[int, tuple[int, int]]()
    exact = all(len(tirx.analysis.undefined_vars(part)) == 1 for part in parts)
    for i, v in enumerate(stage.iters):
        own = [part for part in parts if reads(part, v.var) and len(tirx.analysis.undefined_vars(part)) == 1]
        first, end, others = common.bounds_of(own, v)
        at = partial(tirx.IntImm, v.var.ty)
        inside = [n for n in range(first, end) if all(simplify(renamed(part, {v.var: at(n)})) for part in others)]
        exact = exact and bool(inside) and inside[-1] - inside[0] + 1 == len(inside)
        if inside:
            found[i] = (inside[0], inside[-1] + 1)
    return found, exact


def _is_set_into_zeros(call: ir.Call) -> bool:
    zero = call.args[2] if is_branch(call) else None
    return isinstance(zero, (tirx.IntImm, tirx.FloatImm)) and float(zero.value) == 0
