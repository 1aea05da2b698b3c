"""What nodes and kernels are made for now, in each thread: the part of a network, whether gradients go through them,
how exact their products are, and by whose schedules."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .errors import DTypeError, GraphError

HALVES = ("bfloat16", "float16")


class _Scopes(threading.local):
    """The part of a network for which a thread makes nodes, whether gradients are on, and were before each block that
    it is in, to what products may round their inputs of float32 on a GPU, one of HALVES, or None, whether kernels are
    built with our schedules, and the node in whose place nodes are made."""

    def __init__(self) -> None:
        self.part: Any = None
        self.no_grad = False
        self.modes: list[bool] = []
        self.precision: str | None = None
        self.own_schedules = True
        self.origin: Any = None


scopes: _Scopes = _Scopes()


@contextlib.contextmanager
def scope(part: Any) -> Iterator[None]:
    """Nodes made inside belong to this part of a network, a call of its `module`: printed behind their source line."""
    before, scopes.part = scopes.part, part
    try:
        yield
    finally:
        scopes.part = before


def is_grad_enabled() -> bool:
    """Whether gradients go through the nodes that are made now."""
    return not scopes.no_grad


@contextlib.contextmanager
def precision(dtype: str | None) -> Iterator[None]:
    """Products made inside may round to this dtype, see `_Scopes`."""
    before, scopes.precision = scopes.precision, dtype
    try:
        yield
    finally:
        scopes.precision = before


@contextlib.contextmanager
def in_place_of(origin: Any) -> Iterator[None]:
    """Nodes made inside say that they were made where that node was, and products are as exact as it is. Inside,
    `scopes.origin` may be set to another one."""
    before, scopes.origin = scopes.origin, origin
    try:
        yield
    finally:
        scopes.origin = before


@contextlib.contextmanager
def autocast(device_type: str = "cuda", dtype: str = "bfloat16", enabled: bool = True) -> Iterator[None]:
    """A context or decorator: matrix products and convolutions written inside, and their gradients wherever these are
    taken, may round their float32 inputs to `dtype` on a GPU, where tensor cores multiply them and add up in float32.

    "bfloat16" keeps 7 bits behind the point and all of float32's range; "float16" keeps 10, takes what is larger than
    65,504 for infinite and what is smaller than 6e-8 for zero. Arrays stay float32, and all that is no product is
    computed in it, as is a product with fewer than 32 rows or columns. The CPU computes in float32 whatever is asked
    for: there, and with `device_type` "cpu", nothing happens. `enabled=False` asks for float32 within such a context.

    Raises DTypeError for another dtype, GraphError for another device.
    """
    if device_type not in ("cuda", "cpu"):
        raise GraphError(f'autocast: the device is "cuda" or "cpu", not {device_type!r}')
    if dtype not in HALVES:
        raise DTypeError(f"autocast: inputs are rounded to {' or '.join(HALVES)}, not {dtype!r}")
    own = dtype if enabled else None
    with precision(scopes.precision if device_type == "cpu" else own):
        yield


@contextlib.contextmanager
def default_schedules() -> Iterator[None]:
    """Within it kernels are built with TVM's default loops instead of our schedules: to compare with."""
    before, scopes.own_schedules = scopes.own_schedules, False
    try:
        yield
    finally:
        scopes.own_schedules = before
