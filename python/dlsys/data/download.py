"""One file over HTTP, with a progress bar and a time-out that holds for every stage of it."""

from __future__ import annotations

import http.client
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT = 10.0
"""Seconds without a byte after which a mirror is given up."""
SLOWEST = 2048
"""Bytes per second below which a mirror counts as stalled, once TIMEOUT has passed."""
CHUNK = 1 << 16


def download(url: str, title: str, timeout: float = TIMEOUT) -> bytes:
    """The body at `url`; a progress bar named `title` on stderr if that is a terminal.

    Raises OSError, whose message names the host and the cause, if the server cannot be reached, refuses, cuts
    the connection, or stalls.
    """
    # imported late: a data set on disk needs no progress bar
    from tqdm import tqdm

    # A socket's time-out covers neither name resolution nor the trying of many addresses, so a thread does
    # the blocking work and this one waits for its chunks; given up, it ends with its own socket's time-out.
    chunks: queue.SimpleQueue[bytes | int | OSError] = queue.SimpleQueue()
    given_up = threading.Event()
    host = urllib.parse.urlsplit(url).netloc or url
    threading.Thread(target=receive, args=(url, timeout, chunks, given_up), daemon=True).start()
    body = bytearray()
    start = time.monotonic()
    try:
        with tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024, leave=False, disable=None) as bar:
            while True:
                message = chunks.get(timeout=timeout)
                elapsed = time.monotonic() - start
                if isinstance(message, TimeoutError):
                    raise queue.Empty  # the socket's own time-out, which races with ours
                if isinstance(message, OSError):
                    raise OSError(f"{host}: {cause(message)}")
                if isinstance(message, int):
                    bar.reset(total=message or None)
                    continue
                if not message:
                    return bytes(body)
                body += message
                bar.update(len(message))
                if elapsed > timeout and len(body) < SLOWEST * elapsed:
                    raise OSError(f"{host}: slower than {SLOWEST} bytes a second")
    except queue.Empty:
        raise OSError(f"{host}: no answer within {timeout:g} s") from None
    finally:
        given_up.set()


def receive(
    url: str,
    timeout: float,
    chunks: queue.SimpleQueue[bytes | int | OSError],
    given_up: threading.Event,
) -> None:
    """Puts the length of the body (0: unknown), its chunks, then ``b""``; or an OSError at any point."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "dlsys"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            length = int(response.headers.get("Content-Length") or 0)
            chunks.put(length)
            received = 0
            while not given_up.is_set():
                chunk = response.read1(CHUNK)
                received += len(chunk)
                if not chunk and received < length:
                    raise ConnectionError(f"the connection closed after {received} of {length} bytes")
                chunks.put(chunk)
                if not chunk:
                    break
    except OSError as error:
        chunks.put(error)
    except (http.client.HTTPException, ValueError) as error:
        chunks.put(OSError(f"{type(error).__name__}: {error}"))


def cause(error: OSError) -> str:
    """The innermost cause in words: `URLError` wraps what the socket said."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
        error = error.reason
    return error.strerror or str(error) or type(error).__name__
