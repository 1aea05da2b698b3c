"""Rules for CPUs, in the order in which they are asked."""

from __future__ import annotations

from . import contraction, fallback, loops, pointwise, reduction, windows

RULES = (contraction.RULE, windows.RULE, reduction.RULE, loops.RULE, pointwise.RULE, fallback.RULE)
