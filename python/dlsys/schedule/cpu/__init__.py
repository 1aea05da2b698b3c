"""Rules for CPUs, in the order in which they are asked."""

from __future__ import annotations

from . import contraction, fallback, pointwise, reduction, windows

RULES = (contraction.RULE, windows.RULE, reduction.RULE, pointwise.RULE, fallback.RULE)
