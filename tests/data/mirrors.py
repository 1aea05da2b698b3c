"""Folders for data sets, and mirrors on this machine."""

from __future__ import annotations

import contextlib
import http.server
import io
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock


@contextlib.contextmanager
def sandbox(**variables: str) -> Iterator[Path]:
    """A temporary folder whose `cache` is dlsys' cache; without DLSYS_DATA and DLSYS_OFFLINE unless given."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, DLSYS_CACHE=f"{folder}/cache"):
        for name in ("DLSYS_DATA", "DLSYS_OFFLINE"):
            os.environ.pop(name, None)
        os.environ.update(variables)
        yield Path(folder)


@contextlib.contextmanager
def server(bodies: dict[str, bytes], stall: bool = False, cut: int = 0) -> Iterator[tuple[str, list[str]]]:
    """A mirror on this machine: its URL and the paths asked for so far.

    `stall`: sends the headers, then nothing; `cut`: closes that many bytes before the announced end.
    """
    asked: list[str] = []
    release = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = bodies.get(self.path.removeprefix("/mirror/"))
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if stall:
                release.wait()
            else:
                self.wfile.write(body[: len(body) - cut])

        def log_message(self, *args: object) -> None:
            pass

    mirror = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    mirror.daemon_threads = True
    thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{mirror.server_port}/mirror/", asked
    finally:
        release.set()
        mirror.shutdown()
        mirror.server_close()
        thread.join()


def write(folder: Path, content: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in content.items():
        (folder / name).write_bytes(value)
    return folder


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def quiet(make: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, str]:
    """What `make` returns and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        return make(*args, **kwargs), out.getvalue()
