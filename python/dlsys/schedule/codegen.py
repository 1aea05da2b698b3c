"""Straight-line code: stages joined in one loop along vectors, in which every value has a register.

Results are stored after everything is read, so an output may lie on an input that is read at the index that is written.
A value is an array of one vector, which LLVM keeps in registers: TVM's simplifier would put what a plain variable
stands for in the place of each of its uses, and code would grow without bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, s_tir, sym, tirx

from ..compute.loops import sequence as sequence  # for the rules too
from ..compute.loops import unravelled as unravelled
from .common import Structure, found_in, is_branch, mutated, renamed
from .stages import Expr, Stage

SERIAL: int = tirx.ForKind.SERIAL
UNROLLED: int = tirx.ForKind.UNROLLED
PARALLEL: int = tirx.ForKind.PARALLEL
VECTORIZED: int = tirx.ForKind.VECTORIZED

Values = Callable[[Expr], "Expr | None"]
"""From a load to the value that stands for it, None where it is to be loaded."""


def array(shape: Sequence[int], dtype: Any, name: str, scope: str = "global") -> Any:
    """An array whose elements, as those of what is given, lie at multiples of 4 bytes."""
    return tirx.decl_buffer(tuple(shape), str(dtype), name, scope=scope, data_alignment=4, layout=None)


class VectorCode:
    """Code for some neighbouring indices at once: a `width` of lanes, and statements `before` the loop over these."""

    scope = "global"  # of the arrays that hold values

    def __init__(self, width: int, dtype: str = "int32") -> None:
        """`dtype`: of the lane."""
        self.width = width
        self.lane: tirx.Var = tirx.Var("lane", dtype)
        self.before: list[tirx.Stmt] = []
        self._own: set[Any] = set()
        self._allocated: list[tirx.Stmt] = []
        self._computed: list[tirx.Stmt] = []
        self._stores: list[tirx.Stmt] = []
        self._known: dict[Any, Expr] = {}
        self._analyzer = sym.Analyzer()
        self._analyzer.bind(self.lane, ir.Range(0, tirx.IntImm(dtype, width)))

    def value(self, expression: Expr) -> Expr:
        """The expression, computed once and kept, equal ones once; of booleans as integers, for TVM's vectors."""
        kept = isinstance(expression, ir.TensorLoad) and expression.source in self._own
        if kept or isinstance(expression, (tirx.IntImm, tirx.FloatImm)):
            return expression
        if (key := Structure(expression)) not in self._known:
            is_bool, name = str(expression.ty) == "bool", f"value{len(self._computed)}"
            stored = expression.astype("int8") if is_bool else expression
            buffer = tirx.decl_buffer((self.width,), str(stored.ty), name, scope=self.scope)
            self._own.add(buffer)
            self._allocated.append(tirx.AllocBuffer(buffer))
            self._computed.append(tirx.BufferStore(buffer, stored, [self.lane]))
            found = tirx.BufferLoad(buffer, [self.lane])
            self._known[key] = found != tirx.const(0, "int8") if is_bool else found
        return self._known[key]

    def evaluate(self, expression: Expr, iters: dict[Any, Expr], values: Values) -> Expr:
        """The expression with its iterators replaced, and its loads where `values` knows them; others are values, but
        for those that a condition guards, which stay where they are."""
        names, guarded = dict(iters), False

        def let(item: tirx.Let, mutator: Any) -> Expr:
            bound = mutator.mutate(item.value)
            names[item.var] = tirx.Var(item.var.name, item.var.ty)  # the expression may be copied many times
            return tirx.Let(names[item.var], bound, mutator.mutate(item.body))

        def load(item: ir.TensorLoad, mutator: Any) -> Expr:
            indices = [self._analyzer.simplify(mutator.mutate(index)) for index in item.indices]
            item = tirx.BufferLoad(item.source, indices)
            found = values(item)
            return found if found is not None else item if guarded else self.value(item)

        def call(item: ir.Call, mutator: Any) -> Expr:
            nonlocal guarded
            before, guarded = guarded, guarded or is_branch(item)
            found = mutator.default_mutate(item)
            guarded = before
            return found

        kinds = {tirx.Let: let, ir.TensorLoad: load, ir.Call: call, ir.Var: lambda item, _: names.get(item, item)}
        return self.named(mutated(expression, kinds))

    def named(self, expression: Expr) -> Expr:
        """The expression, in which what has a name is a value, but for what one side of a choice alone computes."""
        if not found_in(expression, tirx.Let):
            return expression
        names: dict[Any, Expr] = {}

        def let(item: tirx.Let, mutator: Any) -> Expr:
            names[item.var] = self.value(mutator.mutate(item.value))
            return mutator.mutate(item.body)

        def call(item: ir.Call, mutator: Any) -> Expr:
            return renamed(item, names) if is_branch(item) else mutator.default_mutate(item)

        choice, var = lambda item, _: renamed(item, names), lambda item, _: names.get(item, item)
        return mutated(expression, {tirx.Let: let, tirx.Select: choice, ir.Call: call, ir.Var: var})

    def compute(self, stages: Sequence[Stage], place: Sequence[Expr], values: dict[Any, Expr], kept: set[Any]) -> None:
        """Stages of one domain at an index, by the `values` of buffers, which get theirs. Stores those `kept`."""
        for stage in stages:
            names = {v.var: at for v, at in zip(stage.spatial, place, strict=True)}
            if stage.buffer not in values:
                found = self.evaluate(stage.value, names, lambda load: values.get(load.source))
                values[stage.buffer] = self.value(found)
            if stage.buffer in kept:
                self.store(stage.buffer, values[stage.buffer], [renamed(i, names) for i in stage.indices])

    def equal(self, a: Expr, b: Expr) -> bool:
        """Whether two indices are the same."""
        found = self._analyzer.simplify(a - b)
        return isinstance(found, tirx.IntImm) and int(found) == 0

    def store(self, buffer: ir.Var, value: Expr, indices: Sequence[Expr]) -> None:
        """Stores a value at an index, after all values are computed."""
        found = [self._analyzer.simplify(index) for index in indices]
        self.put(tirx.BufferStore(buffer, value, found))

    def put(self, store: tirx.BufferStore) -> None:
        """Adds a store as it is."""
        self._stores.append(tirx.BufferStore(store.buffer, self.named(store.value), store.indices))

    def add_to(self, sums: ir.Var, combine: Callable[[Expr, Expr], Expr], term: Expr) -> None:
        """Combines an array of the width with a term a lane."""
        value = combine(tirx.BufferLoad(sums, [self.lane]), term)
        self._computed.append(tirx.BufferStore(sums, value, [self.lane]))

    def loop(self) -> tirx.Stmt:
        """The code, as a loop over the lanes."""
        body, kind = sequence([*self._computed, *self._stores]), SERIAL if self.width == 1 else VECTORIZED
        along = tirx.For(self.lane, 0, tirx.IntImm(self.lane.ty, self.width), kind, body)
        return sequence([*self._allocated, *self.before, along])


