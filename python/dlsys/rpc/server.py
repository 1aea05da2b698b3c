"""The processes of devices far away: a tracker, which knows the workers, and workers, each of which lends its CPU.

Both are TVM's own servers. TVM forks a process for each session. A worker therefore runs no kernel itself and has no
thread: its sessions find TVM as it was imported. A session that a kernel has ended leaves the worker as it was.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import tvm_ffi
from tvm.rpc import server

from ..errors import DeviceError
from ..kernels import choices, target_name
from ..schedule import host_target
from ..schedule.target import described
from ..system import THREADS, at_fork, cache_sizes

FACTS = "dlsys.rpc.facts"
PROBE = 2.0  # seconds in which a tracker answers that is there
PORT = 9190  # of a tracker
LOCAL = "127.0.0.1"
_DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG
Served = Callable[..., str]
"""A function that a worker serves; what it is given and returns is text and TVM's arrays."""


def facts() -> str:
    """The CPU of this process as JSON: what code for it is compiled with, and how records of a search name it."""
    machine, versions = target_name("llvm").machine, choices.versions()
    target, caches = json.loads(str(host_target())), cache_sizes()
    told = {"cpu": described(host_target()), "machine": machine, "target": target, "caches": caches}
    return json.dumps({**told, "versions": versions})


def library(name: str) -> Any:
    """In a session: the library that was sent under this name."""
    return tvm_ffi.load_module(os.path.abspath(name))


def address(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`. Raises DeviceError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise DeviceError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def connected(host: str, port: int) -> socket.socket:
    """A connection to a tracker. Raises DeviceError after two seconds without an answer."""
    try:
        return socket.create_connection((host, port), PROBE)
    except OSError as error:
        told = f"no tracker answers at {host}:{port} ({error.strerror or error})"
        raise DeviceError(f"{told}: start one by `python -m dlsys tracker`") from None


def track(host: str = LOCAL, port: int = PORT) -> None:
    """Serves as a tracker until the process is ended. Raises DeviceError where tornado is missing, OSError for an
    address that is taken."""
    try:
        from tvm.rpc.tracker import TrackerServerHandler
    except ImportError:
        raise DeviceError("a tracker needs tornado: pip install 'dlsys[remote]'") from None
    asyncio.set_event_loop(asyncio.new_event_loop())
    with _listening("tracker", host, port, "use its workers, and name others in their place") as sock:
        TrackerServerHandler(sock, "").run()


def work(
    tracker: str, key: str, host: str = LOCAL, port: int = 0, functions: Mapping[str, Served] = MappingProxyType({})
) -> None:
    """Serves as a worker `key` of a tracker, HOST:PORT, until the process is ended.

    `port`: 0 for any that is free; `functions`: by name what sessions may call besides TVM's functions and `facts`.
    Raises DeviceError where there is no tracker, or for a minute none any more; OSError for an address that is taken.
    """
    if not key or "/" in key or any(map(str.isspace, key)):
        raise DeviceError(f"a worker's key is a word without a slash, not {key!r}")
    at, home = address(tracker), os.getcwd()
    for name, function in {FACTS: facts, **functions}.items():
        tvm_ffi.register_global_func(name, function, override=True)
    multiprocessing.set_start_method("fork", force=True)
    host_target(1)  # what sessions need of it is known when they are forked
    at_fork(_in_session)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that folders of sessions are removed
    connected(*at).close()
    told = None if ipaddress.ip_address(socket.gethostbyname(host)).is_unspecified else host  # what clients are told
    what = f"worker {key} of the tracker {tracker}"
    with _listening(what, host, port, "write files and run programs as you") as sock:
        try:
            while True:
                try:
                    server._listen_loop(sock, sock.getsockname()[1], key, at, None, told)
                except RuntimeError as error:  # of TVM's, of which this one is that a session was ended by a signal
                    if not str(error).startswith("Child process"):
                        raise DeviceError(f"the tracker {tracker} has ended, or is none: {error}") from None
                    print(error, file=sys.stderr, flush=True)
                os.chdir(home)  # TVM was in the session's folder
        finally:
            for child in multiprocessing.active_children():
                child.kill()


def _listening(what: str, host: str, port: int, may: str) -> socket.socket:
    """A socket that listens. Prints its address, and what others `may` do where not this machine's programs alone can
    connect."""
    sock = socket.create_server((host, port))
    print(f"{what} on {host}:{sock.getsockname()[1]}", flush=True)
    if not ipaddress.ip_address(socket.gethostbyname(host)).is_loopback:
        print(f"whoever can connect to it can {may}: trust its whole network", flush=True)
    return sock


def _in_session() -> None:
    """In the process of a session: it has as many threads as the worker may have, which has none; it ends with its
    worker, and at once where TVM ends it for its time is up."""
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, int(os.environ[THREADS]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
