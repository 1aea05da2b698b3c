"""Rules for CPUs, in the order in which they are asked."""

from __future__ import annotations

from ..target import Rule
from . import loops, pointwise, reduction, tiler

FALLBACK = Rule("fallback", "llvm", reduction.finish)
"""What always works: each stage by itself; loops that are no stage are left to LLVM."""
RULES = (tiler.RULE, reduction.RULE, loops.RULE, pointwise.RULE, FALLBACK)
