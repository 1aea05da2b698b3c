"""A function as its stages: what TE made of each formula, to be put together anew."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..compute.base import PART
from . import common
from .common import bound_once, renamed
from .varying import extent_of

Expr = Any  # of tvm.ir: a number at run time
_COMBINING = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)  # any order gives the same, but for rounding


@dataclass(frozen=True, eq=False)
class Stage:
    """A loop nest around one store: `buffer[indices] = value`, a reduction where `init` comes first; `part` is that of
    the function to which it belongs, see `compute.base.PART`."""

    name: str
    iters: tuple[tirx.IterVar, ...]
    buffer: ir.Var
    indices: tuple[Expr, ...]
    value: Expr
    init: Expr | None
    loops: tirx.Stmt
    part: int | None = None

    @property
    def block(self) -> s_tir.SBlock:
        """The block within the loops."""
        inner = self.loops
        while isinstance(inner, tirx.For):
            inner = inner.body
        return inner.block

    @property
    def spatial(self) -> list[tirx.IterVar]:
        """The iterators that are an index of the output."""
        return [v for v in self.iters if v.iter_type == tirx.IterVar.DataPar]

    @property
    def reduced(self) -> list[tirx.IterVar]:
        """The iterators of the terms."""
        return [v for v in self.iters if v.iter_type == tirx.IterVar.CommReduce]

    def with_value(self, value: Expr) -> Stage:
        """The stage with another value."""
        nest = nest_of(self.name, self.iters, self.buffer, self.indices, value, self.init, self.part)
        return replace(self, value=value, loops=nest)

    @property
    def is_plain(self) -> bool:
        """Whether a reduction adds terms to what it has, or the like."""
        own = isinstance(self.value, _COMBINING) and isinstance(self.value.a, ir.TensorLoad)
        return own and self.value.a.source.same_as(self.buffer)

    def with_made(self, made: Mapping[Any, Stage]) -> Stage:
        """The stage with the values of others in place; of a sum in its terms."""
        if not any(load.source in made for load in self.loads()):
            return self
        if self.is_plain:
            return self.with_value(type(self.value)(self.value.a, in_place(self.value.b, made)))
        return self.with_value(in_place(self.value, made))

    def loads(self) -> list[Expr]:
        """The loads of the value, but those of the stage's own buffer."""
        return [load for load in loads_of([self.value]) if not load.source.same_as(self.buffer)]


def loads_of(expressions: Iterable[Expr]) -> list[Expr]:
    """All loads in some expressions."""
    found: list[Expr] = []
    for expression in expressions:
        tvm_ffi.structural_walk(expression, (ir.TensorLoad, found.append))
    return found


Nests = list[tuple[tirx.Stmt, "Stage | None"]]
"""The loop nests of a function, each with its stage where that is to be written yet."""


def extents(iters: Iterable[tirx.IterVar]) -> tuple[int, ...]:
    """The iterators' extents."""
    return tuple(extent_of(v.dom.extent) for v in iters)


@lru_cache(8)  # rule after rule asks for those of the same function
def read_stages(func: tirx.PrimFunc) -> list[Stage] | None:
    """The stages of a function as TE makes it, producers first; None for any other."""
    found = [stage for _, stage in nests_of(func)]
    stages = [stage for stage in found if stage is not None]
    return _with_parts(stages) if len(stages) == len(found) else None


def nests_of(func: tirx.PrimFunc) -> Nests:
    """The loop nests of a function, each with its stage where it is one: what the rules write has none."""
    body = func.body.block.body
    return [(nest, _stage(nest)) for nest in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]


def _stage(nest: tirx.Stmt) -> Stage | None:
    """A loop nest as a stage; None for one around something else than one store."""
    inner = nest
    while isinstance(inner, tirx.For):
        inner = inner.body
    block = inner.block if isinstance(inner, s_tir.SBlockRealize) else None
    if block is None or not isinstance(block.body, tirx.BufferStore):
        return None
    store, init = block.body, block.init
    if not (init is None or isinstance(init, tirx.BufferStore)):
        return None
    first = None if init is None else init.value
    return Stage(
        block.name_hint, tuple(block.iter_vars), store.buffer, tuple(store.indices), store.value, first, nest
    )


