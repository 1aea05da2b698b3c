"""Rules for CPUs, in the order in which they are asked."""

from __future__ import annotations

from . import contraction, elementwise, fallback, matvec, reduction, windows

RULES = (contraction.RULE, matvec.RULE, windows.RULE, reduction.RULE, elementwise.RULE, fallback.RULE)
