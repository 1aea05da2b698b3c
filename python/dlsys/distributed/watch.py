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
import struct
import sys
import time
from collections.abc import Sequence

ROW = 512  # bytes of a rank on the board
HEAD = struct.Struct("qqd")  # state, collectives begun, time of the last change of state
TEXT = HEAD.size  # where the text begins, which ends with a zero
RUNS, WAITS, BUSY, LEFT, FAILED = range(5)
PATIENCE = 30  # times the limit, for a rank that compiles or saves, and for one on another node


def read(board: memoryview, row: int) -> tuple[int, int, float, str]:
    """A rank's row of the board: its state, the collectives begun, since when it is in that state, and the text."""
    state, begun, since = HEAD.unpack_from(board, row * ROW)
    text = bytes(board[row * ROW + TEXT : (row + 1) * ROW]).split(b"\0", 1)[0]
    return state, begun, since, text.decode(errors="replace")


def lost(board: memoryview, ranks: Sequence[int], size: int, limit: float) -> str:
    """The message about a rank that does not come to a collective for which another waits; empty if there is none. All
    ranks are alive."""
    rows = [read(board, i) for i in range(len(ranks))]
    now = time.monotonic()
    for rank, (state, begun, since, text) in zip(ranks, rows, strict=True):
        if state != WAITS:
            continue
        waited, behind = now - since, [i for i, row in enumerate(rows) if row[1] < begun]
        for i in behind:
            own, _, changed, told = rows[i]
            if own == LEFT:
                return f"rank {ranks[i]} of {size} has left ({told}), and rank {rank} waits for it {text}"
            if now - max(since, changed) > limit * (PATIENCE if own == BUSY else 1):
                return (
                    f"rank {ranks[i]} of {size} hangs: it was last {told}; rank {rank} waits for it {text}, "
                    f"for {waited:.1f} s (DLSYS_COMM_TIMEOUT is {limit:g})"
                )
        if not behind and waited > limit * PATIENCE:
            return f"rank {rank} of {size} waits {text}, for {waited:.1f} s, and all ranks of its node are there"
    return ""


def watch(path: str, limit: float, ranks: Sequence[int], size: int, pids: Sequence[int]) -> None:
    """Returns when all processes have ended; ends them where one has ended without having left, or does not come."""
    with open(path, "r+b") as file:
        board = memoryview(mmap.mmap(file.fileno(), 0))
    polled, row_of = select.epoll(), {os.pidfd_open(pid): i for i, pid in enumerate(pids)}  # in the order of the ends
    for descriptor in row_of:
        polled.register(descriptor, select.EPOLLIN)
    with contextlib.suppress(OSError):  # the launcher forwards what is told for milliseconds only
        os.nice(-10)
    print("watching", flush=True)  # the one who started it waits for this
    ended: set[int] = set()
    while len(ended) < len(pids):
        told = ""
        for descriptor, _ in polled.poll(0.2):
            polled.unregister(descriptor)
            ended.add(row := row_of[descriptor])
            state, _, _, text = read(board, row)
            if state != LEFT and not told:
                how = f"raised {text}" if state == FAILED else f"died: it was last {text}"
                told = f"rank {ranks[row]} of {size} {how}"
        if told := told or lost(board, ranks, size, limit):
            with contextlib.suppress(OSError):  # the launcher has ended
                os.write(2, f"dlsys: {told}; all ranks are ended\n".encode())
            for pid in (pid for row, pid in enumerate(pids) if row not in ended):
                with contextlib.suppress(OSError):  # it has ended
                    os.kill(pid, signal.SIGKILL)
            return


if __name__ == "__main__":
    _, path, limit, ranks, size, *pids = sys.argv
    watch(path, float(limit), [int(rank) for rank in ranks.split(",")], int(size), [int(pid) for pid in pids])
