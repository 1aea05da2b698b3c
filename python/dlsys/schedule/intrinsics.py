"""Instructions that compute several terms of a sum at once: what each computes, as NumPy would, and how it is written,
side by side. A CPU's adds up the terms of each lane of a vector, words of 32 bits (`cpu.dots`); the lanes of a GPU's
warp hold pieces of matrices together (`cuda.mma`). The product's code is that of any other, but for the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, tirx

from .stages import Expr

RESULT = "int32"
DECLARED: dict[str, Intrinsic] = {}
"""All by name; the first of two that a CPU has is taken."""

_BITS = {"tf32": 32, "bfloat16": 16}  # of dtypes that NumPy has not
Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Warp:
    """The parts of an instruction's pieces that a lane of a warp holds, by offsets from (lane // 4, lane % 4), the
    totals from twice the second; the code of a `word` of neighbours along k; the CUDA C++ of what words and instruction
    call."""

    a: Places
    b: Places
    total: Places
    word: Callable[..., Expr]
    source: tuple[str, str]


@dataclass(frozen=True)
class Intrinsic:
    """An instruction total[i, j] + a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + ..., by each lane of a vector, or by all
    lanes of a warp together.

    Attributes:
        feature: the CPU's that it needs, by LLVM's name, or the first architecture of a GPU.
        a, b: the dtypes of the elements of the words; a product's, of the dtypes `takes`, are converted to them.
        lowering: lanes, total, a and b, vectors of 32 bits a lane -> the new total; None where it has no such width. Of
            a warp: pointers to what a lane holds -> the call that adds to the total.
        total: the dtype of the sums.
        piece: rows, columns, and words along k, of what it multiplies.
        converted: elements of a product as those of a and b, in NumPy; by default they are the same numbers.
    """

    name: str
    feature: str
    a: str
    b: str
    takes: tuple[str, str]
    lowering: Callable[[int, Expr, Expr, Expr], Expr | None]
    total: str = RESULT
    piece: tuple[int, int, int] = (1, 1, 1)
    converted: Callable[[np.ndarray], np.ndarray] = np.asarray
    warp: Warp | None = None

    @property
    def terms(self) -> int:
        """Elements of a word of 32 bits."""
        return 32 // (_BITS.get(self.a) or 8 * np.dtype(self.a).itemsize)

    def behaviour(self, total: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The new total in NumPy, of total (lanes, m, n), a (lanes, m, k) and b (lanes, k, n), where (m, n, k / terms)
        is the piece; of a warp without the axis of lanes."""
        (m, n, words), found = self.piece, total.copy()
        a, b = (self.converted(x).astype(self.total) for x in (a, b))
        for i, j, term in np.ndindex(m, n, words * self.terms):
            found[..., i, j] += a[..., i, term] * b[..., term, j]
        return found

    def term(self, a: Expr, b: Expr) -> Expr:
        """The term of a sum: its addition to the total, of groups a and b."""
        return tirx.call_pure_extern(RESULT, self.name, a, b)

    def lowered(self, lanes: int, total: Expr, a: Expr, b: Expr) -> Expr:
        """The new total of so many lanes; by plain arithmetic where no instruction is so wide."""
        if (found := self.lowering(lanes, total, a, b)) is not None:
            return found
        for i in range(self.terms):
            total = total + self._element(a, self.a, i, lanes) * self._element(b, self.b, i, lanes)
        return total

    def _element(self, group: Expr, dtype: str, i: int, lanes: int) -> Expr:
        """Element number i of each group."""
        bits, many = 8 * np.dtype(dtype).itemsize, f"x{lanes}" if lanes > 1 else ""
        high = tirx.shift_left(group, tirx.const(32 - bits * (i + 1), RESULT + many))
        high = tirx.reinterpret("uint32" + many, high) if dtype.startswith("u") else high
        return tirx.shift_right(high, tirx.const(32 - bits, str(high.ty))).astype(RESULT + many)


def declared(intrinsic: Intrinsic) -> Intrinsic:
    """The intrinsic, of which the rules know from now on."""
    DECLARED[intrinsic.name] = intrinsic
    return intrinsic


def term_of(value: Expr) -> tuple[Intrinsic, Expr, Expr] | None:
    """The intrinsic of a sum's term and the groups that it takes; None for another term."""
    if not isinstance(value, ir.Call) or str(getattr(value.op, "name", "")) != "tirx.call_pure_extern":
        return None
    found = DECLARED.get(str(value.args[0].value))
    return None if found is None else (found, *value.args[1:])


def llvm(name: str, result: str, *values: Any) -> Expr:
    """A call of LLVM's intrinsic."""
    return tirx.call_llvm_pure_intrin(result, name, *values)
