"""One kernel for many numbers of rows: of a batch, a text, a table.

A kernel that is asked for with a third number of rows, or a fifth of an axis that is not the first, is lowered for
numbers around it: `schedule.varying` writes what depends on them as expressions, and only where that gives one code for
all three is it compiled, for all numbers between. Its function finds the number in the shapes of its arguments. Others
are compiled for each number, as the first ones are: what always has the same shape runs what was compiled for that.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from ..errors import DlsysError, ShapeError
from ..graph import Shape
from ..system import warn
from ..tvm_import import with_compiler
from .kernel import Kernel
from .spec import MOST_COUNTED, KernelSpec, TargetName

EXACT = 2  # numbers of rows for which a formula's kernels are compiled by themselves: of whole batches, and of the last
EXACT_OF_ANY = 4  # the same where another axis varies, or for less than 17 rows
MOST_SEEN = 16
BOUNDS = (
    (17, 67, 257, 1031, 4099, 16411, 65537, 262147),
    (17, 31, 67, 131, 257, 509, 1031, 2053, 4099, 8209, 16411, 32771, 65537, 131101, 262147),
    (17, 23, 31, 43, 53, 67, 83, 101, 131, 163, 211, 257, 317, 397, 509, 641, 809, 1031, 1301, 1627, 2053, 2591, 4099),
)
"""Numbers between which one kernel serves: primes, so that no width divides them. Each is about four times the one
before; where tiles or threads are chosen otherwise between these, twice, or a quarter more."""
TIERS = (EXACT, False, BOUNDS), (EXACT_OF_ANY, True, ((7, 17), *BOUNDS))
"""After how many numbers of rows that are compiled by themselves, of any axis or of the first alone, between which."""
MOST_FAMILIES = 4096

_seen: dict[Hashable, list[tuple[Member, Hashable]]] = {}  # with the plans that asked first
_made: dict[Hashable, list[KernelSpec]] = {}  # specifications of kernels for many numbers, one or none each


class RowsWarning(UserWarning):
    """A kernel for many numbers of rows could not be compiled: there is one for each number instead."""


class Varied(NamedTuple):
    """The difference of two sets of shapes of a formula.

    Attributes:
        rows: the number of rows of the second.
        places: of what varies: which array, its axis, and how much more than the number of rows it is.
        shares: for each constant what is divided by the number, None for one that does not hang on it.
    """

    rows: int
    places: list[tuple[int, int, int]]
    shares: tuple[float | None, ...]


class Member(NamedTuple):
    """A kernel of a formula: a hash of that, the shapes of its arrays, and its constants."""

    key: str
    shapes: tuple[Shape, ...]
    numbers: tuple[float, ...]


def member_of(spec: KernelSpec, how: TargetName) -> Member | None:
    """The kernel as one of its formula's; None for one that is always compiled by itself."""
    if spec.family is None or how.kind != "llvm" or how.checked or spec.choice or not how.ours or how.refusal:
        return None
    family = spec.family()
    key = hashlib.sha256(repr((family.key, how.text)).encode()).hexdigest()[:16]
    return Member(key, family.shapes, family.numbers)


def note(own: Member, plan: Hashable) -> list[tuple[int, Iterable[Sequence[int]], Varied]]:
    """Notes that a plan asks for a kernel: within one, as for parameters of several sizes, nothing varies. Returns what
    varies, where it is none of the first of its formula, after how many of them, and between which numbers."""
    if len(_seen) > MOST_FAMILIES:
        _seen.clear()
        _made.clear()
    varying = list[tuple[int, Iterable[Sequence[int]], Varied]]()
    for after, any_axis, ranges in TIERS:
        seen = _seen.setdefault((own.key, None if any_axis else tuple(map(_inner, own.shapes))), [])
        if any(one == own for one, _ in seen):
            break
        found = [(x, by) for one, by in seen if by != plan and (x := _varied(one, own, any_axis)) is not None]
        if len({by for _, by in found}) < after:
            seen.append((own, plan))
            del seen[:-MOST_SEEN]
        else:
            varying.append((after, ranges, found[0][0]))
    return varying


def first_members(kernels: Iterable[Kernel]) -> list[Member]:
    """The kernels that are among the first of their formulas, or were compiled for one axis that varies."""
    own = {kernel.symbol: kernel for kernel in kernels if kernel.after < EXACT_OF_ANY}
    found = (member_of(kernel.spec, kernel.named_target) for kernel in own.values())
    return [member for member in found if member is not None]


def note_members(members: Iterable[tuple[str, Sequence[Sequence[int]], Sequence[float]]], plan: Hashable) -> None:
    """Notes that a plan has these kernels."""
    for key, shapes, numbers in members:
        note(Member(key, tuple(map(tuple, shapes)), tuple(numbers)), plan)


