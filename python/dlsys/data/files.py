"""Files of data sets: found in a directory or the cache, or downloaded from a mirror, and verified.

A data set is a `Collection`: file names with the MD5 of their *uncompressed* content, so that one table serves plain
files and every compression. The order of search:

1. the directory that the caller names, or by default the environment variable ``DLSYS_DATA``: the folder of the files,
   or one that contains it under the collection's name. A file that is missing or damaged there is an error;
2. the cache, ``data/`` in ``DLSYS_CACHE`` (default ``$XDG_CACHE_HOME/dlsys``, that is ``~/.cache/dlsys``);
3. the mirrors, unless ``DLSYS_OFFLINE`` is set (to anything but 0).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tarfile
import urllib.parse
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import read_file, write_atomically
from ..system import cache_folder, setting, warn

MOST_BYTES = 1 << 30
"""Of a file that is read, and of its uncompressed content; the largest file of the data sets here has 47 million."""
GZIP_MAGIC = b"\x1f\x8b"
_HEAD = 1024
"""Bytes at the start of a file, which may state its length."""
_PIECE = 1 << 20
TIMEOUT = 10.0
"""Seconds without a byte after which the next mirror is tried."""


class UnavailableError(DataError):
    """No mirror could deliver a file; the message says why, mirror by mirror."""


@dataclass(frozen=True)
class Collection:
    """The files of one data set and where they are published.

    Attributes:
        name: the name of its folder in a data directory and in the cache.
        files: file name (without ``.gz``) -> MD5 of the uncompressed content, in hexadecimal.
        mirrors: URLs of folders with the files.
        suffix: the ending of the files' names at the mirrors.
        archive: the tar.gz at the mirrors that contains all files in a folder of the collection's name; None if each is
            a file of its own.
        whole: the size of a complete file, if a directory may have only some of the files, and shorter ones, whose
            checksums are unknown; None if it must have all, as published.
    """

    name: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...] = ()
    suffix: str = ".gz"
    archive: str | None = None
    whole: int | None = None


def load(
    collection: Collection, directory: str | os.PathLike[str] | None = None, names: Sequence[str] | None = None
) -> tuple[dict[str, bytes], str]:
    """The uncompressed content of the collection's files, or of those with these names; where it came from, as text.
    Raises DataError for a directory that lacks a file or has a damaged one, UnavailableError if no mirror can deliver
    the files either."""
    wanted = list(collection.files if names is None else names)
    named = named_directory(directory)
    if named is not None:
        paths = _find(collection, wanted, *named)
        return _contents(collection, paths, collection.whole or 0), str(next(iter(paths.values())).parent)
    cache = cache_folder()
    folder = None if cache is None else cache / "data" / collection.name
    paths = {} if folder is None else _paths_in(folder, wanted)
    if len(paths) == len(wanted):
        try:
            return _contents(collection, paths, 0), str(folder)
        except DataError as error:
            warn(f"{error}; it is downloaded again", RuntimeWarning)
    return _fetch(collection, wanted, folder), f"downloaded to {folder}" if folder else "downloaded"


def named_directory(directory: str | os.PathLike[str] | None) -> tuple[Path, str] | None:
    """The directory to search, and who named it, for messages: the caller, or ``DLSYS_DATA``; None if neither has."""
    if directory is not None:
        if not isinstance(directory, (str, os.PathLike)):
            raise DataError(f"a data directory must be text or a pathlib.Path, not {type(directory).__name__}")
        return Path(directory).expanduser(), "data directory"
    if variable := setting("DLSYS_DATA"):
        return Path(variable).expanduser(), "DLSYS_DATA"
    return None


def _find(collection: Collection, names: Sequence[str], folder: Path, setting: str) -> dict[str, Path]:
    """File name -> path (plain or ``.gz``), all in `folder` or all in the subfolder of the collection's name."""
    if not folder.is_dir():
        raise DataError(f"{setting} {str(folder)!r} is not a directory")
    best = max((_paths_in(place, names) for place in (folder, folder / collection.name)), key=len)
    missing = [name for name in names if name not in best]
    if missing and (collection.whole is None or not best):
        raise DataError(
            f"{setting} {str(folder)!r} lacks {', '.join(missing)} "
            f"(looked for each, plain and .gz, there and in its subfolder {collection.name}/)"
        )
    return best


