"""Vectors of every second element, loaded as whole vectors whose elements are picked in registers.

LLVM loads each element of such a vector by itself. Convolutions and pooling of stride 2 read images so: planes were
convolved ten times as long, for each result, as with stride 1. Now it is three times: twice the bytes, and the picking.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

STRIDES = (2, 3, 4)  # of elements further apart, most of what is loaded would be dropped
LANES = 16  # of a part: its elements come from `stride` vectors, which are registers


def contiguous(load: Any) -> Any:
    """A load of a vector of elements some apart, as loads of neighbours; other loads as they are."""
    at = load.indices[0] if len(load.indices) == 1 else None
    if load.source.scope() == "local" or str(load.source.dtype) not in ("float32", "float64"):
        return load  # what is local becomes registers, if its elements are loaded as they were stored
    if not isinstance(at, tirx.Ramp) or not isinstance(at.stride, tirx.IntImm) or int(at.stride) not in STRIDES:
        return load
    stride, lanes = int(at.stride), int(at.lanes)
    firsts = range(0, lanes, LANES)
    parts = [_part(load.source, at.base + i * stride, min(LANES, lanes - i), stride) for i in firsts]
    return parts[0] if len(parts) == 1 else tirx.Shuffle(parts, list(range(lanes)))


def _part(source: Any, base: Any, lanes: int, stride: int) -> Any:
    """Elements base, base + stride, ... from vectors of neighbours, of which none goes beyond the last element."""
    if lanes == 1:
        return tirx.BufferLoad(source, [base])
    span = (lanes - 1) * stride + 1
    width = min(LANES, 1 << (span.bit_length() - 1))
    starts = [min(start, span - width) for start in range(0, span, width)]
    vectors = [tirx.BufferLoad(source, [tirx.Ramp(base + start, 1, width)]) for start in starts]
    places = [(at, min(at // width, len(starts) - 1)) for at in range(0, span, stride)]
    return tirx.Shuffle(vectors, [vector * width + at - starts[vector] for at, vector in places])
