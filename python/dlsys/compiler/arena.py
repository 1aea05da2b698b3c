"""The memory that the plans of an executor use in turn."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from ..devices import Context, allocate
from ..system import at_fork, freed


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
        self.lock: threading.RLock = threading.RLock()
        self.allocations: int = 0
        self._memory: Any = None
        self._nbytes = 0
        self._tenants: weakref.WeakSet[Any] = weakref.WeakSet()
        _arenas.add(self)

    def memory(self, nbytes: int, tenant: Tenant) -> Any:
        """A tensor of `nbytes` bytes or more, valid until `tenant.leave` is called, as when another needs more."""
        with self.lock:
            if self._memory is None or nbytes > self._nbytes:
                for other in self._tenants:  # before, so that the smaller one makes room
                    other.leave()
                self._tenants.clear()
                self._memory, self._nbytes = None, 0
                self._memory, self._nbytes = allocate((max(nbytes, 1),), "uint8", self.ctx), nbytes
                self.allocations += 1
            self._tenants.add(tenant)
            return self._memory

    def after_fork(self) -> None:
        """In a forked process: the lock is free, and what a thread of the other process was doing is done anew."""
        if freed(self.lock):
            for tenant in self._tenants:
                tenant.leave()


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _after_fork() -> None:
    for arena in _arenas:
        arena.after_fork()


at_fork(_after_fork)