def nest_of(
    name: str,
    iters: Sequence[tirx.IterVar],
    buffer: ir.Var,
    indices: Sequence[Expr],
    value: Expr,
    init: Expr | None = None,
    part: int | None = None,
) -> tirx.Stmt:
    """The plain loop nest around one store, with the value that a reduction starts from."""
    store, first = (None if x is None else tirx.BufferStore(buffer, x, list(indices)) for x in (value, init))
    read = {load.source: None for load in loads_of([value]) if init is None or not load.source.same_as(buffer)}
    reads, writes = ([_whole(x) for x in found] for found in (read, [buffer]))  # TVM 0.27 finds no parts of odd indices
    notes = {} if part is None else {PART: part}
    loops = [tirx.Var(v.var.name, v.var.ty) for v in iters]
    block = s_tir.SBlock(list(iters), reads, writes, name, store, first, annotations=notes)
    nest: Any = s_tir.SBlockRealize(loops, True, block)
    for variable, v in reversed(list(zip(loops, iters, strict=True))):
        nest = tirx.For(variable, 0, v.dom.extent, tirx.ForKind.SERIAL, nest)
    return nest


def _whole(buffer: ir.Var) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [ir.Range(0, extent) for extent in buffer.shape])


def _with_parts(stages: Sequence[Stage]) -> list[Stage]:
    """The stages with their parts: those that say it, and those that they read."""
    of: dict[Any, int] = {}
    found = []
    for stage in reversed(stages):
        part = stage.block.annotations.get(PART, of.get(stage.buffer))
        if part is not None:
            of.update((load.source, int(part)) for load in stage.loads())
        found.append(stage if part is None else replace(stage, part=int(part)))
    return found[::-1]


def in_place(value: Expr, made: Mapping[Any, Stage]) -> Expr:
    """An expression with the values of stages, by their buffers, in the place of loads from these. What is read more
    than once at an index, or names parts of itself, has a name at the top: an expression is as long as the stages
    together, however often they are read."""
    known: dict[Any, list[tuple[Expr, tirx.Var]]] = {}
    named: list[tuple[tirx.Var, Expr]] = []
    reads: Counter[tirx.Var] = Counter()

    def load(item: ir.TensorLoad, mutator: Any) -> Expr:
        item = tirx.BufferLoad(item.source, [mutator.mutate(index) for index in item.indices])
        stage = made.get(item.source)
        if stage is None:
            return item
        forms = known.setdefault(item.source, [])
        var = next((var for other, var in forms if tvm_ffi.structural_equal(other, item)), None)
        if var is None:
            names = {v: at for v, at in zip(stage.indices, item.indices, strict=True) if isinstance(v, tirx.Var)}
            found = tvm_ffi.structural_mutate(renamed(stage.value, names), callbacks)
            var = tirx.Var(stage.name, found.ty)
            forms.append((item, var))
            named.append((var, found))
        reads[var] += 1
        return var

    def call(item: ir.Call, mutator: Any) -> Expr:
        """A choice, whose sides keep their names within: a condition may guard a load."""
        if str(getattr(item.op, "name", "")) != common.BRANCH:
            return mutator.default_mutate(item)
        condition, *sides = item.args
        return tirx.if_then_else(mutator.mutate(condition), *(in_place(side, made) for side in sides))

    callbacks = [(ir.TensorLoad, load), (ir.Call, call)]
    found = tvm_ffi.structural_mutate(value, callbacks)
    once: dict[tirx.Var, Expr] = {}
    kept: list[tuple[tirx.Var, Expr]] = []
    for var, own in named:
        own = renamed(own, once)
        if reads[var] > 1 or _has_names(own):
            kept.append((var, own))
        else:
            once[var] = own
    found = renamed(found, once)
    for var, own in reversed(kept):
        found = tirx.Let(var, own, found)
    return found


def _has_names(code: Expr) -> bool:
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(code, (tirx.Let, found.append))
    return bool(found)


def inlined(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Stage]] | None:
    """The function with its intermediate values computed where they are read, but for those whose exp or log would be
    taken again, and its stages; None where `read_stages` has none."""
    stages = read_stages(func)
    if stages is None:
        return None
    readers: dict[Any, list[Stage]] = {}
    for stage in stages:
        for buffer in {load.source for load in stage.loads()}:
            readers.setdefault(buffer, []).append(stage)
    made: dict[Any, Stage] = {}
    kept: list[Stage] = []
    for stage in stages:
        plain, stage = stage, stage.with_made(made)
        own = readers.get(stage.buffer, [])
        repeated = len(own) > 1 or any(size(other.iters) > size(stage.iters) for other in own)
        whole = stage.reduced or stage.buffer in func.params or size(stage.iters) == 0
        if whole or (repeated and common.is_costly(stage.value)) or _reads_windows(stage):
            kept.append(stage)
        else:
            made[stage.buffer] = plain
    if not made:
        return func, stages
    func = with_nests(func, [stage.loops for stage in kept])
    return func, read_stages(func) or []


