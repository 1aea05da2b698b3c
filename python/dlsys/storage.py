"""Files read up to a limit, written whole or not at all, leftovers of killed processes, and the user's own files."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .errors import DataError

STALE_SECONDS = 3600  # what is being written for longer was left by a process that was killed


def checked_size(path: str | os.PathLike[str], most: int) -> int:
    """The bytes of a file that is to be read. Raises DataError for one of more than `most` bytes, and for what is no
    plain file: a device or a pipe need not end."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise DataError(f"{path} cannot be read: Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is a device or a pipe, not a file: it is not read")
    if found.st_size > most:
        raise DataError(f"{path} has {found.st_size} bytes, {most} is the most that is read")
    return found.st_size


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a plain file of at most `most` bytes. Raises DataError."""
    size = checked_size(path, most)
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise DataError(f"{path} has {size} bytes, more than memory has room for") from None


def write_atomically(path: Path, content: bytes, own: bool = False) -> None:
    """Writes `path` whole or not at all, with the permissions of a new file, but that others may not write to one that
    is `own`; removes what killed processes left of it. Raises OSError."""
    target = Path(os.path.realpath(path))  # a link keeps pointing to the file
    remove_stale(target.parent, f"{glob.escape(target.name)}.*.tmp")
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
    with open(temporary, "xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if own:
                without_others(temporary)
            os.replace(temporary, target)
        except BaseException:  # Ctrl-C too: nothing half-written may stay
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    _sync(target.parent)


def own_content(path: Path, most: int) -> bytes:
    """The content of a file that is the user's own, see `require_own`. Raises OSError where it is not, and for a link,
    for what is no file, and for more than `most` bytes."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is a link or no file")
    if status.st_size > most:
        raise OSError(f"{path} has {status.st_size:,} bytes, and may have {most:,}")
    require_own(path)
    return path.read_bytes()


def require_own(path: Path) -> None:
    """Raises PermissionError where others than the user and root may write to a file or folder, or put another in its
    place, as they may write to a folder around it. `path`: without links."""
    if not hasattr(os, "getuid"):
        return
    for place in (path, *path.parents):
        status = os.lstat(place)
        if status.st_uid not in (os.getuid(), 0):
            raise PermissionError(f"{place} belongs to another user")
        sticky = place != path and status.st_mode & stat.S_ISVTX  # as /tmp: others can add to it, and replace nothing
        writers = stat.S_IWOTH if status.st_gid == _private_group() else stat.S_IWOTH | stat.S_IWGRP
        if status.st_mode & writers and not sticky:
            raise PermissionError(f"others may write to {place}")


@cache
def _private_group() -> int | None:
    """The group that has the user's name and no other member, as many systems have one for each user; None where there
    is none."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
        if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
            return group.gr_gid
    return None


def without_others(path: Path) -> None:
    """Takes from others than the user the right to write to a file."""
    path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


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
