"""Rules for GPUs by CUDA, in the order in which they are asked."""

from __future__ import annotations

from . import contraction, fallback, pointwise, reduction, rows

RULES = (contraction.RULE, rows.RULE, reduction.RULE, pointwise.RULE, fallback.RULE)
