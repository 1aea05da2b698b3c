"""Files of data sets: find them in a directory or the cache, fetch them from a mirror, verify them.

A data set is a `Collection`: file names with the MD5 of their *uncompressed* content, so that the same table
serves plain files and whatever compression a mirror has chosen. The order of search:

1. the directory that the caller names, or else the environment variable ``DLSYS_DATA``: either the folder
   of the files or one that holds it under the collection's name. What is missing or damaged there is an
   error;
2. the cache, ``data/`` in ``DLSYS_CACHE`` (default ``$XDG_CACHE_HOME/dlsys``, that is ``~/.cache/dlsys``);
3. the mirrors, unless ``DLSYS_OFFLINE`` is set (to anything but 0).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..storage import write_atomically
from ..system import cache_folder, warn
from .download import TIMEOUT, download

GZIP_MAGIC = b"\x1f\x8b"


class UnavailableError(DataError):
    """No mirror could deliver a file; the message says why, mirror by mirror."""


@dataclass(frozen=True)
class Collection:
    """The files of one data set and where they are published.

    name: the name of its folder in a data directory and in the cache.
    files: file name (without ``.gz``) -> MD5 of the uncompressed content, in hexadecimal.
    mirrors: URLs of folders that hold the files.
    suffix: what the mirrors append to a file's name.
    archive: the file of the mirrors, a tar.gz, that holds all of them in a folder of the collection's name, and its
        MD5; None where each is a file of its own.
    """

    name: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...] = ()
    suffix: str = ".gz"
    archive: tuple[str, str] | None = None


def load(
    collection: Collection,
    directory: str | os.PathLike[str] | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
    check: bool = True,
) -> tuple[dict[str, bytes], str]:
    """The uncompressed content of every file of `collection`, and where it came from in words.

    `check=False` takes what lies in the named directory without comparing checksums. Raises DataError for a
    directory that lacks a file or holds a damaged one, UnavailableError if the mirrors were the last hope.
    """
    named = named_directory(directory)
    if named is not None:
        paths = find(collection, *named)
        content = {name: read(path) for name, path in paths.items()}
        if check:
            for name, path in paths.items():
                verify(content[name], collection.files[name], path)
        return content, str(next(iter(paths.values())).parent)
    folder = folder_of(collection)
    cached = {name: from_cache(folder, name, md5) for name, md5 in collection.files.items()}
    missing = [name for name, content in cached.items() if content is None]
    fetched = fetch(collection, missing, folder, mirrors=mirrors, timeout=timeout) if missing else {}
    found = {name: content for name, content in cached.items() if content is not None}
    return {**found, **fetched}, origin(folder, bool(fetched))


def folder_of(collection: Collection) -> Path | None:
    """Where a collection's files are kept in the user's cache; None for a user without one."""
    cache = cache_folder()
    return None if cache is None else cache / "data" / collection.name


def origin(folder: Path | None, downloaded: bool) -> str:
    """Where files came from, in words."""
    if folder is None:
        return "downloaded"
    return f"downloaded to {folder}" if downloaded else str(folder)


# A directory that the user names ---------------------------------------------------------------------------


def named_directory(directory: str | os.PathLike[str] | None) -> tuple[Path, str] | None:
    """The directory to search and who named it, for messages: the caller, or else ``DLSYS_DATA``."""
    if directory is not None:
        if not isinstance(directory, (str, os.PathLike)):
            raise DataError(f"a data directory must be text or a pathlib.Path, not {type(directory).__name__}")
        return Path(os.path.expanduser(directory)), "data directory"
    if variable := os.environ.get("DLSYS_DATA"):
        return Path(os.path.expanduser(variable)), "DLSYS_DATA"
    return None


def find(
    collection: Collection, folder: Path, setting: str = "data directory", some: Sequence[str] | None = None
) -> dict[str, Path]:
    """File name -> path (plain or ``.gz``), all in `folder` or all in the subfolder of the collection's name; with
    `some`, of those names, as many as there are, but one.

    Raises DataError that lists the missing names if neither place has them all.
    """
    if not folder.is_dir():
        raise DataError(f"{setting} {str(folder)!r} is not a directory")
    places = [folder, folder / collection.name]
    names = list(collection.files) if some is None else some
    best = max((paths_in(place, names) for place in places), key=len)
    missing = [name for name in names if name not in best]
    if missing and (some is None or not best):
        raise DataError(
            f"{setting} {str(folder)!r} lacks {', '.join(missing)} "
            f"(looked for each, plain and .gz, there and in its subfolder {collection.name}/)"
        )
    return best


def paths_in(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """File name -> its path in `folder`, for those that are there; a plain file goes before its ``.gz``."""
    paths = {}
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                paths[name] = path
                break
    return paths


def read(path: Path) -> bytes:
    """The uncompressed content of a file. Raises DataError if it cannot be read or is cut short."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    return uncompressed(raw, path)


