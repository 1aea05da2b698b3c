"""Libraries of compiled kernels on disk, so that the next process need not compile them. Kernels that were compiled
together are one library in `cache_directory()`, whose name is the hash of its content. The folder `kernels` has a link
to it for each kernel, whose name is the kernel's key: a hash of its formula, shapes and dtypes, the target, the
versions of TVM and the sources of dlsys. The library ends with the keys of its kernels: one that a link of another key
leads to is not used. Files are renamed when they are whole, so processes may share the directory. Loading a library
runs its code, so nobody else may write to it (`storage.require_own`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import tvm_ffi

from ..storage import own_content, remove_stale, require_own, without_others
from ..system import cache_folder, setting, warn

LINK_SECONDS = 60  # a linker that takes longer hangs
MOST_OBJECT_BYTES = 64 * 1024 * 1024  # of an object: more than any has


@cache
def linker() -> tuple[str, ...]:
    """The command that links objects into a shared library, without their names. Raises OSError without one."""
    # ld is ten times as fast as a compiler driver; "now": a symbol that is missing is an error of loading
    options = {"ld": ("-z", "now")} if sys.platform.startswith("linux") else {}
    driven = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
    for name in (*options, "cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found, "-shared", *options.get(name, driven))
    raise OSError("no linker or C compiler was found")


def link(objects: Sequence[Path], path: Path, needed: Sequence[Path] = ()) -> None:
    """Writes objects as a library. Of the libraries `needed` those that it refers to are loaded with it: from its own
    folder, or from where they lie now. Raises OSError where that cannot be, as on a disk that is full."""
    command, folders = linker(), ":".join(["$ORIGIN", *(str(library.parent) for library in needed)])
    options = ["--as-needed", f"-rpath={folders}"] if needed else []
    if Path(command[0]).name != "ld":
        options = [f"-Wl,{option}" for option in options]
    files = map(str, [*command, *options, "-o", path, *objects, *needed])
    try:
        subprocess.run([*files], check=True, capture_output=True, timeout=LINK_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        told = (error.stderr or b"").decode(errors="replace").strip()
        raise OSError(f"{command[0]} failed: {told or error}") from None


def require_room(folder: Path) -> None:
    """Raises OSError where LLVM could fail to write an object to a folder, which would end the process."""
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and limit < MOST_OBJECT_BYTES:
            raise OSError(f"files are limited to {limit} bytes (ulimit -f)")
    if shutil.disk_usage(folder).free < MOST_OBJECT_BYTES:
        raise OSError(f"the disk of {folder} has less than {MOST_OBJECT_BYTES >> 20} MiB left")


def written(module: Any, path: Path) -> Path:
    """The file to which a module's machine code is written. Raises OSError where there may be no room for it."""
    require_room(path.parent)
    module.write_to_file(utf8(path), "o")
    return path


def utf8(path: Path) -> str:
    """A path as text for TVM, which takes all text for UTF-8, whatever the locale. Raises UnicodeDecodeError."""
    return os.fsencode(path).decode()


VARIABLE = "DLSYS_COMPILE_CACHE"
MOST_BYTES = 512 * 1024 * 1024  # of libraries; the least recently used go first
SUFFIX = ".so"
KERNELS = "kernels"  # the folder of links
_TEMPORARY = "tmp-"
_DIGITS = 40  # of a hash: a link to a library takes no block of the disk then
_KEYS = b"\nkeys of dlsys: "  # in a file, between its content and its keys
SOURCES = ("checks.py", "compiler/groups.py", "compute", "deploy", "devices", "kernels", "ops", "schedule")
"""The parts of the package that decide what code a kernel's key stands for."""
_said: set[str] = set()

Held = TypeVar("Held")


class CacheWarning(UserWarning):
    """Compiled kernels cannot be stored on disk, or a stored library cannot be used. The program runs all the same."""


def cache_directory() -> Path | None:
    """The directory for compiled kernels: `DLSYS_COMPILE_CACHE`, or `compiled` in dlsys' cache folder; None if the
    variable is `0`, or if there is no cache folder."""
    given = setting(VARIABLE)
    if not given:
        folder = cache_folder()
        return None if folder is None else folder / "compiled"
    return None if given.strip().lower() in ("0", "off", "no", "false") else Path(os.path.expanduser(given))


def cache_size(directory: Path) -> tuple[int, int]:
    """How many libraries a directory holds, and their bytes."""
    sizes = [size for _, size, _ in _libraries(directory)]
    return len(sizes), sum(sizes)


def key(*parts: object) -> str:
    """The key for something that is compiled from `parts`, whose `repr` tells everything about them."""
    return _hash(repr((parts, versions(), _source_digest())).encode())


