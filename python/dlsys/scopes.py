"""What nodes are made for now, in each thread: the part of a network, and whether gradients go through them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _Scopes(threading.local):
    """The part of a network for which a thread makes nodes, and whether gradients are on."""

    def __init__(self) -> None:
        self.part: Any = None
        self.no_grad = False


scopes = _Scopes()


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