def loop(
    extent: int,
    body: Callable[[Expr], tirx.Stmt],
    parallel: bool = False,
    kind: int = tirx.ForKind.SERIAL,
    dtype: str = "int32",
    name: str = "i",
) -> tirx.Stmt:
    """`body` for each index below the extent, which has a name; of one index without a loop."""
    if extent == 1:
        return body(tirx.IntImm(dtype, 0))
    index = tirx.Var(name, dtype)
    kind = tirx.ForKind.PARALLEL if parallel else kind
    return tirx.For(index, 0, tirx.IntImm(dtype, extent), kind, body(index))


def each(shape: Sequence[int], body: Callable[[list[Expr]], tirx.Stmt], dtype: str = "int32") -> tirx.Stmt:
    """`body` for each index of a shape."""
    return loop(math.prod(shape), lambda index: body(unravelled(index, shape)), dtype=dtype)


def lanes(width: int, body: Callable[[Expr], tirx.BufferStore], dtype: str = "int32") -> tirx.Stmt:
    """The stores of a vector's lanes; what has a name in what they store is computed before."""
    code = VectorCode(width, dtype)
    code.put(body(code.lane))
    return code.loop()


def cut(step: Expr, extent: int, width: int, body: Callable[[int], tirx.Stmt]) -> tirx.Stmt:
    """`body` of a step's width: the last of an extent in steps may be narrower."""
    whole, rest = divmod(extent, width)
    if not (rest and whole):
        return body(width if whole else rest)
    return tirx.IfThenElse(step < whole, body(width), body(rest))


def in_steps(
    extent: int,
    width: int,
    body: Callable[[Expr, int], tirx.Stmt],
    dtype: str = "int32",
    kind: int = tirx.ForKind.SERIAL,
) -> tirx.Stmt:
    """`body` of the start and the width of each step of an extent; the last one has what is left."""
    whole, rest = divmod(extent, width)
    steps = [loop(whole, lambda i: body(i * width, width), kind=kind, dtype=dtype)] if whole else []
    return sequence([*steps, *([body(tirx.IntImm(dtype, whole * width), rest)] if rest else [])])


def block_of(name: str, body: tirx.Stmt) -> tirx.Stmt:
    """A block of a name, without iterators, around finished loops."""
    realized = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], name, body))
    # in a loop of its own: TVM prints a block alone within another, named root
    return tirx.For(tirx.Var("once", "int32"), 0, 1, tirx.ForKind.SERIAL, realized)
