"""Helpers of the rules: blocks and how they read memory, found by structure, and common steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx

from ..compute.loops import ravelled, unravelled

PARALLEL_WORK = 64 * 1024  # simple operations, some 50 us with their memory: less does not repay a region's 5 us
VECTORS = 4  # of a step: loads enough in flight, and an add of a sum waits four cycles for the one before it
COSTLY_VECTORS = 2  # where exp, log, branches or several rows need registers of their own
MAX_VECTORS = 8  # the longest unrolled vector that still leaves registers free
SHORT, MANY = 4, 8  # fewest terms side by side that make a vector, and fewest of such vectors that are added up

CORES = 8  # threads, from which on all are given shares, and twice as many as there are: none waits long for another

BRANCH = "prim.if_then_else"
AS_IT_IS = {"disable_lower_builtin": tirx.IntImm("bool", 1)}  # TVM's: an allocation is left to LLVM, on the stack
CHEAP_CALLS = frozenset({"tirx.isnan", "tirx.fabs"})
Structure: Any = tvm_ffi.StructuralKey  # of an expression, as a key; as declared it would take an argument more
_MUTATE = tvm.get_global_func("ffi.StructuralMutate")


Strides = tuple[int, ...] | None
"""Of an access: elements stepped over when each of a block's iterators advances by one; None where that varies."""


def rewritten(code: Any, functions: Mapping[type, Callable[[Any], Any]]) -> Any:
    """The code with each node of a kind replaced by the result of its function, inner ones first. An exception of a
    function is raised when all is done: passing through TVM 0.27 it corrupts the process's memory."""
    failed: list[Exception] = []

    def guarded(function: Callable[[Any], Any], node: Any) -> Any:
        try:
            return node if failed else function(node)
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)
            return node

    found = tvm_ffi.structural_map(code, [(kind, partial(guarded, function)) for kind, function in functions.items()])
    if failed:
        raise failed[0]
    return found


def mutated(code: Any, functions: Mapping[type, Callable[[Any, Any], Any]]) -> Any:
    """The code with each node of a kind replaced by the result of its function, outer ones first.

    The function is given the node and a mutator: `mutator.mutate(part)` changes a part, `default_mutate(node)` all.
    `tvm_ffi.structural_mutate` asks for each function's signature at each call: 15 % of the time of lowering."""
    return _MUTATE(code, [(_type_index(kind), function, False) for kind, function in functions.items()])


@cache
def _type_index(kind: type) -> int:
    return int(tvm_ffi.core.TypeSchema.from_annotation(kind).origin_type_index)


def renamed(code: Any, names: Mapping[Any, Any]) -> Any:
    """The code with other names, or values, for the variables that `names` has."""
    return tvm_ffi.structural_map(code, (tvm.ir.Var, lambda v: names.get(v, v))) if names else code


def found_in(code: Any, *kinds: type) -> list[Any]:
    """The nodes of some kinds in a statement or expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(code, (kinds, found.append))
    return found


def with_loads(code: Any, value: Callable[[Any], Any]) -> Any:
    """The code with the function's results in place of its loads; a load stays where that is None."""

    def load(item: tvm.ir.TensorLoad, mutator: Any) -> Any:
        found = value(item)
        return mutator.default_mutate(item) if found is None else found

    return mutated(code, {tvm.ir.TensorLoad: load})


def with_places(code: Any, place: Callable[[Any, list[Any]], tuple[Any, list[Any]]]) -> Any:
    """The code with loads and stores elsewhere: `place` returns a buffer and indices for those that there are."""

    def load(item: tvm.ir.TensorLoad, mutator: Any) -> Any:
        return tirx.BufferLoad(*place(item.source, list(map(mutator.mutate, item.indices))))

    def store(item: tirx.BufferStore, mutator: Any) -> Any:
        buffer, indices = place(item.buffer, list(map(mutator.mutate, item.indices)))
        return tirx.BufferStore(buffer, mutator.mutate(item.value), indices)

    return mutated(code, {tvm.ir.TensorLoad: load, tirx.BufferStore: store})


