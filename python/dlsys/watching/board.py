"""The board: on each node a file in memory on which every rank writes what it does, for the `watch`er to read."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from ..errors import CommunicationError
from ..system import setting
from . import watch
from .watch import BUSY, FAILED, HEAD, LEFT, ROW, RUNS, TEXT, WAITS

TIMEOUT, USUAL_TIMEOUT = "DLSYS_COMM_TIMEOUT", "8"


def timeout() -> float:
    """Seconds for which a rank may be waited for. Raises CommunicationError for a setting that is no such number."""
    given = setting(TIMEOUT) or USUAL_TIMEOUT
    with contextlib.suppress(ValueError):
        if 0 < (found := float(given)) < 1e6:
            return found
    raise CommunicationError(f"{TIMEOUT} must be a number of seconds, not {given!r}")


class Board:
    """A rank's row of the board: its state, and what it does. Without a file, as in a group of one, nobody reads it."""

    def __init__(self, path: str | None = None, row: int = 0) -> None:
        self._row: Any = memoryview(bytearray(ROW))
        if path is not None:
            with open(path, "r+b") as file:
                self._row = memoryview(mmap.mmap(file.fileno(), 0))[row * ROW : (row + 1) * ROW]
        self.begun: int = 0
        self.elastic: bool = False  # whether the rank goes on when another is lost
        self.say(as_text("in its program, before any collective"))

    def _set(self, state: int) -> None:
        HEAD.pack_into(self._row, 0, state, self.begun, time.monotonic(), self.elastic)

    def say(self, text: bytes) -> None:
        """Write what the rank does, an `as_text`; takes 0.1 us."""
        self._row[TEXT : TEXT + len(text)] = text

    def begins(self) -> None:
        """The rank has begun a collective."""
        self.begun += 1
        self.waits(False)

    def waits(self, does: bool = True) -> None:
        """The rank waits for others; or it goes on."""
        self._set(WAITS if does else RUNS)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Inside, the rank does what may take long, and others wait longer for it."""
        state, _, _, before = watch.read(self._row, 0)
        self._set(BUSY)
        self.say(as_text(f"{text}, and before {before}"))
        try:
            yield
        finally:
            self._set(state)
            self.say(as_text(before))

    def fails(self, error: BaseException) -> None:
        """The rank ends by an exception."""
        last = watch.read(self._row, 0)[3]
        self.say(as_text(f"{type(error).__name__}: {str(error)[:200]} (it was last {last})"))
        self._set(FAILED)

    def leaves(self) -> bool:
        """The rank's program has come to its end. Returns whether by itself, not by an exception."""
        failed = watch.read(self._row, 0)[0] == FAILED
        self._set(FAILED if failed else LEFT)
        return not failed


def as_text(text: str) -> bytes:
    """The bytes of a text on the board."""
    return text.encode()[: ROW - TEXT - 1] + b"\0"


def opened(
    share: Callable[[Any], Any], row: int, gather: Callable[[Any], Sequence[Any]], rank: int, size: int
) -> Board:
    """The board of a node's ranks, of which the first, by `row`, makes it and starts the watcher. `share` gives all the
    first one's object, `gather` those of all."""
    path = ""
    if row == 0:
        handle, path = tempfile.mkstemp("", "dlsys-board-", "/dev/shm" if os.path.isdir("/dev/shm") else None)
        os.close(handle)
    path, ranks = share(path), gather((rank, os.getpid()))
    if row == 0:
        os.truncate(path, ROW * len(ranks))
    gather(None)  # its size is set
    board = Board(path, row)
    gather(None)  # all have opened it
    if row == 0:
        if hasattr(os, "pidfd_open"):  # else another system than Linux: nobody watches
            _start_watcher(path, ranks, size)
        os.unlink(path)
    _install_hooks(board)
    return board


def _start_watcher(path: str, ranks: Sequence[tuple[int, int]], size: int) -> None:
    """In a session of its own, as a launcher kills the ranks' process groups."""
    numbers, pids = ",".join(str(rank) for rank, _ in ranks), [str(pid) for _, pid in ranks]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", watch.__file__, path, f"{timeout():g}", numbers, str(size), *pids],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.returncode = 0  # it outlives us: nobody waits for it


def _install_hooks(board: Board) -> None:
    """Let the board know how the program ends: of itself, or by an exception, then without waiting for others."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        board.fails(error)

    def leave() -> None:
        if not board.leaves():
            sys.stdout.flush()
            sys.stderr.flush()
            if board.elastic:  # with a status the launcher would end all
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(1)  # without MPI's own end, which waits for all

    sys.excepthook = hook
    atexit.register(leave)
