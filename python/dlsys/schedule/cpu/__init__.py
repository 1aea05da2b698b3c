"""Rules for CPUs, in the order in which they are asked."""

from __future__ import annotations

from ..target import Rule
from . import contraction, loops, pointwise, reduction, windows

FALLBACK = Rule("fallback", "llvm", reduction.finish)
"""What always works: each stage by itself; loops that are no stage are left to LLVM."""
RULES = (contraction.RULE, windows.RULE, reduction.RULE, loops.RULE, pointwise.RULE, FALLBACK)
