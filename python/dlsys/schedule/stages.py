"""A function as its stages: what TE made of each formula, to be put together anew. Rules make stages of stages, and
loops of those at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from tvm import ir, s_tir, tirx

from ..compute.loops import sequence
from . import common
from .common import Structure, bound_once, found_in, mutated, renamed

Expr = Any  # of tvm.ir: a number at run time
_COMBINING = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)  # any order gives the same, but for rounding


@dataclass(frozen=True, eq=False)
class Stage:
    """A loop nest around one store: `buffer[indices] = value`, a reduction where `init` comes first."""

    name: str
    iters: tuple[tirx.IterVar, ...]
    buffer: ir.Var
    indices: tuple[Expr, ...]
    value: Expr
    init: Expr | None

    @cached_property
    def block(self) -> s_tir.SBlock:
        """TensorIR's block of it."""
        own = [None if x is None else tirx.BufferStore(self.buffer, x, self.indices) for x in (self.value, self.init)]
        return s_tir.SBlock(list(self.iters), [], [], self.name, *own)

    @property
    def spatial(self) -> list[tirx.IterVar]:
        """The iterators that are an index of the output."""
        return [v for v in self.iters if v.iter_type == tirx.IterVar.DataPar]

    @property
    def reduced(self) -> list[tirx.IterVar]:
        """The iterators of the terms."""
        return [v for v in self.iters if v.iter_type == tirx.IterVar.CommReduce]

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
            return replace(self, value=type(self.value)(self.value.a, in_place(self.value.b, made)))
        return replace(self, value=in_place(self.value, made))

    def loads(self) -> list[Expr]:
        """The loads of the value, but those of the stage's own buffer."""
        return [load for load in loads_of([self.value]) if not load.source.same_as(self.buffer)]


def iterator(name: str, like: tirx.IterVar, extent: int, kind: int) -> tirx.IterVar:
    """An iterator of a new variable of the same dtype as another's."""
    dtype = like.var.ty
    return tirx.IterVar(ir.Range(tirx.IntImm(dtype, 0), tirx.IntImm(dtype, extent)), tirx.Var(name, dtype), kind)


def loads_of(expressions: Iterable[Expr]) -> list[Expr]:
    """All loads in some expressions."""
    return [load for expression in expressions for load in found_in(expression, ir.TensorLoad)]


def extents(iters: Iterable[tirx.IterVar]) -> tuple[int, ...]:
    """The iterators' extents."""
    return tuple(int(v.dom.extent) for v in iters)


@lru_cache(8)  # rule after rule asks for those of the same function
def read_stages(func: tirx.PrimFunc) -> list[Stage] | None:
    """The stages of a function as TE makes it, producers first; None for any other."""
    found = nests_of(func)
    stages = [one for one in found if isinstance(one, Stage)]
    return stages if len(stages) == len(found) else None


def nests_of(func: tirx.PrimFunc) -> list[Stage | tirx.Stmt]:
    """The loop nests of a function, as stages where they are some."""
    return [_stage(nest) or nest for nest in common.statements(func.body.block.body)]


def _stage(nest: tirx.Stmt) -> Stage | None:
    """A loop nest as a stage; None for one around something else than one store."""
    inner = nest
    while isinstance(inner, tirx.For):
        inner = inner.body
    block = inner.block if isinstance(inner, s_tir.SBlockRealize) else None
    if block is None or not all(isinstance(one, (tirx.BufferStore, type(None))) for one in (block.body, block.init)):
        return None
    store, first = block.body, block.init and block.init.value
    return Stage(block.name_hint, tuple(block.iter_vars), store.buffer, tuple(store.indices), store.value, first)


def in_place(value: Expr, made: Mapping[Any, Stage]) -> Expr:
    """An expression with the values of stages, by their buffers, in the place of loads from these. What is read more
    than once at an index, or names parts of itself, has a name at the top, so that expressions do not grow."""
    known: dict[Any, tirx.Var] = {}
    named: list[tuple[tirx.Var, Expr]] = []
    reads: Counter[tirx.Var] = Counter()

    def load(item: ir.TensorLoad, mutator: Any) -> Expr:
        item = tirx.BufferLoad(item.source, [mutator.mutate(index) for index in item.indices])
        stage = made.get(item.source)
        if stage is None:
            return item
        if (var := known.get(key := Structure(item))) is None:
            names = {v: at for v, at in zip(stage.indices, item.indices, strict=True) if isinstance(v, tirx.Var)}
            found = mutated(renamed(stage.value, names), functions)
            known[key] = var = tirx.Var(stage.name, found.ty)
            named.append((var, found))
        reads[var] += 1
        return var

    def call(item: ir.Call, mutator: Any) -> Expr:
        """A choice, whose sides keep their names within: a condition may guard a load."""
        if not common.is_branch(item):
            return mutator.default_mutate(item)
        condition, *sides = item.args
        return tirx.if_then_else(mutator.mutate(condition), *(in_place(side, made) for side in sides))

    functions = {ir.TensorLoad: load, ir.Call: call}
    found, once, kept = mutated(value, functions), dict[tirx.Var, Expr](), dict[tirx.Var, Expr]()
    for var, own in named:
        own = renamed(own, once)
        (kept if reads[var] > 1 or found_in(own, tirx.Let) else once)[var] = own
    found = renamed(found, once)
    for var in reversed(kept):
        found = tirx.Let(var, kept[var], found)
    return found


