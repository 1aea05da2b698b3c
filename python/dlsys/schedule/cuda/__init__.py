"""Rules for GPUs by CUDA, in the order in which they are asked."""

from __future__ import annotations

from . import contraction, fallback, loops, pointwise, reduction, rows, transpose
from .threads import is_bound

RULES = (contraction.RULE, rows.RULE, reduction.RULE, loops.RULE, transpose.RULE, pointwise.RULE, fallback.RULE)
