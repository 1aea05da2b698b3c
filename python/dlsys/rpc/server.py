"""The processes of devices far away: a tracker, which knows the workers, and workers, each of which lends its CPU.

Both are TVM's own servers, behind a check of a token: a tracker prints one at its start, a worker and a program are
given it. It is the first part of a worker's key, so TVM's own messages carry it.

TVM forks a process for each session. A worker therefore runs no kernel itself and has no thread: its sessions find TVM
as it was imported. A session that a kernel has ended leaves the worker as it was.
"""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import ipaddress
import json
import multiprocessing
import os
import re
import secrets
import signal
import socket
import struct
import sys
from typing import Any

import tvm_ffi
from tvm.rpc import server

from ..errors import DeviceError
from ..kernels import disk
from ..schedule import host_target
from ..schedule.target import described
from ..system import THREADS, at_fork, cache_sizes, setting

FACTS = "dlsys.rpc.facts"
TOKEN = "DLSYS_TOKEN"
PROBE = 2.0  # seconds in which a tracker answers that is there, and in which who connects must show the token
PORT = 9190  # of a tracker
LOCAL = "127.0.0.1"
_DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG


def versions() -> str:
    """The versions of TVM, which are the same in a worker and in the program that asks for it."""
    return " ".join(disk.versions())


def facts() -> str:
    """The CPU of this process as JSON: what code for it is compiled with."""
    target, caches = json.loads(str(host_target())), cache_sizes()
    cpu = {"cpu": described(host_target()), "target": target, "caches": caches}
    return json.dumps({**cpu, "versions": versions()})