def _reads_windows(stage: Stage) -> bool:
    """Whether each value is computed of several elements of images, with branches that are taken for a whole row."""
    several = common.calls_of(stage.value).count(common.BRANCH) >= common.WINDOW
    return several and len(stage.iters) - 1 not in common.branching_of(stage.block)


def with_nests(
    func: tirx.PrimFunc, nests: Sequence[tirx.Stmt], arrays: Sequence[ir.Var] = ()
) -> tirx.PrimFunc:
    """The function with other loop nests, and those of its intermediate arrays, and of new ones, that they use."""
    root = func.body.block
    used = {buffer for nest in nests for buffer in buffers(nest)}
    block = s_tir.SBlock(
        [],
        [],
        [],
        root.name_hint,
        nests[0] if len(nests) == 1 else tirx.SeqStmt(list(nests)),
        alloc_buffers=[buffer for buffer in dict.fromkeys([*root.alloc_buffers, *arrays]) if buffer in used],
    )
    return bound_once(func.with_body(s_tir.SBlockRealize([], True, block)))


def buffers(code: tirx.Stmt) -> dict[Any, None]:
    """The buffers that the code loads from or stores to, in the order in which they come."""
    found: dict[Any, None] = {}

    def load(item: ir.TensorLoad) -> None:
        found[item.source] = None

    def store(item: tirx.BufferStore) -> None:
        found[item.buffer] = None

    tvm_ffi.structural_walk(code, [(ir.TensorLoad, load), (tirx.BufferStore, store)])
    return found


def kept(group: Sequence[Stage], stages: Sequence[Stage], results: set[Any]) -> set[Any]:
    """The buffers that some of a function's stages must store: results, and what other stages read."""
    written = {stage.buffer for stage in group}
    outside = {load.source for other in stages if other.buffer not in written for load in other.loads()}
    return written & {*results, *outside}


def domains(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in groups of one part and domain, each behind those whose results it reads; within a group these are
    read only at the index that is computed."""
    groups: list[list[Stage]] = []
    home: dict[Any, int] = {}  # a buffer, and the group that writes it
    for stage in stages:
        inside = [load for load in stage.loads() if load.source in home]
        first = max((home[load.source] for load in inside), default=0)
        if any(home[load.source] == first and not at_own_index(load, stage) for load in inside):
            first += 1
        kind = stage.part, extents(stage.iters)
        fits = [i for i in range(first, len(groups)) if (groups[i][0].part, extents(groups[i][0].iters)) == kind]
        if not fits:
            groups.append([])
        home[stage.buffer] = fits[0] if fits else len(groups) - 1
        groups[home[stage.buffer]].append(stage)
    return groups


def at_own_index(load: Expr, stage: Stage) -> bool:
    """Whether a stage loads of an array the element at the index that it computes."""
    if size(stage.iters) == 1:
        return True
    return len(load.indices) == len(stage.iters) and all(
        index.same_as(v.var) or int(v.dom.extent) == 1
        for index, v in zip(load.indices, stage.iters, strict=True)
    )


def share(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with stages that compute the same, in formulas that were put together, computed once."""
    stages = read_stages(func)
    if stages is None:
        return func
    same: dict[Any, Any] = {}  # a buffer, and the one that holds the same
    known: dict[Any, list[tuple[Any, Any]]] = {}
    nests = []
    for stage in stages:
        nest = renamed(stage.loops, same)
        form = _canonical(stage, same)
        forms = known.setdefault((extents(stage.spatial), extents(stage.reduced)), [])
        twin = next((buffer for other, buffer in forms if tvm_ffi.structural_equal(other, form)), None)
        if twin is None:
            forms.append((form, stage.buffer))
        elif stage.buffer not in func.params:
            same[stage.buffer] = twin
            continue
        nests.append(nest)
    return with_nests(func, nests) if same else func


_AXES = [tirx.Var(f"axis{i}", "int32") for i in range(16)]
_TOTAL = tirx.Var("total", "handle")


def _canonical(stage: Stage, same: dict[Any, Any]) -> Any:
    """The stage's expression with common names, so that equal stages are equal."""
    names = {
        **same,
        **{v.var: axis for v, axis in zip(stage.iters, _AXES, strict=False)},
        stage.buffer: _TOTAL,
    }
    kinds = [int(v.iter_type) for v in stage.iters]
    parts = [*stage.indices, stage.value, *([] if stage.init is None else [stage.init])]
    loads = {load.source: names.get(load.source, load.source) for load in stage.loads()}
    return tvm_ffi.convert([kinds, [renamed(part, {**names, **loads}) for part in parts]])


def size(iters: Iterable[tirx.IterVar]) -> int:
    """The product of the extents."""
    return math.prod(extents(iters))
