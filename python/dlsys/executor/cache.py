"""Compiled kernels on disk, so that what was compiled once starts at once in the next plan and the next process.

Kernels that were compiled together are one shared library in `cache_directory()`, named by the hash of all that it was
made of: the kernels' formulas, shapes and dtypes, the target with its CPU's features and the number of threads, the
versions of TVM and the sources of dlsys. A trailer holds that hash and the hash of the library; a file whose trailer
does not fit is ignored. In the folder `kernels` a link for each kernel, named by its own such hash, tells which library
holds it. Files are written aside and renamed, so processes may share the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

import tvm
import tvm_ffi

from ..system import cache_folder
from ..tvm_op import linker

VARIABLE = "DLSYS_COMPILE_CACHE"
MOST_BYTES = 512 * 1024 * 1024  # some 1,500 plans; the least recently used go first
SUFFIX = ".so"
KERNELS = "kernels"  # the folder of links
_MAGIC = b"dlsys plan 2\n"
_DIGITS = 40  # of a key: a link to a library takes no block of the disk then
_TRAILER = len(_MAGIC) + _DIGITS + hashlib.sha256().digest_size
_SOURCES = ("compute", "device", "executor", "ops", "passes", "schedule", "tvm_op")
_said: set[str] = set()

Loaded = TypeVar("Loaded")


class CacheWarning(UserWarning):
    """Compiled kernels cannot be kept, or a library that was kept cannot be used; programs run all the same."""


def cache_directory() -> Path | None:
    """Where compiled kernels are kept: `DLSYS_COMPILE_CACHE`, None if that is `0`; else in the cache of dlsys."""
    given = os.environ.get(VARIABLE)
    if given is not None and given.strip().lower() in ("0", "off", "no", "false"):
        return None
    return Path(given).expanduser() if given else cache_folder() / "compiled"


def cache_size(directory: Path) -> tuple[int, int]:
    """How many libraries a directory holds, and their bytes."""
    sizes = [size for _, _, size in _entries(directory)]
    return len(sizes), sum(sizes)


def program_key(*parts: object) -> str:
    """The key under which what is made of `parts`, which print themselves wholly, is kept."""
    text = repr((parts, _versions(), _source_digest()))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def library_of(kernel: str) -> str | None:
    """The key of the library in which a kernel of this key was last kept; None where none is known."""
    directory = cache_directory()
    try:
        return Path(os.readlink(directory / KERNELS / kernel)).stem if directory else None
    except OSError:
        return None


def note(kernels: Iterable[str], library: str) -> None:
    """Keep that the library of this key holds the kernels of those keys."""
    directory = cache_directory()
    if directory is None:
        return
    folder = directory / KERNELS
    with contextlib.suppress(OSError):  # without links a plan still finds what was compiled for all of it
        folder.mkdir(exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=folder) as temporary:
            for kernel in kernels:
                link = Path(temporary) / kernel
                link.symlink_to(Path("..", library + SUFFIX))
                os.replace(link, folder / kernel)


def find(key: str, folder: str = "") -> Path | None:
    """The library kept under a key, its use noted; None where there is none. Warns once of a file that is damaged.
    `folder`: one in the cache, for what is no plan."""
    directory = cache_directory()
    if directory is None:
        return None
    path = directory / folder / (key + SUFFIX)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        say(f"compiled kernels cannot be read: {error}")
        return None
    if content[-_TRAILER:] != _trailer(key, content[:-_TRAILER]):
        say(f"a library of compiled kernels is damaged or foreign and is made anew: {path}")
        return None
    with contextlib.suppress(OSError):  # a directory that is only readable still serves
        os.utime(path)
    return path


def loaded(
    key: str, write: Callable[[Path], None] | None, load: Callable[[Path], Loaded], folder: str = ""
) -> Loaded | None:
    """What `load` makes of the library kept under a key, which `write`, if given, makes where it is not there or cannot
    be loaded; None where it cannot be kept."""
    for attempt in (lambda: find(key, folder), lambda: write and keep(key, write, folder)):
        path = attempt()
        if path is None:
            continue
        try:
            return load(path)
        except (RuntimeError, AttributeError, OSError) as error:
            say(f"a library of compiled kernels cannot be loaded and is made anew: {error}")
    return None


def keep(key: str, write: Callable[[Path], None], folder: str = "") -> Path | None:
    """The library that `write(path)` makes, kept under a key; None, said once, where it cannot be kept."""
    directory = cache_directory()
    if directory is None:
        return None
    if linker() is None:
        say("compiled kernels are not kept: no linker or C compiler was found")
        return None
    directory /= folder
    path = directory / (key + SUFFIX)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=directory) as temporary:
            made = Path(temporary) / path.name
            write(made)
            with made.open("rb") as file:
                trailer = _trailer(key, file.read())
            with made.open("ab") as file:
                file.write(trailer)
            os.replace(made, path)
    except OSError as error:
        say(f"compiled kernels are not kept: {error}")
        return None
    _evict(directory, path)
    return path


def say(text: str) -> None:
    """Warn of this kind of trouble, the first time in a process."""
    kind = text.split(":")[0]
    if kind not in _said:
        _said.add(kind)
        warnings.warn(text, CacheWarning, stacklevel=2)


def _trailer(key: str, library: bytes) -> bytes:
    return _MAGIC + key.encode() + hashlib.sha256(library).digest()


def _entries(directory: Path) -> list[tuple[float, Path, int]]:
    """When each library was last used, its file, its size; the oldest first."""
    found = []
    try:
        with os.scandir(directory) as files:
            for file in files:
                if file.name.endswith(SUFFIX):
                    try:
                        status = file.stat()
                    except OSError:
                        continue  # another process has just removed it
                    found.append((status.st_mtime, Path(file.path), status.st_size))
    except OSError:
        return []
    return sorted(found)


def _evict(directory: Path, latest: Path) -> None:
    """Removes what was used longest ago until the rest is below the bound, and the links to it."""
    entries = _entries(directory)
    total = sum(size for _, _, size in entries)
    if total <= MOST_BYTES:
        return
    for _, path, size in entries:
        if total > MOST_BYTES and path != latest:
            path.unlink(missing_ok=True)
            total -= size
    for link in (directory / KERNELS).glob("*"):
        if not link.exists():
            link.unlink(missing_ok=True)


@cache
def _versions() -> tuple[str, ...]:
    return (tvm.__version__, tvm_ffi.__version__, platform.machine(), platform.system())


@cache
def _source_digest() -> str:
    """The hash of the sources that decide what code is made: an edited dlsys does not take what an older one left."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for folder in _SOURCES for path in (package / folder).rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
