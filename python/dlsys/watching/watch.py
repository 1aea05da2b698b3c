"""The watcher: a process beside the ranks of a node, which ends them all, with one message, when one of them is lost.

It is started by the node's first rank and outlives it, as `mpiexec` kills the ranks within milliseconds when one dies.
It reads the `board`, on which each rank writes what it does, and waits for the ranks' ends. It needs Python's library
alone: `python watch.py BOARD TIMEOUT RANKS SIZE PID...`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Sequence

ROW = 512  # bytes of a rank on the board
HEAD = struct.Struct("qqdq")  # state, collectives begun, time of the last change of state, does without lost ranks
TEXT = HEAD.size  # where the text begins, which ends with a zero
RUNS, WAITS, BUSY, LEFT, FAILED = range(5)
PATIENCE = 30  # times the limit, for a rank that compiles or saves, and for one on another node
GONE = 1 << 62  # the collectives of a lost rank that the others do without
LAUNCHERS = ("mpiexec", "mpiexec.hydra", "mpirun", "prterun")


def read(board: memoryview, row: int) -> tuple[int, int, float, str]:
    """A rank's row of the board: its state, the collectives begun, since when it is in that state, and the text."""
    state, begun, since, _ = HEAD.unpack_from(board, row * ROW)
    text = bytes(board[row * ROW + TEXT : (row + 1) * ROW]).split(b"\0", 1)[0]
    return state, begun, since, text.decode(errors="replace")


def lost(board: memoryview, ranks: Sequence[int], size: int, limit: float) -> tuple[int | None, str]:
    """The row of a rank that does not come to a collective for which another waits, and the message about it, which is
    empty if there is none. The row is None where the rank is another node's. All ranks are alive, or gone."""
    rows = [read(board, i) for i in range(len(ranks))]
    now = time.monotonic()
    for rank, (state, begun, since, text) in zip(ranks, rows, strict=True):
        if state != WAITS:
            continue
        waited, behind = now - since, [i for i, row in enumerate(rows) if row[1] < begun]
        for i in behind:
            own, _, changed, told = rows[i]
            if own == LEFT:
                return i, f"rank {ranks[i]} of {size} has left ({told}), and rank {rank} waits for it {text}"
            if now - max(since, changed) > limit * (PATIENCE if own == BUSY else 1):
                return i, (
                    f"rank {ranks[i]} of {size} hangs: it was last {told}; rank {rank} waits for it {text}, "
                    f"for {waited:.1f} s (DLSYS_COMM_TIMEOUT is {limit:g})"
                )
        if not behind and waited > limit * PATIENCE:
            told = f"rank {rank} of {size} waits {text}, for {waited:.1f} s, and all ranks of its node are there"
            return None, told
    return None, ""


class Outlet:
    """The standard error that users see. A launcher forwards a rank's for milliseconds only once a rank has died: its
    own is opened here, before. A file cannot be shared so, as the launcher has its own place in it: what did not get
    through is appended when the launcher has ended."""

    def __init__(self, pid: int) -> None:
        """Of the launcher among the ancestors of a process, or this process's own."""
        self._out, self._launcher = 2, -1
        with contextlib.suppress(OSError):  # another user's, or gone
            while pid > 1 and self._launcher < 0:
                with open(f"/proc/{pid}/stat") as file:
                    name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
                if name in LAUNCHERS:
                    self._out = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
                    os.set_blocking(self._out, True)
                    self._launcher = os.pidfd_open(pid)
                pid = int(rest.split()[1])
        self._is_file = stat.S_ISREG(os.fstat(self._out).st_mode)

    def tell(self, text: str, pids: Sequence[int], last: bool) -> None:
        """Write a line, and kill processes; with `last` the launcher ends then."""
        line = f"dlsys: {text}\n".encode()
        try:
            os.write(2 if self._is_file else self._out, line)
        except OSError:  # it is no longer forwarded
            os.write(self._out, line)
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        if last and self._is_file and self._launcher >= 0:
            os.close(2)  # for whose end the launcher waits
            select.select([self._launcher], [], [], 5)
            with open(f"/proc/self/fd/{self._out}", "rb") as file:
                if line not in file.read():
                    os.write(self._out, line)


def has_closed(pid: int) -> bool:
    """Whether a process has no open files left, so that a launcher knows of its end."""
    with contextlib.suppress(OSError):
        return not os.listdir(f"/proc/{pid}/fd")
    return True


def watch(path: str, limit: float, ranks: Sequence[int], size: int, pids: Sequence[int]) -> None:
    """Returns when all processes have ended. Where one has ended without having left, or does not come, it ends that
    one, if the others go on without it, or all."""
    with open(path, "r+b") as file:
        board = memoryview(mmap.mmap(file.fileno(), 0))
    polled, alive = select.epoll(), dict(enumerate(pids))
    row_of = {os.pidfd_open(pid): row for row, pid in alive.items()}
    for descriptor in row_of:
        polled.register(descriptor, select.EPOLLIN)
    with contextlib.suppress(OSError):  # the launcher soon ends the others too
        os.nice(-10)
    outlet = Outlet(pids[0])
    print("watching", flush=True)  # the one who started it waits for this
    while alive:
        ended, text = [], ""
        for descriptor, _ in polled.poll(0.2):
            polled.unregister(descriptor)
            ended.append(row_of[descriptor])
        if any(read(board, row)[0] != LEFT for row in ended):  # the first to die may take longer than those it ends
            ended += [row for row, pid in alive.items() if row not in ended and has_closed(pid)]
            raised, died = [], []
            for row in ended:
                state, _, _, last = read(board, row)
                if state == FAILED:
                    raised.append(f"rank {ranks[row]} of {size} raised {last}")
                elif state != LEFT:
                    died.append(f"rank {ranks[row]} of {size} died: it was last {last}")
            text = "; ".join(raised or died)
        for row in ended:
            alive.pop(row, None)
        if not text:
            one, text = lost(board, ranks, size, limit)
            ended = [] if one is None else [one]
        others = {*alive} - {*ended}
        if text and ended and others and all(HEAD.unpack_from(board, row * ROW)[3] for row in others):
            for row in ended:
                HEAD.pack_into(board, row * ROW, LEFT, GONE, 0.0, 1)
            outlet.tell(f"{text}; the others go on", [alive[row] for row in ended if row in alive], False)
        elif text:
            outlet.tell(f"{text}; all ranks are ended", [*alive.values()], True)
            return


if __name__ == "__main__":
    _, path, limit, ranks, size, *pids = sys.argv
    watch(path, float(limit), [int(rank) for rank in ranks.split(",")], int(size), [int(pid) for pid in pids])