def _paths_in(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """File name -> its path in `folder`, for the files that exist; a plain file is preferred to its ``.gz``."""
    found = {n: [p for p in (folder / n, folder / f"{n}.gz") if p.is_file()] for n in names}
    return {name: paths[0] for name, paths in found.items() if paths}


def _contents(collection: Collection, paths: Mapping[str, Path], least: int) -> dict[str, bytes]:
    """The content of the files; the checksum is verified for files of at least `least` bytes. Raises DataError."""
    content = {name: read(path) for name, path in paths.items()}
    for name, path in paths.items():
        if len(content[name]) >= least:
            _verify(content[name], collection.files[name], path)
    return content


def read(path: Path, stated: Callable[[bytes], int] | None = None) -> bytes:
    """The uncompressed content of a file. `stated` computes its length from its first 1,024 bytes; unpacking stops if
    there is more. Raises DataError if the file cannot be read, is incomplete, or has more than `MOST_BYTES`, and what
    `stated` raises."""
    return _uncompressed(read_file(path, MOST_BYTES), path, stated)


def _uncompressed(raw: bytes, origin: object, stated: Callable[[bytes], int] | None = None) -> bytes:
    """`raw`, unpacked if its first bytes are gzip's: browsers and proxies unpack files without renaming them."""
    if not raw.startswith(GZIP_MAGIC):
        return raw
    content = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            content.write(file.read(_HEAD))
            most = MOST_BYTES if stated is None else stated(content.getvalue())
            if most > MOST_BYTES:
                raise DataError(f"{origin} says that it has {most} bytes, {MOST_BYTES} is the most that is read")
            while content.tell() <= most and (piece := file.read(_PIECE)):
                content.write(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{origin} is a damaged gzip file: {error}") from None
    if content.tell() > most:
        raise DataError(f"{origin} unpacks to more than {most} bytes, the most that is expected")
    return content.getvalue()


def _verify(content: bytes, md5: str, origin: object) -> None:
    """Raises DataError unless `content` has this MD5; `origin` names the content in the message."""
    # The checksum finds damage and is no signature, so it is allowed where MD5 is forbidden for security.
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise DataError(f"{origin} is damaged: the MD5 of its content is {actual}, expected {md5}")


def _fetch(collection: Collection, names: Sequence[str], folder: Path | None) -> dict[str, bytes]:
    """The content of the named files from the first mirror that delivers them intact. They are stored in `folder`; a
    warning says if it cannot be written. Raises UnavailableError."""
    if os.environ.get("DLSYS_OFFLINE", "0") not in ("", "0"):
        raise UnavailableError("DLSYS_OFFLINE is set")
    failures = []
    for mirror in collection.mirrors:
        try:
            stored = _from_mirror(collection, names, mirror.rstrip("/"))
            content = {name.removesuffix(collection.suffix): _uncompressed(raw, name) for name, raw in stored.items()}
            for name, value in content.items():
                _verify(value, collection.files[name], name)
        except (OSError, DataError) as error:
            failures.append(" ".join(f"{urllib.parse.urlsplit(mirror).netloc or mirror}: {_cause(error)}".split()))
            continue
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                for name, raw in stored.items():
                    write_atomically(folder / name, raw)
        except OSError as error:
            warn(f"{collection.name} cannot be stored in the cache: {error}", RuntimeWarning)
        return {name: content[name] for name in names}
    raise UnavailableError("; ".join(failures) or f"{collection.name} has no mirrors")


def _cause(error: BaseException) -> BaseException:
    """The error that an error of requests began with; urllib3's, in between, repeat the URL and each other's text."""
    inner = error.__cause__ or next(iter(error.args), None)
    return _cause(inner) if isinstance(inner, BaseException) and str(inner) else error


def _from_mirror(collection: Collection, names: Sequence[str], mirror: str) -> dict[str, bytes]:
    """The files to store, by their names: those of these names, or all in the archive, which is read by their names;
    nothing is extracted to disk. Raises OSError, DataError."""
    if collection.archive is None:
        stored = {}
        for name in names:  # stops at the first failure
            stored[name + collection.suffix] = _download(f"{mirror}/{name}{collection.suffix}")
        return stored
    raw = _download(f"{mirror}/{collection.archive}")
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            files = {name: archive.extractfile(f"{collection.name}/{name}") for name in collection.files}
            return {name: b"" if file is None else file.read(MOST_BYTES) for name, file in files.items()}
    except (KeyError, tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{collection.archive} is damaged or lacks a file: {error}") from None


class _Body(io.BytesIO):
    """The bytes that a mirror sends, up to MOST_BYTES."""

    def write(self, piece: Any) -> int:
        if self.tell() + len(piece) > MOST_BYTES:
            raise OSError(f"sends more than {MOST_BYTES} bytes")
        return super().write(piece)


def _download(url: str) -> bytes:
    """The body at `url`, with a progress bar if stderr is a terminal. Raises OSError, as all errors of requests are."""
    import pooch  # late: a data set on disk needs no HTTP

    body = _Body()
    pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)(url, body, None)
    return body.getvalue()
