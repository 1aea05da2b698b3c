"""Communicators: who exchanges arrays with the other ranks. MPI's, one of a process alone, and one for tests."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any, Protocol

import numpy as np

from ..errors import CommunicationError
from ..system import available_cores, core_numbers, setting

OPERATIONS = ("sum", "max", "min")
TIMEOUT = "DLSYS_COMM_TIMEOUT"
USUAL_TIMEOUT = 1800  # seconds for which others are waited for: they may compile, or save
LACKING = "training on several processes needs mpi4py and an MPI: pip install 'dlsys[mpi]'"


class Communicator(Protocol):
    """The ranks of a run, 0 to `size` - 1; `local_rank` counts those of a node, `cores` the threads of each."""

    rank: int
    size: int
    local_rank: int
    cores: int

    def run(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> None:
        """An "all_reduce", "broadcast" or "all_gather" of contiguous arrays: what is sent, and where the result is
        written. A broadcast sends `receive`. Returns when it is done."""


class Alone:
    """The communicator of a process alone."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1

    def __init__(self) -> None:
        self.cores: int = available_cores()

    def run(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> None:
        if receive is not send:
            receive[...] = send


class Simulated(Alone):
    """A communicator of `size` ranks that all have this one's values. `log`: kind and bytes of all exchanges."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size: int = size
        self.log: list[tuple[str, int]] = []

    def run(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> None:
        self.log.append((kind, send.nbytes))
        if kind == "all_reduce":
            np.multiply(send, self.size if operation == "sum" else 1, out=receive)
        elif kind == "all_gather":
            receive[...] = np.tile(send.reshape(-1), self.size).reshape(receive.shape)
        elif receive is not send:
            receive[...] = send


class Mpi:
    """MPI's processes, by mpi4py. A rank that an error ends prints it and ends all others, which would wait for it."""

    def __init__(self) -> None:
        """Raises CommunicationError where mpi4py or an MPI is missing."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise CommunicationError(f"{LACKING} ({error})") from None
        self._comm = MPI.COMM_WORLD.Dup()  # messages of the user's own are apart
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank: int = node.rank
        cores = node.allgather(core_numbers())
        self.cores: int = max(1, len(set[int]().union(*cores)) // node.size)  # shared by all, or bound by a launcher
        self._operations = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self._error = MPI.Exception
        text = setting(TIMEOUT)
        if text and not text.isdecimal():
            raise CommunicationError(f"{TIMEOUT} must be a number of seconds, not {text!r}")
        self._timeout = int(text) if text else USUAL_TIMEOUT
        if self.size > 1:
            sys.excepthook = self._abort

    def run(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> None:
        """Raises CommunicationError where MPI fails, and where a rank does not come within DLSYS_COMM_TIMEOUT seconds.
        """
        try:
            if kind == "all_reduce":
                request = self._comm.Iallreduce(send, receive, self._operations[operation])
            elif kind == "broadcast":
                request = self._comm.Ibcast(receive, root)
            else:
                request = self._comm.Iallgather(send, receive)
            tests, end = 0, time.monotonic() + self._timeout
            while not request.Test():
                tests += 1
                time.sleep(2e-5 if tests > 200 else 0)  # after a tenth of a millisecond: others may need the core
                if time.monotonic() > end:
                    late = f"rank {self.rank} of {self.size} has waited {self._timeout} s for others"
                    raise CommunicationError(f"{late} in an {kind} of {send.nbytes} bytes: one hangs, or has left")
        except self._error as error:
            what = f"rank {self.rank} of {self.size}: {kind} of {send.nbytes} bytes"
            raise CommunicationError(f"{what}: {error}") from None

    def _abort(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        print(f"dlsys: rank {self.rank} of {self.size} raised, which ends all ranks:", file=sys.stderr)
        traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        self._comm.Abort(1)
        os._exit(1)
