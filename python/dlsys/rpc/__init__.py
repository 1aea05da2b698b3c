"""Devices far away, on TVM's RPC: a tracker knows workers, each of which lends its CPU to one session at a time.

    server.py   the tracker's and the worker's process, which serve who knows their token
    client.py   `remote`: compile here for a device, request it, run there, results here

A program is compiled for the target and the caches that the device states.
"""

from __future__ import annotations

from typing import Any

from ..tvm_import import with_compiler


def __getattr__(name: str) -> Any:
    """A name of a file that needs TVM's compiler, which is imported now."""
    if name in ("Remote", "Step", "remote"):
        return getattr(with_compiler("rpc.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
