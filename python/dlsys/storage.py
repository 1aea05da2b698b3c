"""Safe reading and writing of files: size limits, atomic writes, leftovers of killed processes, checks of ownership."""

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

STALE_SECONDS = 3600  # a temporary file older than this was left by a process that was killed


def checked_size(path: str | os.PathLike[str], most: int) -> int:
    """The size of a file that is to be read. Raises DataError for a file of more than `most` bytes, and for a device
    or a pipe, which may have no end."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise DataError(f"{path} cannot be read: Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is a device or a pipe, not a file")
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
    """Writes `path` whole or not at all, and removes temporary files that killed processes left. The file has the
    permissions of a new one; if it is `own`, other users may not write to it. Raises OSError."""
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
        except BaseException:  # Ctrl-C too: no incomplete file may stay
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    _sync(target.parent)


def own_content(path: Path, most: int) -> bytes:
    """The content of a file that only the user can change, see `require_own`. Raises OSError if others can, for a link
    or a special file, and for more than `most` bytes."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is a link or no file")
    if status.st_size > most:
        raise OSError(f"{path} has {status.st_size:,} bytes, and may have {most:,}")
    require_own(path)
    return path.read_bytes()


def require_own(path: Path) -> None:
    """Raises PermissionError if others than the user and root may write to a file or folder, or replace it since they
    may write to a folder above it. `path` has no links."""
    if not hasattr(os, "getuid"):
        return
    for place in (path, *path.parents):
        status = os.lstat(place)
        if status.st_uid not in (os.getuid(), 0):
            raise PermissionError(f"{place} belongs to another user")
        sticky = place != path and status.st_mode & stat.S_ISVTX  # like /tmp: others cannot replace our files there
        writers = stat.S_IWOTH if status.st_gid == _private_group() else stat.S_IWOTH | stat.S_IWGRP
        if status.st_mode & writers and not sticky:
            raise PermissionError(f"others may write to {place}")


@cache
def _private_group() -> int | None:
    """The group that has the user's name and no other member, which many systems create for each user; None without
    one.
    """
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
        if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
            return group.gr_gid
    return None


def without_others(path: Path) -> None:
    """Allow only the user to write to a file."""
    path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def remove_stale(folder: Path, pattern: str) -> None:
    """Remove the files and folders of this pattern that were not changed for STALE_SECONDS."""
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
    """Make a rename in `folder` survive a power failure, if the system supports it."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse
            os.fsync(handle)
    finally:
        os.close(handle)
