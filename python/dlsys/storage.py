"""Files written whole or not at all, and what killed processes left of them."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

STALE_SECONDS = 3600  # what is being written for longer was left by a process that was killed


def write_atomically(path: Path, content: bytes) -> None:
    """Writes `path` whole or not at all, with the permissions of a new file; removes what killed processes left of it.
    Raises OSError."""
    target = Path(os.path.realpath(path))  # a link keeps pointing to the file
    remove_stale(target.parent, f"{glob.escape(target.name)}.*.tmp")
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
    with open(temporary, "xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:  # Ctrl-C too: nothing half-written may stay
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    _sync(target.parent)


def remove_stale(folder: Path, pattern: str) -> None:
    """Removes the files and folders of this pattern that nobody is writing any more."""
    for path in _found(folder, pattern):
        with contextlib.suppress(OSError):  # another process has just removed it
            if path.stat().st_mtime < time.time() - STALE_SECONDS:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def _found(folder: Path, pattern: str) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from folder.glob(pattern)


def _sync(folder: Path) -> None:
    """Makes a rename in `folder` last through a power failure, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse
            os.fsync(handle)
    finally:
        os.close(handle)