def address(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`. Raises DeviceError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise DeviceError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def token_of(owner: str, token: str | None = None) -> str:
    """The token that is given, or that of DLSYS_TOKEN. Raises DeviceError where there is none, or one that no tracker
    prints: shorter than 16 characters, or with others than letters, digits, - and _."""
    if not (found := setting(TOKEN) if token is None else token):
        raise DeviceError(f"{owner}: the tracker printed a token at its start: set {TOKEN} to it")
    if not isinstance(found, str) or not re.fullmatch(r"[\w-]{16,128}", found, re.ASCII):
        raise DeviceError(f"{owner}: a token is 16 to 128 letters, digits, - and _")
    return found


def connected(host: str, port: int) -> socket.socket:
    """A connection to a tracker. Raises DeviceError after two seconds without an answer."""
    try:
        return socket.create_connection((host, port), PROBE)
    except OSError as error:
        why = f"no tracker answers at {host}:{port} ({error.strerror or error})"
        raise DeviceError(f"{why}: start one by `python -m dlsys tracker`") from None


def track(host: str = LOCAL, port: int = PORT) -> None:
    """Serves as a tracker until the process is ended, and prints the token: that of DLSYS_TOKEN, or a new one. Raises
    DeviceError where tornado is missing, OSError for an address that is taken."""
    try:
        from tvm.rpc import tracker
    except ImportError:
        raise DeviceError("a tracker needs tornado: pip install 'dlsys[remote]'") from None
    token = token_of("tracker", setting(TOKEN) or secrets.token_urlsafe(24))

    class Guarded(tracker.TCPEventHandler):
        """A connection that is served when a message has had the token, and closed if none has in two seconds."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._known = False
            self._ioloop.call_later(PROBE, lambda: self._known or self.close())

        def call_handler(self, args: Any) -> None:
            self._known = self._known or f"{token}/" in json.dumps(args)
            if self._known:
                super().call_handler(args)
            else:
                self.close()

    tracker.TCPEventHandler = Guarded
    asyncio.set_event_loop(asyncio.new_event_loop())
    with _listening("tracker", host, port) as sock:
        print(f"token {token}", flush=True)
        tracker.TrackerServerHandler(sock, token).run()


class Guarded(socket.socket):
    """A worker's socket, of which TVM accepts who sends the token within two seconds."""

    token = ""

    def accept(self) -> tuple[Any, Any]:
        """The next connection and its address, or in place of a stranger's a `_Stranger`."""
        connection, place = super().accept()
        wanted, at_most = f"client:{self.token}/".encode(), socket.SO_RCVTIMEO
        connection.setsockopt(socket.SOL_SOCKET, at_most, struct.pack("ll", int(PROBE), 0))
        try:  # a number, a length, and a key: they are looked at, and left for TVM
            greeting = connection.recv(8 + len(wanted), socket.MSG_PEEK | socket.MSG_WAITALL)
        except OSError:
            greeting = b""
        connection.setsockopt(socket.SOL_SOCKET, at_most, struct.pack("ll", 0, 0))
        if hmac.compare_digest(greeting[8:], wanted):
            return connection, place
        connection.close()
        return _Stranger(), place


class _Stranger:
    """A connection that TVM drops: its first bytes are none of its clients'."""

    def recv(self, size: int) -> bytes:
        return bytes(size)

    def close(self) -> None:
        """Nothing is open."""


def work(tracker: str, key: str, host: str = LOCAL, port: int = 0) -> None:
    """Serves as a worker `key` of the tracker at HOST:PORT, whose token DLSYS_TOKEN has, until the process is ended.
    `port`: 0 for any that is free.

    Raises DeviceError where there is no token or no tracker, or for a minute none any more; OSError for an address that
    is taken."""
    if not key or "/" in key or any(map(str.isspace, key)):
        raise DeviceError(f"a worker's key is a word without a slash, not {key!r}")
    at, token, home = address(tracker), token_of("worker"), os.getcwd()
    connected(*at).close()
    tvm_ffi.register_global_func(FACTS, facts, override=True)
    multiprocessing.set_start_method("fork", force=True)
    host_target(1)  # what sessions need of it is known when they are forked
    at_fork(_in_session)
    server._server_env = _session_functions
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that folders of sessions are removed
    told = None if ipaddress.ip_address(socket.gethostbyname(host)).is_unspecified else host  # what clients are told
    with _listening(f"worker {key} of the tracker {tracker}", host, port) as listening:
        sock = Guarded(fileno=listening.detach())
        sock.token = token
        try:
            while True:
                try:
                    server._listen_loop(sock, sock.getsockname()[1], f"{token}/{key}", at, None, told)
                except RuntimeError as error:  # of TVM's, of which this one is that a session was ended by a signal
                    if not str(error).startswith("Child process"):
                        raise DeviceError(f"the tracker {tracker} has ended, or is none: {error}") from None
                    print(error, file=sys.stderr, flush=True)
                os.chdir(home)  # TVM was in the session's folder
        finally:
            for child in multiprocessing.active_children():
                child.kill()


def _listening(what: str, host: str, port: int) -> socket.socket:
    """A socket that listens. Prints its address, and what others can do where not this machine's programs alone can
    connect."""
    sock = socket.create_server((host, port))
    print(f"{what} on {host}:{sock.getsockname()[1]}", flush=True)
    if not ipaddress.ip_address(socket.gethostbyname(host)).is_loopback:
        print("nothing is encrypted: who reads the network's traffic learns the token", flush=True)
    return sock


def _in_session() -> None:
    """In the process of a session: it has as many threads as the worker may have, which has none; it ends with its
    worker, and at once where TVM ends it for its time is up."""
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, int(os.environ[THREADS]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


_tvm_functions = server._server_env


def _session_functions(load_library: Any, folder: Any) -> Any:
    """In the process of a session: TVM's functions, with names of files that lead out of the session's folder refused.
    """
    made, path_of = _tvm_functions(load_library, folder), folder.relpath

    def checked(name: str) -> str:
        if not re.fullmatch(r"[\w-][\w.-]{0,99}", name, re.ASCII):
            raise ValueError(f"{name!r} is not the name of a file in the session's folder")
        return path_of(name)

    folder.relpath = checked
    return made
