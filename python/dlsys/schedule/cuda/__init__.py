"""Rules for GPUs by CUDA, in the order in which they are asked."""

from __future__ import annotations

from . import fallback

RULES = (fallback.RULE,)
