"""Instructions that compute several terms of a sum at once: what each computes, as NumPy would, and how it is written,
side by side. A product whose elements have an instruction's dtypes reads them in groups along k, each a number of 32
bits (see `cpu.dots`); its code is that of any product, but for the step.
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


@dataclass(frozen=True)
class Intrinsic:
    """A vector instruction total[i] + a[i, 0] * b[i, 0] + a[i, 1] * b[i, 1] + ..., of int32.

    Attributes:
        name: as LLVM names it.
        feature: the CPU's that it needs, by LLVM's name.
        a: the dtype of the elements of a, of which each lane has `terms`,
        b: and of those of b; those of a product are converted to them.
        takes: the dtypes of a product's elements.
        lowering: how it is written: lanes, total, a and b, vectors of 32 bits a lane -> the new total; None where it
            has no such width.
    """

    name: str
    feature: str
    a: str
    b: str
    takes: tuple[str, str]
    lowering: Callable[[int, Expr, Expr, Expr], Expr | None]

    @property
    def terms(self) -> int:
        """Terms that a lane adds up."""
        return 4 // np.dtype(self.a).itemsize

    def behaviour(self, total: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The new total as NumPy computes it, of total (lanes,), a and b (lanes, terms)."""
        found = total.copy()
        for lane in range(len(total)):
            for term in range(self.terms):
                found[lane] += np.int32(a[lane, term]) * np.int32(b[lane, term])
        return found

    def term(self, a: Expr, b: Expr) -> Expr:
        """The term of a sum: its addition to the total, of groups a and b."""
        return tirx.call_pure_extern(RESULT, self.name, a, b)

    def lowered(self, lanes: int, total: Expr, a: Expr, b: Expr) -> Expr:
        """The new total of so many lanes; by plain arithmetic where no instruction is so wide."""
        found = self.lowering(lanes, total, a, b)
        if found is not None:
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