def uncompressed(raw: bytes, origin: object) -> bytes:
    """`raw`, unpacked if it is gzip: by its first bytes, as browsers and proxies unpack without renaming."""
    if not raw.startswith(GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{origin} is a damaged gzip file: {error}") from None


def verify(content: bytes, md5: str, origin: object) -> None:
    """Raises DataError unless `content` has this MD5; `origin` names the content in the message."""
    # A checksum against damage, not a signature: allowed where MD5 is forbidden for security.
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise DataError(f"{origin} is damaged: the MD5 of its content is {actual}, expected {md5}")


# The cache -------------------------------------------------------------------------------------------------


def from_cache(folder: Path | None, name: str, md5: str) -> bytes | None:
    """A file's content, or None if the cache lacks it; a damaged file is removed with a warning."""
    path = None if folder is None else paths_in(folder, [name]).get(name)
    if path is None:
        return None
    try:
        content = read(path)
        verify(content, md5, path)
    except DataError as error:
        warn(f"{error}; it is removed from the cache", RuntimeWarning)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return content


# The mirrors -----------------------------------------------------------------------------------------------


def fetch(
    collection: Collection,
    names: Sequence[str],
    folder: Path | None,
    *,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, bytes]:
    """Downloads the named files into `folder`, or all of an archive; returns file name -> uncompressed content.

    They are taken from the first of `mirrors` (default: the collection's) that delivers them intact. Raises
    UnavailableError if none does. A folder that cannot be written costs a warning, not the data.
    """
    if os.environ.get("DLSYS_OFFLINE", "0") not in ("", "0"):
        raise UnavailableError("DLSYS_OFFLINE is set")
    failures = []
    for mirror in collection.mirrors if mirrors is None else mirrors:
        try:
            stored, content = _fetched(collection, names, mirror.rstrip("/"), timeout)
        except (OSError, DataError) as error:
            failures.append(str(error))
            continue
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                for name, raw in stored.items():
                    write_atomically(folder / name, raw)
        except OSError as error:
            warn(f"{collection.name} is not kept in the cache: {error}", RuntimeWarning)
        return content
    raise UnavailableError("; ".join(failures) or f"{collection.name} has no mirrors")


def _fetched(
    collection: Collection, names: Sequence[str], mirror: str, timeout: float
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What one mirror delivers: the files to store, by their names there, and the content of each of the collection's.
    Raises OSError, DataError."""
    if collection.archive is not None:
        name, md5 = collection.archive
        raw = download(f"{mirror}/{name}", name, timeout)
        verify(raw, md5, f"{mirror}/{name}")
        content = members(raw, collection, f"{mirror}/{name}")
        stored = content
    else:
        stored = {}
        for name in names:
            stored[name + collection.suffix] = download(f"{mirror}/{name}{collection.suffix}", name, timeout)
        content = {name: uncompressed(stored[name + collection.suffix], f"{mirror}/{name}") for name in names}
    for name, value in content.items():
        verify(value, collection.files[name], f"{mirror}/{name}")
    return stored, content


def members(raw: bytes, collection: Collection, origin: object) -> dict[str, bytes]:
    """File name -> content of the collection's files in a tar.gz, read by their names: nothing is extracted.

    Raises DataError for a damaged archive or one that lacks a file.
    """
    content = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            for name in collection.files:
                member = archive.getmember(f"{collection.name}/{name}")
                file = archive.extractfile(member) if member.isreg() else None
                if file is None:
                    raise DataError(f"{origin}: {member.name} is no regular file")
                content[name] = file.read()
    except KeyError:
        raise DataError(f"{origin} lacks {collection.name}/{name}") from None
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{origin} is a damaged tar.gz file: {error}") from None
    return content
