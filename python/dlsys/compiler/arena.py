"""The device memory that plans use in turn."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from ..device import Context, allocate


class Tenant(Protocol):
    """Whoever keeps values in an arena while it runs."""

    def leave(self) -> None:
        """Forget where the arena was: it has moved."""


class Arena:
    """Memory for the values of one run, shared by tenants that run in turn: as large as the largest of them needs.

    Attributes:
        lock: held while a tenant runs and until its results were read or copied.
        allocations: how many device buffers were allocated for the tenants.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.lock = threading.RLock()
        self.allocations = 0
        self._memory: Any = None
        self._nbytes = 0
        self._tenants: weakref.WeakSet[Any] = weakref.WeakSet()

    def memory(self, nbytes: int, tenant: Tenant) -> Any:
        """A tensor of `nbytes` bytes or more, valid until `tenant.leave` is called, as when another needs more."""
        with self.lock:
            if self._memory is None or nbytes > self._nbytes:
                for other in self._tenants:  # before, so that the smaller one makes room
                    other.leave()
                self._tenants.clear()
                self._memory, self._nbytes = None, 0
                self._memory, self._nbytes = self.own(nbytes), nbytes
            self._tenants.add(tenant)
            return self._memory

    def own(self, nbytes: int) -> Any:
        """A tensor that is not shared: on a GPU each buffer is one, as kernels refuse a byte offset there."""
        self.allocations += 1
        return allocate((max(nbytes, 1),), "uint8", self.ctx)
