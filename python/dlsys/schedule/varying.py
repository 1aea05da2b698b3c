"""Extents that vary: one kernel for many numbers of rows, lowered for one that stands for others.

Within `rows_vary` an extent that is this number, or a multiple of it, is a `Varying`: a number to decide by, with the
expression to be written in its place. Arithmetic keeps both. `codegen` writes the expression where loops end and where
they are cut. What is computed past this file, as by `math.gcd` or by TVM, is a plain number in the code. So
`kernels.rows` lowers a kernel for several numbers of rows, and takes it only if its code is the same for all.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import tvm_ffi
from tvm import s_tir, sym, tirx

from .common import found_in, renamed

ROWS: tirx.Var = tirx.Var("rows", "int32")
"""The number of rows."""
Forms = Mapping[int, tuple[int, int]]
"""Numbers that are so many times the number of rows, and so much more."""
_standing: ContextVar[tuple[int, int, Forms, bool]] = ContextVar("standing", default=(0, 0, {}, False))


@contextlib.contextmanager
def rows_vary(number: int, usual: int, forms: Forms, simpler: bool) -> Iterator[None]:
    """Within it extents that are multiples of a number, or that have another form of it, vary. `usual`: the number that
    what is only faster or slower is chosen by, as a tile is. `simpler`: see `is_for_others`."""
    token = _standing.set((number, usual, forms, simpler))
    try:
        yield
    finally:
        _standing.reset(token)


def extent_of(extent: Any) -> int:
    """An extent of TVM's as a number; a `Varying` where it varies."""
    found, (number, like, forms, _) = int(extent), _standing.get()
    if number and found in forms:
        times, more = forms[found]
        return Varying(found, ROWS * times + more, like * times + more)
    if number and found and found % number == 0:
        return Varying(found, ROWS * (found // number), found // number * like)
    return found


def is_for_others(extents: Iterable[int]) -> bool:
    """Whether a rule whose code needs these extents as numbers leaves the function to a simpler, slower rule: where
    there was no one code before."""
    return _standing.get()[3] and any(isinstance(extent, Varying) for extent in extents)


def for_threads(work: int) -> int:
    """The work by which it is decided whether threads share it: for a slower rule that of the usual number, so that
    kernels for several numbers decide alike."""
    return usual(work) if _standing.get()[3] else work


def usual(extent: int) -> int:
    """The number by which kernels for several numbers of rows choose alike what is faster, and never wrong."""
    return extent.usual if isinstance(extent, Varying) else extent


def with_rows(function: tirx.PrimFunc, number: int, shares: Sequence[float], forms: Forms) -> tirx.PrimFunc:
    """A function lowered within `rows_vary` with `ROWS` for each number that is the number of rows, also in the shapes
    of its arrays, and what has another form of it; and for each that is one of the shares divided by it."""
    known, body = {**forms, number: (1, 0)}, function.body
    lanes = {index.__chandle__() for shuffle in found_in(body, tirx.Shuffle) for index in shuffle.indices}

    def integer(item: tirx.IntImm) -> Any:
        dtype = str(item.ty)
        last = dtype == "int64" and int(item) == number - 1  # of indices, which are compared with it
        times, more = (1, -1) if last else known.get(int(item), (0, 0))
        if not times or item.__chandle__() in lanes:
            return item
        found = ROWS.astype(dtype) if times == 1 else ROWS.astype(dtype) * tirx.const(times, dtype)
        return found + tirx.const(more, dtype) if more else found

    def real(item: tirx.FloatImm) -> Any:
        dtype = str(item.ty)
        for share in shares:
            if item.value in (share / number, float(np.dtype(dtype).type(share / number))):
                return tirx.const(share, dtype) / ROWS.astype(dtype)
        if abs(item.value) == number:
            return ROWS.astype(dtype) * tirx.const(math.copysign(1.0, item.value), dtype)
        return item

    arrays = [*function.params, *(array for block in found_in(body, s_tir.SBlock) for array in block.alloc_buffers)]
    arrays += [one.buffer for one in found_in(body, tirx.AllocBuffer)]
    names = {}
    for old in arrays:
        shape = [integer(extent) if isinstance(extent, tirx.IntImm) else extent for extent in old.shape]
        if any(a is not b for a, b in zip(shape, old.shape, strict=True)):
            kept = {"scope": old.scope(), "data_alignment": getattr(old, "data_alignment", 4), "layout": None}
            names[old] = tirx.decl_buffer(shape, str(old.dtype), old.name, **kept)
    found = renamed(function, names)
    return found.with_body(tvm_ffi.structural_map(found.body, [(tirx.IntImm, integer), (tirx.FloatImm, real)]))


def bound(extent: int, dtype: str) -> Any:
    """An extent as TVM's expression, of a dtype."""
    return extent.expr.astype(dtype) if isinstance(extent, Varying) else tirx.IntImm(dtype, extent)


def _operator(of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operation on a `Varying`, on the number, its expression and the usual number. With an expression of TVM's it
    gives one, with a float, which is for decisions alone, a plain number."""

    def made(self: Varying, other: Any) -> Any:
        if not isinstance(other, int):
            return of(int(self) if isinstance(other, float) else self.expr, other)
        its = other.expr if isinstance(other, Varying) else int(other)
        return Varying(of(int(self), int(other)), of(self.expr, its), of(self.usual, usual(other)))

    return made


class Varying(int):
    """An extent, the expression of `ROWS` that it is, and its `usual` number."""

    expr: Any
    usual: int

    def __new__(cls, value: int, expr: Any, usual: int) -> Varying:
        self = int.__new__(cls, value)
        self.expr, self.usual = expr, usual
        return self

    __add__, __radd__ = _operator(operator.add), _operator(lambda a, b: b + a)
    __sub__, __rsub__ = _operator(operator.sub), _operator(lambda a, b: b - a)
    __mul__, __rmul__ = _operator(operator.mul), _operator(lambda a, b: b * a)
    __floordiv__, __rfloordiv__ = _operator(operator.floordiv), _operator(lambda a, b: b // a)
    __mod__, __rmod__ = _operator(operator.mod), _operator(lambda a, b: b % a)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __neg__(self) -> Varying:
        return Varying(-int(self), -self.expr, -self.usual)

    def __bool__(self) -> bool:
        """Whether it is not known to be nothing."""
        return self != 0

    def __eq__(self, other: object) -> bool:
        """Whether it is known to be another number."""
        if not isinstance(other, int):
            return False
        found = sym.Analyzer().simplify(self.expr - (other.expr if isinstance(other, Varying) else int(other)))
        return isinstance(found, tirx.IntImm) and int(found) == 0

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))
