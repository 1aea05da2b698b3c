"""Folders for data sets, and mirrors on this machine."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


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
            body = bodies.get(self.path.removeprefix("/"))
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
        yield f"http://127.0.0.1:{mirror.server_port}/", asked
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
