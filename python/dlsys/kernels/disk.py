"""Libraries of compiled kernels on disk, so that what was compiled once starts at once in the next process.

Kernels that were compiled together are one library in `cache_directory()`, named by the hash of all that it was made
of: formulas, shapes and dtypes, the target with its CPU's features and the number of threads, the versions of TVM and
the sources of dlsys. A trailer holds that hash and the hash of the library; a file whose trailer does not fit is not
loaded. In the folder `kernels` a link for each kernel, named by its own such hash, tells which library holds it. Files
are written aside and renamed, so processes may share the directory. Loading a library runs its code: whoever else may
write to it, to the directory or to a folder around it is kept from that, see `storage.require_own`.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import tvm_ffi

from ..storage import own_content, remove_stale, require_own, without_others
from ..system import cache_folder, setting, warn

LINK_SECONDS = 60  # a linker that takes longer hangs
MOST_OBJECT_BYTES = 256 * 1024 * 1024  # of an object: more than any has


@cache
def linker() -> tuple[str, ...] | None:
    """The command that links objects into a shared library, without their names; None where there is none."""
    if sys.platform.startswith("linux") and (found := shutil.which("ld")):
        # ten times as fast as a compiler driver; "now": a symbol that is missing is an error of loading
        return (found, "-shared", "-z", "now")
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found, "-shared", *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()))
    return None


def object_of(module: Any) -> bytes | OSError:
    """A module's machine code for the linker, or why LLVM cannot write it: it would end the process."""
    try:
        _require_room()
        with _file(b"") as (name, _):
            module.write_to_file(name, "o")
            return Path(name).read_bytes()
    except OSError as error:
        return error