def statements(code: tirx.Stmt) -> list[tirx.Stmt]:
    """Those of a sequence; a statement alone."""
    return list(code.seq) if isinstance(code, tirx.SeqStmt) else [code]


@lru_cache(8)
def blocks_of(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """The blocks of a function's loop nests, producers first, read without a schedule."""
    return found_in(func.body.block.body, s_tir.SBlock)


def bound_once(code: Any) -> Any:
    """The code with a variable of its own for each `Let`: what was computed in place at two indices is a copy at each,
    and TVM takes neither two definitions of a variable nor two values of it."""
    bound: set[Any] = set()

    def let(item: tirx.Let, mutator: Any) -> Any:
        value, body = mutator.mutate(item.value), mutator.mutate(item.body)
        if item.var not in bound:
            bound.add(item.var)
            return tirx.Let(item.var, value, body)
        own = tirx.Var(item.var.name, item.var.ty)
        return tirx.Let(own, value, renamed(body, {item.var: own}))

    return mutated(code, {tirx.Let: let})


def calls_of(code: Any) -> list[str]:
    """Names of the operations that a statement or expression calls."""
    return [str(getattr(call.op, "name", call.op)) for call in found_in(code, tvm.ir.Call)]


def is_branch(call: tvm.ir.Call) -> bool:
    """Whether a call is a choice of which one side alone is computed."""
    return str(getattr(call.op, "name", "")) == BRANCH


def branching_of(node: s_tir.SBlock) -> set[int]:
    """A block's iterators on which it hangs what is read: zeros, or an image within its border."""
    asked = [call.args[0] for call in found_in(node.body, tvm.ir.Call) if is_branch(call)]
    return {i for i, v in enumerate(node.iter_vars) if any(reads(condition, v.var) for condition in asked)}


def reads(code: Any, var: tvm.ir.Var) -> bool:
    """Whether an expression has the variable."""
    return any(v.same_as(var) for v in tirx.analysis.undefined_vars(code))


def is_costly(code: Any) -> bool:
    """Whether a statement or expression computes exp, log or their like, or branches."""
    return any(name not in CHEAP_CALLS for name in calls_of(code))


def operations(code: Any) -> int:
    """A statement's or expression's simple operations an index, with their memory: an exp or log is four of them."""
    return 4 if is_costly(code) else 1


def accesses_of(node: s_tir.SBlock) -> list[Strides]:
    """The different strides of a block's reads and writes."""
    return list(dict.fromkeys(strides_of(node, *place) for place in places_of(node.body)))


def nbytes_of(buffer: Any) -> int:
    """Bytes of an array."""
    return math.prod(map(int, buffer.shape)) * -(-tvm.DataType(str(buffer.dtype)).bits // 8)


def places_of(code: Any) -> list[tuple[Any, Sequence[Any]]]:
    """The buffer and the indices of each load and store."""
    found = found_in(code, tvm.ir.TensorLoad, tirx.BufferStore)
    return [(item.buffer if isinstance(item, tirx.BufferStore) else item.source, item.indices) for item in found]


def strides_of(block: s_tir.SBlock, buffer: Any, indices: Sequence[Any]) -> Strides:
    """Those of a place in the buffer."""
    iterators = [v.var for v in block.iter_vars]
    flat = ravelled(indices, list(map(int, buffer.shape)))
    if isinstance(flat, int):  # a scalar
        return (0,) * len(iterators)
    found = linear(analyzer_of(block.iter_vars).simplify(flat), iterators)
    return None if found is None else found[0]


def analyzer_of(iters: Iterable[tirx.IterVar]) -> sym.Analyzer:
    """TVM's analyzer that knows the iterators' extents."""
    analyzer = sym.Analyzer()
    for v in iters:
        analyzer.bind(v.var, tvm.ir.Range(0, v.dom.extent))
    return analyzer


def linear(expression: Any, variables: Sequence[Any]) -> tuple[tuple[int, ...], Any] | None:
    """The factors of variables in an expression, and what is added to their sum; None for other expressions."""
    *factors, rest = sym.detect_linear_equation(expression, variables) or [None]
    if len(factors) != len(variables) or not all(isinstance(one, tirx.IntImm) for one in factors):
        return None
    return tuple(map(int, factors)), rest


def conjuncts(condition: Any) -> list[Any]:
    """The terms of a conjunction."""
    both = (condition.a, condition.b) if isinstance(condition, tirx.And) else ()
    return [part for one in both for part in conjuncts(one)] or [condition]


def bounds_of(conditions: Iterable[Any], iterator: tirx.IterVar) -> tuple[int, int, list[Any]]:
    """The first number of an iterator for which conditions hold, and the end of those for which they do; and those of
    the conditions that were not asked, which are no comparisons of numbers that are linear in the iterator alone."""
    first, end, others = 0, int(iterator.dom.extent), list[Any]()
    for condition in conditions:
        strict, found = isinstance(condition, (tirx.GT, tirx.LT)), None
        if isinstance(condition, (tirx.GE, tirx.GT)):
            found = linear(condition.a - condition.b, [iterator.var])
        elif strict or isinstance(condition, tirx.LE):
            found = linear(condition.b - condition.a, [iterator.var])
        if found is None or not isinstance(found[1], tirx.IntImm):
            others.append(condition)
            continue
        (factor,), rest = found[0], int(found[1]) - strict  # factor n + rest >= 0
        if factor > 0:
            first = max(first, -(rest // factor))
        elif factor < 0 or rest < 0:
            end = min(end, rest // -factor + 1 if factor else 0)
    return first, max(first, end), others


def contiguous(extents: Mapping[int, int], found: Sequence[Strides]) -> list[list[int]]:
    """Adjacent axes, whose extents are given, in groups that accesses `found` step through as one, since every access
    goes on from one row to the next. An axis of extent 1 joins any."""
    groups: list[list[int]] = []
    for axis, extent in extents.items():
        wide = [x for x in groups[-1] if extents[x] > 1] if groups else []
        goes_on = not wide or all(s is not None and s[wide[-1]] == s[axis] * extent for s in found)
        if groups and (extent == 1 or goes_on):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


@dataclass(frozen=True)
class Axes:
    """The axes of a domain's shape in groups, `parts`, that all accesses step through as one; for each group the
    elements that each access steps over, None where that varies."""

    shape: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int | None, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extent of each group."""
        return tuple(math.prod(self.shape[x] for x in part) for part in self.parts)

    def index(self, at: Sequence[Any]) -> dict[int, Any]:
        """The index of each axis at an index of each group."""
        found: dict[int, Any] = {}
        for part, index in zip(self.parts, at, strict=True):
            found.update(zip(part, unravelled(index, [self.shape[x] for x in part]), strict=True))
        return found


def axes_of(shape: Sequence[int], axes: Iterable[int], found: Sequence[Strides]) -> Axes:
    """Axes of a shape as accesses `found` go through them."""
    parts = contiguous({axis: shape[axis] for axis in axes}, found)
    last = [next((x for x in reversed(part) if shape[x] > 1), part[-1]) for part in parts]  # that is wider than 1
    strides = [tuple(None if s is None else s[x] for s in found) for x in last]
    return Axes(tuple(shape), tuple(map(tuple, parts)), tuple(strides))


def least_parts(threads: int) -> int:
    """The parts that work for threads should have."""
    return 2 * threads if threads >= CORES else threads


def enough(sizes: Sequence[int], parts: int) -> int:
    """How many of some loops together, the outermost ones, take so many steps; all if none do."""
    return next((n for n in range(1, len(sizes)) if math.prod(sizes[:n]) >= parts), len(sizes))


def divisor(extent: int, step: int, most: int) -> int | None:
    """The largest multiple of `step`, up to `most`, that divides `extent`."""
    return next((f for f in range(most - most % step, 0, -step) if extent % f == 0), None)


def near_divisor(extent: int, most: int) -> int | None:
    """The divisor of the extent that is nearest to `most`, from half of it to twice; the larger of two."""
    near = [n for n in range(max(most // 2, 1), min(2 * most, extent) + 1) if extent % n == 0]
    return min(near, key=lambda n: (abs(n - most), -n), default=None)