@lru_cache(8)
def inlined(func: tirx.PrimFunc) -> list[Stage] | None:
    """The stages of a function, equal ones once, with intermediate values computed where they are read, unless exp or
    log would be taken again; None where `read_stages` has none."""
    if (stages := share(func)) is None:
        return None
    read = [(stage, {load.source for load in stage.loads()}) for stage in stages]
    made: dict[Any, Stage] = {}
    kept: list[Stage] = []
    for stage in stages:
        plain, stage = stage, stage.with_made(made)
        own = [other for other, sources in read if stage.buffer in sources]
        repeated = len(own) > 1 or any(size(other.iters) > size(stage.iters) for other in own)
        whole = stage.reduced or stage.buffer in func.params or size(stage.iters) == 0
        if whole or (repeated and common.is_costly(stage.value)) or _reads_windows(stage):
            kept.append(stage)
        else:
            made[stage.buffer] = plain
    return kept


def _reads_windows(stage: Stage) -> bool:
    """Whether each value is computed of four elements of images or more, with branches that are taken for a whole row:
    too much to be computed again for each time it is read."""
    several = common.calls_of(stage.value).count(common.BRANCH) >= 4
    return several and len(stage.iters) - 1 not in common.branching_of(stage.block)


def with_nests(func: tirx.PrimFunc, nests: Sequence[tirx.Stmt]) -> tirx.PrimFunc:
    """The function with other loop nests, and the arrays that they use, and do not allocate by themselves."""
    root, body = func.body.block, sequence(nests)
    own = {*func.params, *(one.buffer for one in found_in(body, tirx.AllocBuffer))}
    used = dict.fromkeys(buffer for buffer, _ in common.places_of(body) if buffer not in own)
    arrays = dict.fromkeys([*(buffer for buffer in root.alloc_buffers if buffer in used), *used])
    block = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=list(arrays))
    return bound_once(func.with_body(s_tir.SBlockRealize([], True, block)))


def kept(group: Sequence[Stage], stages: Sequence[Stage], results: set[Any]) -> set[Any]:
    """The buffers that some of a function's stages must store: results, and what other stages read."""
    written = {stage.buffer for stage in group}
    outside = {load.source for other in stages if other.buffer not in written for load in other.loads()}
    return written & {*results, *outside}


def unrelated(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in parts that have no array in common, not even one that they read."""
    part: dict[Any, int] = {}  # of an array
    for number, stage in enumerate(stages):
        arrays = {stage.buffer, *(load.source for load in stage.loads())}
        met = {part[array] for array in arrays if array in part}
        arrays.update(array for array, own in part.items() if own in met)
        part.update(dict.fromkeys(arrays, number))
    found: dict[int, list[Stage]] = {}
    for stage in stages:
        found.setdefault(part[stage.buffer], []).append(stage)
    return list(found.values())


def domains(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in groups of one domain, each behind those it reads, within at the own index alone."""
    groups: list[list[Stage]] = []
    home: dict[Any, int] = {}  # a buffer, and the group that writes it
    for stage in stages:
        inside = [load for load in stage.loads() if load.source in home]
        first = max((home[load.source] for load in inside), default=0)
        if any(home[load.source] == first and not at_own_index(load, stage) for load in inside):
            first += 1
        domain = extents(stage.iters)
        fits = [i for i in range(first, len(groups)) if extents(groups[i][0].iters) == domain]
        if not fits:
            groups.append([])
        home[stage.buffer] = fits[0] if fits else len(groups) - 1
        groups[home[stage.buffer]].append(stage)
    return groups


def at_own_index(load: Expr, stage: Stage) -> bool:
    """Whether a stage loads of an array the element at the index that it computes."""
    if size(stage.iters) == 1 or len(load.indices) != len(stage.iters):
        return size(stage.iters) == 1
    pairs = zip(load.indices, stage.iters, strict=True)
    return all(index.same_as(v.var) or int(v.dom.extent) == 1 for index, v in pairs)


def share(func: tirx.PrimFunc) -> list[Stage] | None:
    """The stages of a function, equal ones once; None where `read_stages` has none."""
    if (stages := read_stages(func)) is None:
        return None
    same: dict[Any, Any] = {}  # a buffer, and the one that holds the same
    known: dict[Any, Any] = {}
    found = []
    for stage in stages:
        stage = replace(stage, value=renamed(stage.value, same))
        twin = known.setdefault(_canonical(stage), stage.buffer)
        if twin is not stage.buffer and stage.buffer not in func.params:
            same[stage.buffer] = twin
        else:
            found.append(stage)
    return found


_AXES = [tirx.Var(f"axis{i}", "int32") for i in range(16)]
_TOTAL = tirx.Var("total", "handle")


def _canonical(stage: Stage) -> Any:
    """The stage's expression with common names, so that equal stages are equal."""
    names = {**{v.var: axis for v, axis in zip(stage.iters, _AXES, strict=False)}, stage.buffer: _TOTAL}
    axes = [(int(v.iter_type), int(v.dom.extent)) for v in stage.iters]
    parts = [*stage.indices, stage.value, *([] if stage.init is None else [stage.init])]
    return Structure([axes, [renamed(part, names) for part in parts]])


def size(iters: Iterable[tirx.IterVar]) -> int:
    """The product of the extents."""
    return math.prod(extents(iters))
