"""One kernel for many numbers of rows: of a batch, a text, a table.

A kernel that is asked for with a third number of rows is lowered for numbers around it: `schedule.varying` writes what
depends on them as expressions, and only where that gives one code for all three is it compiled, for all numbers
between. Others are compiled for each number, as the first two are.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ..errors import DlsysError, ShapeError
from ..graph import Shape
from ..system import warn
from ..tvm_import import with_compiler
from .spec import MOST_COUNTED, Family, KernelSpec, TargetName

EXACT = 2  # numbers of rows for which a formula's kernels are compiled by themselves: of whole batches, and of the last
BOUNDS = (
    (17, 67, 257, 1031, 4099, 16411, 65537, 262147),
    (17, 31, 67, 131, 257, 509, 1031, 2053, 4099, 8209, 16411, 32771, 65537, 131101, 262147),
    (17, 23, 31, 43, 53, 67, 83, 101, 131, 163, 211, 257, 317, 397, 509, 641, 809, 1031, 1301, 1627, 2053, 2591, 4099),
)
"""Numbers between which one kernel serves: primes, so that no width divides them. Each is about four times the one
before; where tiles or threads are chosen otherwise between these, twice, or a quarter more."""
KIND = "rows"  # of the keys of kernels for many
MOST_FAMILIES = 4096

_seen: dict[Hashable, list[tuple[Family, Hashable]]] = {}  # with the plans that asked first
_made: dict[Hashable, list[KernelSpec]] = {}
_refused: set[Hashable] = set()  # keys of kernels that cannot be for many numbers of rows


class RowsWarning(UserWarning):
    """A kernel for many numbers of rows could not be compiled: there is one for each number instead."""


def of_many(spec: KernelSpec, how: TargetName, plan: Hashable) -> list[KernelSpec]:
    """The specifications of kernels for many numbers of rows that may serve one, the one for most numbers first; none
    where it is one of the first. Notes which numbers are asked for, and by which plan: within one nothing varies."""
    if spec.family is None or how.kind != "llvm" or how.checked or spec.choice or not how.ours or how.refusal:
        return []
    family = spec.family()
    if len(_seen) > MOST_FAMILIES:
        _seen.clear()
        _made.clear()
    key = family.key, spec.alone, how.text
    seen = _seen.setdefault((key, tuple(map(_inner, family.shapes))), [])
    if any(one.shapes == family.shapes and one.numbers == family.numbers for one, _ in seen):
        return []
    others = [(one, own) for one, own in seen if own != plan]
    found = [(varied, own) for one, own in others if (varied := _varied(one, family)) is not None]
    if len({own for _, own in found}) < EXACT:
        seen.append((family, plan))
        return []
    (rows, places, shares), _ = found[0]
    fixed = _with_rows(family.shapes, places, -1)
    values = tuple([None if share is not None else v for share, v in zip(shares, family.numbers, strict=True)])
    candidates = list[KernelSpec]()
    for bounds in BOUNDS:
        at = bisect_right(bounds, rows)
        if 0 < at < len(bounds):
            between = bounds[at - 1 : at + 1]
            own = key, between, fixed, values, shares
            if own not in _made:
                _made[own] = _for_many(spec, family, between, places, shares, how)
            candidates += _made[own]
    return candidates


def _inner(shape: Shape) -> tuple[int, Shape]:
    """A shape without its first axis that is longer than 1."""
    at = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return at, shape[at + 1 :]


def _with_rows(shapes: Sequence[Shape], places: Sequence[tuple[int, int]], rows: int) -> tuple[Shape, ...]:
    """The shapes with a number of rows at its places."""
    own = (tuple(rows if (i, axis) in places else n for axis, n in enumerate(s)) for i, s in enumerate(shapes))
    return tuple(own)


def _for_many(
    spec: KernelSpec, family: Family, between: Sequence[int], places: Sequence[tuple[int, int]],
    shares: Sequence[float | None], how: TargetName,
) -> list[KernelSpec]:  # fmt: skip
    """The specification for the numbers of rows between two; none for a formula that is none for these."""
    low, high = between
    even = (n for n in range((low + high) // 2, high) if n % 4 == 2 and n % 3 and n % 5 and n % 7)
    middle = next(even, (low + high) // 2)

    def of(number: int) -> KernelSpec:
        shapes = _with_rows(family.shapes, places, number)
        if any(math.prod(shape) > MOST_COUNTED for shape in shapes):
            raise ShapeError("too many elements")
        values = [v if a is None else a / number for a, v in zip(shares, family.numbers, strict=True)]
        return replace(family.of(shapes, values), alone=spec.alone)

    numbers = middle, low, high
    try:
        specs = [of(number) for number in (low, middle, high)]
    except DlsysError:
        return []
    own = tuple([share for share in shares if share is not None])
    loops = cache(lambda: with_compiler("kernels.build").for_many_rows(of, numbers, own, how))
    key = KIND, specs[0].formula, specs[1].formula
    return [KernelSpec(spec.name, key, (), spec.te, outputs=(), loops=loops)]


def is_one(spec: KernelSpec) -> bool:
    """Whether a specification that `of_many` gave can be compiled: whether its code is the same for all numbers."""
    assert spec.loops is not None
    if spec.key not in _refused and spec.loops() is None:
        _refused.add(spec.key)
    return spec.key not in _refused


def refuse(specs: Iterable[KernelSpec]) -> bool:
    """Notes that kernels for many numbers of rows among some cannot be compiled, with a warning; whether there is one:
    then others are compiled, for one number each."""
    found = [spec for spec in specs if isinstance(spec.key, tuple) and spec.key[:1] == (KIND,)]
    _refused.update(spec.key for spec in found)
    if found:
        names = ", ".join(sorted({spec.name for spec in found}))
        warn(f"kernels for many numbers of rows failed, those for one have their place: {names}", RowsWarning)
    return bool(found)


def _varied(old: Family, new: Family) -> tuple[int, list[tuple[int, int]], tuple[float | None, ...]] | None:
    """The number of rows of `new`, the axes that have it, and for each constant what is divided by it, None for one
    that does not hang on it; None where more than the first axes of one extent differ from `old`."""
    places, pairs = list[tuple[int, int]](), set[tuple[int, int]]()
    for i, (a, b) in enumerate(zip(old.shapes, new.shapes, strict=True)):
        own = [axis for axis, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        if len(a) != len(b) or any(extent != 1 for axis in own for extent in b[:axis]):
            return None
        places += [(i, axis) for axis in own]
        pairs |= {(a[axis], b[axis]) for axis in own}
    if len(pairs) != 1:
        return None
    ((before, rows),) = pairs
    if not before or not rows:  # nothing is computed, and nothing divided by them
        return None
    shares: list[float | None] = []
    for x, y in zip(old.numbers, new.numbers, strict=True):
        share = round(y * rows, 4) if x != y else None
        if share is not None and not (_is_quotient(x, share, before) and _is_quotient(y, share, rows)):
            return None
        shares.append(share)
    return rows, places, tuple(shares)


def _is_quotient(value: float, share: float, rows: int) -> bool:
    """Whether a value is a share divided by the number of rows, rounded to float64 or float32."""
    return value in (share / rows, float(np.float32(share / rows)))
