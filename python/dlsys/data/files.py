"""Files of data sets: from a directory, the cache or a mirror, with their checksums verified.

A data set is a `Collection`: file names with the MD5 of their *uncompressed* content, so that one table serves plain
files and every compression. The order of search:

1. the directory that the caller names, or by default the environment variable ``DLSYS_DATA``: the folder of the files,
   or one with a subfolder of the collection's name. A file that is missing or damaged there is an error;
2. the cache, ``data/`` in ``DLSYS_CACHE`` (default ``$XDG_CACHE_HOME/dlsys``, that is ``~/.cache/dlsys``);
3. the mirrors, unless ``DLSYS_OFFLINE`` is set (to anything but 0).
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import urllib.parse
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..storage import read_file, write_atomically
from ..system import cache_folder, setting, warn

MOST_BYTES = 1 << 30
"""Of a file that is read, and of its uncompressed content; the largest file of the data sets here has 47 million."""
TIMEOUT = 10.0
"""Seconds without a byte after which the next mirror is tried."""


class UnavailableError(DataError):
    """No mirror could deliver a file; the message says why, mirror by mirror."""


@dataclass(frozen=True)
class Collection:
    """The files of one data set and where they are published.

    Attributes:
        name: the name of its folder in a data directory, in the cache and in an archive.
        files: file name (without ``.gz``) -> MD5 of the uncompressed content, in hexadecimal.
        mirrors: URLs in which ``{}`` stands for a file's name; or, without it, of a tar.gz with the folder.
        whole: the size of a complete file, if a directory may have only some of the files, and shorter ones, whose
            checksums are unknown; 0 if it must have all, as published.
    """

    name: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...] = ()
    whole: int = 0


def load(
    collection: Collection, directory: str | os.PathLike[str] | None = None, names: Iterable[str] | None = None
) -> tuple[dict[str, bytes], str]:
    """The uncompressed content of the collection's files, or of those with these names; where it came from, as text.
    Raises DataError for a directory that lacks a file or has a damaged one, UnavailableError if no mirror can deliver
    the files either."""
    wanted = list(collection.files if names is None else names)
    if directory is not None or (directory := setting("DLSYS_DATA")):
        if not isinstance(directory, (str, os.PathLike)):
            raise DataError(f"a data directory must be text or a pathlib.Path, not {type(directory).__name__}")
        return _from_directory(collection, wanted, Path(directory).expanduser())
    folder = (cache_folder() or Path(os.devnull)) / "data" / collection.name
    try:
        content = _stored(collection, wanted, folder)
    except DataError as error:
        warn(f"{error}; it is downloaded again", RuntimeWarning)
        content = {}
    if len(content) == len(wanted):
        return content, str(folder)
    content = _download(collection, wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in content.items():
            write_atomically(folder / name, value)
    except OSError as error:
        warn(f"{collection.name} cannot be stored in the cache: {error}", RuntimeWarning)
    return {name: content[name] for name in wanted}, f"downloaded to {folder}"


def _from_directory(collection: Collection, names: list[str], folder: Path) -> tuple[dict[str, bytes], str]:
    """The content of the files in a folder, or in its subfolder of the collection's name, and where they are."""
    named = f"{str(folder)!r} (the argument or DLSYS_DATA)"
    if not folder.is_dir():
        raise DataError(f"{named} is not a directory")
    inner = folder / collection.name
    place = inner if inner.is_dir() else folder
    content = _stored(collection, names, place, collection.whole)
    absent = ", ".join(name for name in names if name not in content)
    if absent and not (content and collection.whole):
        raise DataError(f"{named} lacks {absent}: each was looked for, plain and .gz, in {place}")
    return content, str(place)


def _stored(collection: Collection, names: list[str], folder: Path, least: int = 0) -> dict[str, bytes]:
    """The content of those of the files that are in a folder, plain or ``.gz``. Raises DataError for a damaged one;
    checksums are verified for files of at least `least` bytes."""
    paths = ((name, [p for p in (folder / name, folder / f"{name}.gz") if p.is_file()]) for name in names)
    return {name: _verified(read(p[0]), collection.files[name], p[0], least) for name, p in paths if p}


def read(path: Path) -> bytes:
    """The uncompressed content of a file. Raises DataError if the file cannot be read, is incomplete, or has more than
    `MOST_BYTES`."""
    return _unpacked(read_file(path, MOST_BYTES), path)


def _unpacked(raw: bytes, origin: object) -> bytes:
    """`raw`, unpacked if its first bytes are gzip's: browsers and proxies unpack files without renaming them."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    packed = zlib.decompressobj(wbits=31)
    try:
        content = packed.decompress(raw, MOST_BYTES)
    except zlib.error as error:
        raise DataError(f"{origin} is a damaged gzip file: {error}") from None
    if not packed.eof or packed.unused_data:
        raise DataError(f"{origin} is a damaged gzip file, one of several parts, or of more than {MOST_BYTES} bytes")
    return content


def _verified(content: bytes, md5: str, origin: object, least: int = 0) -> bytes:
    """The content. Raises DataError if it has `least` bytes and another MD5."""
    # The checksum finds damage and is no signature, so it is allowed where MD5 is forbidden for security.
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if len(content) >= least and actual != md5:
        raise DataError(f"{origin} is damaged: the MD5 of its content is {actual}, expected {md5}")
    return content


def _download(collection: Collection, names: list[str]) -> dict[str, bytes]:
    """The content of the named files, or of an archive's, from the first mirror that delivers them intact. Raises
    UnavailableError."""
    if os.environ.get("DLSYS_OFFLINE", "0") not in ("", "0"):
        raise UnavailableError("DLSYS_OFFLINE is set")
    failures = []
    for mirror in collection.mirrors:
        try:
            content = _from_mirror(collection, names, mirror)
            return {name: _verified(value, collection.files[name], name) for name, value in content.items()}
        except (OSError, DataError, KeyError, tarfile.TarError, EOFError, zlib.error) as error:
            failures.append(" ".join(f"{urllib.parse.urlsplit(mirror).netloc or mirror}: {_cause(error)}".split()))
    raise UnavailableError("; ".join(failures) or f"{collection.name} has no mirrors")


def _from_mirror(collection: Collection, names: list[str], mirror: str) -> dict[str, bytes]:
    """The content of the named files, or of all in an archive, which is read by their names: nothing is extracted to
    disk."""
    if "{}" in mirror:  # stops at the first failure
        return {name: _unpacked(_body(mirror.format(name)), name) for name in names}
    with tarfile.open(fileobj=io.BytesIO(_body(mirror)), mode="r:gz") as archive:
        files = {name: archive.extractfile(f"{collection.name}/{name}") for name in collection.files}
        return {name: b"" if file is None else file.read(MOST_BYTES) for name, file in files.items()}


def _cause(error: BaseException) -> BaseException:
    """The error that an error of requests began with; urllib3's, in between, repeat the URL and each other's text."""
    inner = error.__cause__ or next(iter(error.args), None)
    return _cause(inner) if isinstance(inner, BaseException) and str(inner) else error


def _body(url: str) -> bytes:
    """The content at `url`, with a progress bar if stderr is a terminal. Raises OSError, as all errors of requests
    are."""
    import pooch  # late: a data set on disk needs no HTTP

    body = io.BytesIO()
    pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)(url, body, None)
    return body.getvalue()
