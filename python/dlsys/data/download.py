"""One file over HTTP, with a progress bar and a time-out."""

from __future__ import annotations

import http.client
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

    host = urllib.parse.urlsplit(url).netloc or url
    body, start = bytearray(), time.monotonic()
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "dlsys"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            length = int(response.headers.get("Content-Length") or 0)
            settings = {"unit": "B", "unit_scale": True, "unit_divisor": 1024, "leave": False, "disable": None}
            with tqdm(desc=title, total=length or None, **settings) as bar:
                while chunk := response.read1(CHUNK):
                    body += chunk
                    bar.update(len(chunk))
                    elapsed = time.monotonic() - start
                    if elapsed > timeout and len(body) < SLOWEST * elapsed:
                        raise OSError(f"slower than {SLOWEST} bytes a second")
        if len(body) < length:
            raise OSError(f"the connection closed after {len(body)} of {length} bytes")
    except OSError as error:
        raise OSError(f"{host}: {_cause(error, timeout)}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{host}: {type(error).__name__}: {error}") from None
    return bytes(body)


def _cause(error: OSError, timeout: float) -> str:
    """The innermost cause in words: `URLError` wraps what the socket said."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
        error = error.reason
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    return error.strerror or str(error) or type(error).__name__