def load(keys: Iterable[str], read: Callable[[Path, list[str]], dict[str, Held]]) -> dict[str, Held]:
    """Returns by key what `read` gives of the files that hold some keys; nothing where none does, or none that can be
    used, which is said once."""
    held: dict[str, list[str]] = {}
    found: dict[str, Held] = {}
    if (directory := _trusted()) is None:
        return found
    for key in keys:
        with contextlib.suppress(OSError):
            held.setdefault(Path(os.readlink(f"{directory}/{KERNELS}/{key}")).name, []).append(key)
    for library, own in held.items():
        path = directory / library
        try:
            content = own_content(path, MOST_BYTES)
            if _hash(content) != path.stem or not _keys_of(content).issuperset(own):
                _say(f"a library of compiled kernels is damaged or foreign and is made anew: {path}")
                continue
            with contextlib.suppress(OSError):  # its last use; a directory that is only readable still serves
                os.utime(path)
            found |= read(path, own)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (RuntimeError, AttributeError, OSError) as error:
            _say(f"a library of compiled kernels cannot be loaded and is made anew: {error}")
    return found


def folder() -> contextlib.AbstractContextManager[str | None]:
    """A folder, within it, for what is then kept; None, said once, where nothing can be."""
    directory = cache_directory()
    if directory is not None:
        try:
            linker()
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            require_room(directory)
            if (trusted := _trusted()) is not None:
                return tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=trusted)
        except OSError as error:
            _say(f"compiled kernels are not kept: {error}")
    return contextlib.nullcontext()


def keep(folder: str, keys: Iterable[str], write: Callable[[Path], object]) -> None:
    """Keeps under those keys the file that `write(path)` makes in a `folder()`; why it cannot be is said once."""
    made, directory, keys = Path(folder, "made"), Path(folder).parent, list(keys)
    try:
        write(made)
        with made.open("ab") as file:  # a loader reads what the file's head tells it of, and nothing behind
            file.write(_KEYS + " ".join(keys).encode())
        without_others(made)
        library = directory / (_hash(made.read_bytes()) + SUFFIX)
        os.replace(made, library)
        (directory / KERNELS).mkdir(exist_ok=True, mode=0o700)
        for own in keys:
            made.symlink_to(Path("..", library.name))
            os.replace(made, directory / KERNELS / own)
    except OSError as error:
        _say(f"compiled kernels are not kept: {error}")
    else:
        _evict(directory, library)


def content(key: str) -> bytes | None:
    """Returns the bytes that `keep_content` has kept under a key; None where nothing is."""
    return load([key], lambda path, keys: {key: path.read_bytes().rpartition(_KEYS)[0]}).get(key)


def keep_content(key: str, made: bytes) -> None:
    """Keeps bytes under a key."""
    with folder() as own:
        if own is not None:
            keep(own, [key], lambda path: path.write_bytes(made))


def _keys_of(content: bytes) -> set[str]:
    """The keys that a file states; none where it is no file of `keep`."""
    _, found, keys = content.rpartition(_KEYS)
    return set(keys.decode(errors="replace").split()) if found else set()


def _trusted() -> Path | None:
    """The directory without links, if nobody but the user may write to it; what is wrong is said once."""
    if (directory := cache_directory()) is None:
        return None
    try:
        directory = Path(os.path.realpath(directory, strict=True))
        require_own(directory)
        os.fsencode(directory).decode()
    except UnicodeDecodeError:
        _say(f"compiled kernels are not kept: TVM takes names in UTF-8 alone, not {os.fsencode(directory)!r}")
        return None
    except PermissionError as error:
        _say(f"compiled kernels are not kept, as a library's code is run: {error}")
        return None
    except OSError:
        return None
    return directory


def _say(text: str) -> None:
    """Warns of this kind of trouble, the first time in a process."""
    kind = text.split(":")[0]
    if kind not in _said:
        _said.add(kind)
        warn(text, CacheWarning)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def _libraries(directory: Path) -> list[tuple[float, int, Path]]:
    """When each library was last used, its size and its path; oldest first."""
    found = []
    for path in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # another process has just removed it
            found.append(((status := path.stat()).st_mtime, status.st_size, path))
    return sorted(found)


def _evict(directory: Path, latest: Path) -> None:
    """Removes what killed processes left, and what was used longest ago until the rest is below the bound."""
    for folder in (directory, directory / KERNELS):
        remove_stale(folder, f"{_TEMPORARY}*")
    entries = _libraries(directory)
    total = sum(size for _, size, _ in entries)
    if total <= MOST_BYTES:
        return
    for _, size, path in entries:
        if total > MOST_BYTES and path != latest:
            path.unlink(missing_ok=True)
            total -= size
    for link in (directory / KERNELS).glob("*"):
        if not link.exists():
            link.unlink(missing_ok=True)


@cache
def versions() -> tuple[str, ...]:
    """The versions and the system that decide what machine code a kernel gets."""
    return (version("apache-tvm"), tvm_ffi.__version__, platform.machine(), platform.system())


@cache
def _source_digest() -> str:
    """The hash of the sources that decide what code is made: an edited dlsys does not take what an older one left."""
    package = Path(__file__).resolve().parent.parent
    if archive := getattr(__spec__.loader, "archive", None):  # a zip file, which stands for all
        return _hash(Path(archive).read_bytes())
    named = [package / name for name in SOURCES]
    paths = sorted(path for part in named for path in ([part] if part.suffix else part.rglob("*.py")))
    parts = (part for path in paths for part in (str(path.relative_to(package)).encode(), path.read_bytes()))
    return _hash(b"".join(parts))