def of_many(spec: KernelSpec, how: TargetName, plan: Hashable) -> list[KernelSpec]:
    """The specifications of kernels for many numbers of rows that may serve one, the one for most numbers first; none
    where it is one of the first. Notes which numbers are asked for, and by which plan."""
    if (own := member_of(spec, how)) is None:
        return []
    candidates = list[KernelSpec]()
    for after, ranges, varied in note(own, plan):
        fixed = [list(shape) for shape in own.shapes]
        for i, axis, _ in varied.places:
            fixed[i][axis] = -1
        values = tuple([None if share is not None else v for share, v in zip(varied.shares, own.numbers, strict=True)])
        told = own.key, after, tuple(map(tuple, fixed)), tuple(varied.places), values, varied.shares
        for bounds in ranges:
            at = bisect_right(bounds, varied.rows)
            if 0 < at < len(bounds):
                between = bounds[at - 1 : at + 1]
                key = told, between
                if key not in _made:
                    _made[key] = _for_many(spec, between, varied, how, after)
                candidates += _made[key]
    return candidates


def _inner(shape: Shape) -> tuple[int, Shape]:
    """A shape without its first axis that is longer than 1."""
    at = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return at, shape[at + 1 :]


def _for_many(
    spec: KernelSpec, between: Sequence[int], varied: Varied, how: TargetName, after: int
) -> list[KernelSpec]:
    """The specification for the numbers of rows between two; none for a formula that is none for these."""
    assert spec.family is not None
    family, (low, high) = spec.family(), between
    near = [n for n in range((low + high) // 2, high) if n % 3 and n % 5 and n % 7]  # few extents are their multiples
    middle = next((n for n in near if n % 4 == 2), near[0])

    def of(number: int) -> KernelSpec:
        shapes = [list(shape) for shape in family.shapes]
        for i, axis, more in varied.places:
            shapes[i][axis] = number + more
        if any(math.prod(shape) > MOST_COUNTED for shape in shapes):
            raise ShapeError("too many elements")
        values = [v if a is None else a / number for a, v in zip(varied.shares, family.numbers, strict=True)]
        return family.of([tuple(shape) for shape in shapes], values)

    try:
        specs = [of(number) for number in (low, middle, high)]
    except DlsysError:
        return []
    own = [share for share in varied.shares if share is not None]

    @cache
    def loops() -> object:
        return with_compiler("kernels.build").for_many_rows(of, (middle, low, high), own, how, after > EXACT)

    key = "rows", after, specs[0].formula, specs[1].formula
    return [KernelSpec(spec.name, key, (), spec.te, outputs=(), loops=loops, after=after)]


def is_one(spec: KernelSpec) -> bool:
    """Whether a specification that `of_many` gave can be compiled: whether its code is the same for all numbers."""
    return spec.loops is not None and spec.loops() is not None


def refuse(specs: Iterable[KernelSpec]) -> bool:
    """Notes that kernels for many numbers of rows among some cannot be compiled, with a warning; whether there is one:
    then others are compiled, for one number each."""
    found = [spec for spec in specs if spec.after]
    for own in _made.values():
        own[:] = [spec for spec in own if spec not in found]
    if found:
        names = ", ".join(sorted({spec.name for spec in found}))
        warn(f"kernels for many numbers of rows failed, those for one have their place: {names}", RowsWarning)
    return bool(found)


def _varied(old: Member, new: Member, any_axis: bool = False) -> Varied | None:
    """The difference from `old` to `new`; None where more than the first axes of one extent differ, or with `any_axis`
    more than axes of one extent and of one more."""
    pairs = [*enumerate(zip(old.shapes, new.shapes, strict=True))]
    if any(len(a) != len(b) for _, (a, b) in pairs):
        return None
    axes = ((i, axis, *both) for i, pair in pairs for axis, both in enumerate(zip(*pair, strict=True)))
    differing = [(i, axis, was, extent) for i, axis, was, extent in axes if was != extent]
    inner = any(other != 1 for i, axis, *_ in differing for other in new.shapes[i][:axis])
    if not differing or (inner and not any_axis):
        return None
    before, rows = min((was, extent) for _, _, was, extent in differing)
    places = [(i, axis, extent - rows) for i, axis, was, extent in differing if extent - rows == was - before]
    if not before or not rows or len(places) < len(differing) or any(more > any_axis for *_, more in places):
        return None  # also where nothing is computed, and nothing divided by the number
    shares: list[float | None] = []
    for x, y in zip(old.numbers, new.numbers, strict=True):
        share = round(y * rows, 4) if x != y else None
        if share is not None and not (_is_quotient(x, share, before) and _is_quotient(y, share, rows)):
            return None
        shares.append(share)
    return Varied(rows, places, tuple(shares))


def _is_quotient(value: float, share: float, rows: int) -> bool:
    """Whether a value is a share divided by the number of rows, rounded to float64 or float32."""
    return value in (share / rows, float(np.float32(share / rows)))
