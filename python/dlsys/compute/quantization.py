"""Numbers as integers of eight bits and a step, and back."""

from __future__ import annotations

import numpy as np
from tvm import tirx

from .base import Expr, constant, elementwise


@elementwise
def quantize_linear(u: Expr, scale: Expr, zero: Expr, dtype: str) -> Expr:
    """round(u / scale) + zero within the limits of an integer dtype; the lower one of NaN."""
    q = tirx.nearbyint(u / scale) + zero
    low, high = (constant(limit, u.ty) for limit in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    return tirx.Select(q > low, tirx.Select(q < high, q, high), low).astype("int32").astype(dtype)


@elementwise
def dequantize_linear(q: Expr, scale: Expr, zero: Expr) -> Expr:
    """(q - zero) scale."""
    return (q.astype(scale.ty) - zero) * scale