def link(objects: Sequence[bytes | OSError], path: Path, needed: Sequence[Path] = ()) -> None:
    """Writes objects as a library. Of the libraries `needed` those that it refers to are loaded with it: from its own
    folder, or from where they lie now. Raises OSError where that cannot be, as on a disk that is full."""
    command = linker()
    if command is None:
        raise OSError("no linker or C compiler was found")
    options: list[str] = []
    if needed:
        options = ["--as-needed", "-rpath=" + ":".join(["$ORIGIN", *(str(library.parent) for library in needed)])]
    if Path(command[0]).name != "ld":
        options = [f"-Wl,{option}" for option in options]
    with contextlib.ExitStack() as stack:
        for failure in (found for found in objects if isinstance(found, OSError)):
            raise failure
        files = [stack.enter_context(_file(content)) for content in objects if isinstance(content, bytes)]
        try:
            subprocess.run(
                [*command, *options, "-o", str(path), *(name for name, _ in files), *map(str, needed)],
                check=True,
                capture_output=True,
                timeout=LINK_SECONDS,
                pass_fds=[number for _, number in files if number is not None],
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            told = (error.stderr or b"").decode(errors="replace").strip()
            raise OSError(f"{command[0]} failed: {told or error}") from None


def _require_room() -> None:
    """Raises OSError where LLVM could fail to write an object."""
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and limit < MOST_OBJECT_BYTES:
            raise OSError(f"files are limited to {limit} bytes (ulimit -f)")
    if not hasattr(os, "memfd_create") and shutil.disk_usage(tempfile.gettempdir()).free < MOST_OBJECT_BYTES:
        raise OSError(f"the disk of {tempfile.gettempdir()} has less than {MOST_OBJECT_BYTES >> 20} MiB left")


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[tuple[str, int | None]]:
    """The name of a file that holds this, and its number where it lies in memory."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(suffix=".o") as file:
            Path(file.name).write_bytes(content)
            yield file.name, None
        return
    number = os.memfd_create("kernels.o")
    try:
        name = f"/proc/self/fd/{number}"
        Path(name).write_bytes(content)
        yield name, number
    finally:
        os.close(number)


VARIABLE = "DLSYS_COMPILE_CACHE"
MOST_BYTES = 512 * 1024 * 1024  # of libraries; the least recently used go first
SUFFIX = ".so"
KERNELS = "kernels"  # the folder of links
_TEMPORARY = "tmp-"
_MAGIC = b"dlsys plan 2\n"
_DIGITS = 40  # of a key: a link to a library takes no block of the disk then
_TRAILER = len(_MAGIC) + _DIGITS + hashlib.sha256().digest_size
SOURCES = ("compiler/groups.py", "compute", "device", "kernels", "ops", "schedule")
"""The parts of the package that decide what code a kernel's key stands for."""
_said: set[str] = set()

Loaded = TypeVar("Loaded")


class CacheWarning(UserWarning):
    """Compiled kernels cannot be kept, or a library that was kept cannot be used; programs run all the same."""


def cache_directory() -> Path | None:
    """Where compiled kernels are kept: `DLSYS_COMPILE_CACHE`, None if that is `0`; else in the cache of dlsys, None if
    there is none."""
    given = setting(VARIABLE)
    if not given:
        folder = cache_folder()
        return None if folder is None else folder / "compiled"
    return None if given.strip().lower() in ("0", "off", "no", "false") else Path(os.path.expanduser(given))


def keeps() -> bool:
    """Whether compiled code is to be kept on disk, and can be linked."""
    return cache_directory() is not None and linker() is not None


def cache_size(directory: Path) -> tuple[int, int]:
    """How many libraries a directory holds, and their bytes."""
    sizes = [size for _, size, _ in _libraries(directory)]
    return len(sizes), sum(sizes)


def key(*parts: object) -> str:
    """The key under which what is made of `parts`, which print themselves wholly, is kept."""
    text = repr((parts, _versions(), _source_digest()))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def libraries_of(kernels: Iterable[str]) -> dict[str, str]:
    """The key of the library in which each kernel of these keys was last kept, of those of which one is known."""
    directory = _trusted()
    found: dict[str, str] = {}
    for kernel in kernels if directory else ():
        with contextlib.suppress(OSError):
            found[kernel] = Path(os.readlink(f"{directory}/{KERNELS}/{kernel}")).stem
    return found


def note(kernels: Iterable[str], library: str) -> None:
    """Notes that the library of this key holds the kernels of those keys, if it was kept."""
    directory = _trusted()
    if directory is None or not (directory / (library + SUFFIX)).is_file():
        return
    folder = directory / KERNELS
    with contextlib.suppress(OSError):  # without links a process still finds what it compiled itself
        folder.mkdir(exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder) as temporary:
            for kernel in kernels:
                made = Path(temporary) / kernel
                made.symlink_to(Path("..", library + SUFFIX))
                os.replace(made, folder / kernel)


def load(library: str, read: Callable[[Path], Loaded]) -> Loaded | None:
    """Loads the library kept under a key by `read`, and returns its result; None where there is none that can be used,
    which is said once."""
    directory = _trusted()
    if directory is None:
        return None
    path = directory / (library + SUFFIX)
    try:
        content = own_content(path, MOST_BYTES)
        if content[-_TRAILER:] != _trailer(library, content[:-_TRAILER]):
            _say(f"a library of compiled kernels is damaged or foreign and is made anew: {path}")
            return None
        with contextlib.suppress(OSError):  # its last use; a directory that is only readable still serves
            os.utime(path)
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (RuntimeError, AttributeError, OSError) as error:
        _say(f"a library of compiled kernels cannot be loaded and is made anew: {error}")
        return None


def content(path: Path) -> bytes:
    """The bytes that `keep` was given to write, as `load` finds them on disk: without its trailer."""
    return path.read_bytes()[:-_TRAILER]


def keep(library: str, write: Callable[[Path], None], read: Callable[[Path], Loaded]) -> Loaded | None:
    """Keeps the library that `write(path)` makes under a key, and returns what `read` loads of it; None, said once,
    where it cannot be kept."""
    directory = cache_directory()
    if directory is None:
        return None
    if linker() is None:
        _say("compiled kernels are not kept: no linker or C compiler was found")
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = _trusted()
        if directory is None:
            return None
        path = directory / (library + SUFFIX)
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=directory) as temporary:
            made = Path(temporary) / path.name
            write(made)
            without_others(made)
            trailer = _trailer(library, made.read_bytes())
            with made.open("ab") as file:
                file.write(trailer)
            os.replace(made, path)
    except OSError as error:
        _say(f"compiled kernels are not kept: {error}")
        return None
    _evict(directory, path)
    return load(library, read)


def _trusted() -> Path | None:
    """The directory without links, if it is there and nobody but the user may write to it; what is wrong is said
    once."""
    directory = cache_directory()
    if directory is None:
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


def _trailer(library: str, content: bytes) -> bytes:
    return _MAGIC + library.encode() + hashlib.sha256(content).digest()


def _libraries(directory: Path) -> list[tuple[float, int, Path]]:
    """When each library was last used, its size and its path; oldest first."""
    found = []
    for path in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # another process has just removed it
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    return sorted(found)


def _evict(directory: Path, latest: Path) -> None:
    """Removes what killed processes left, what was used longest ago until the rest is below the bound, and the links to
    it."""
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
def _versions() -> tuple[str, ...]:
    return (version("apache-tvm"), tvm_ffi.__version__, platform.machine(), platform.system())


@cache
def _source_digest() -> str:
    """The hash of the sources that decide what code is made: an edited dlsys does not take what an older one left."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    if archive := getattr(__spec__.loader, "archive", None):  # a zip file, which stands for all
        digest.update(Path(archive).read_bytes())
        return digest.hexdigest()
    named = [package / name for name in SOURCES]
    for path in sorted(path for part in named for path in ([part] if part.suffix else part.rglob("*.py"))):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
