"""How many instructions an expression takes: what the models of a GPU and of a CPU count."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .common import CHEAP_CALLS

CALL = 8  # instructions of an exp, a division or the like, about
HELPER = "tirx.call_extern"  # calls of one instruction: those of `nvrtc.HELPERS`, and of the shuffles
_ONE_INSTRUCTION = ("shift", "bitwise", "reinterpret", "nearbyint", "if_then_else", "address_of", "isfinite")
_OPERATORS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select)


def instructions(value: Any) -> int:
    """Instructions of an expression of floats for one element, about; a multiply-add is one."""
    found = 0

    def operator(item: Any) -> None:
        nonlocal found
        if str(item.ty).startswith("float"):
            fused = isinstance(item, tirx.Mul)  # with the addition that takes it
            found += CALL if isinstance(item, tirx.Div) else 0 if fused else 1

    def call(item: ir.Call) -> None:
        nonlocal found
        name = str(getattr(item.op, "name", ""))
        cheap = name in CHEAP_CALLS or name == HELPER or any(part in name for part in _ONE_INSTRUCTION)
        found += 1 if cheap else CALL

    tvm_ffi.structural_walk(value, [(_OPERATORS, operator), (ir.Call, call)])
    return max(found, 1)
