"""Communicators: who exchanges arrays with the other ranks. MPI's, one of a process alone, and one for tests, whose
requests take the time of a link that does not exist.

All exchange is non-blocking: `start` returns a request, which is tested or waited for.
"""

from __future__ import annotations

import atexit
import os
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import CommunicationError
from ..system import available_cores, core_numbers
from ..watching import Board, opened

OPERATIONS = ("sum", "max", "min")
FASTEST = 2e10  # bytes a second
FAULT_TOLERANT = "OMPI_MCA_mpi_ft_enable"  # set by Open MPI's `mpiexec --with-ft ulfm`
LACKING = "training on several processes needs mpi4py and an MPI: pip install 'dlsys[mpi]'"


class RankLostError(CommunicationError):
    """A process of the run has ended, which others wait for."""


class Request(Protocol):
    """A collective that goes on."""

    def test(self) -> bool:
        """Whether it is done; asking lets it make progress."""

    def wait(self) -> None:
        """Return when it is done."""


@dataclass(frozen=True)
class Link:
    """The time of an all-reduce: `latency` + bytes / `bandwidth`, in seconds and bytes a second."""

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float, kind: str = "all_reduce") -> float:
        """Of a collective of so many bytes: an all-reduce is a reduce-scatter and an all-gather."""
        return self.latency + nbytes / self.bandwidth / (1 if kind == "all_reduce" else 2)


class Communicator(Protocol):
    """The ranks of a run, 0 to `size` - 1; `local_rank` counts those of a node, `cores` the threads of each. `elastic`:
    whether they can go on when one is lost."""

    rank: int
    size: int
    local_rank: int
    cores: int
    link: Link
    board: Board
    elastic: bool

    def start(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> Request:
        """Begin an "all_reduce", "broadcast", "all_gather" or "reduce_scatter" of contiguous arrays: what is sent, and
        where the result is written, which may be the same memory for an all-reduce. A broadcast sends `receive`."""


class _Until:
    """A request that is done at a time."""

    def __init__(self, end: float = 0.0) -> None:
        self._end = end

    def test(self) -> bool:
        return time.perf_counter() >= self._end

    def wait(self) -> None:
        time.sleep(max(self._end - time.perf_counter(), 0.0))


class Alone:
    """The communicator of a process alone."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    link: Link = Link(0.0, 1e12)
    elastic: bool = True

    def __init__(self) -> None:
        self.board: Board = Board()
        self.cores: int = available_cores()

    def start(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> Request:
        if receive is not send:
            receive[...] = send
        return _Until()


class Simulated(Alone):
    """A communicator of `size` ranks that all have this one's values, over a link that sends one request at a time:
    each ends its `seconds` after it was started and the one before has ended. `log`: kind and bytes of all requests."""

    def __init__(self, size: int, latency: float, bandwidth: float) -> None:
        super().__init__()
        self.size: int = size
        self.link: Link = Link(latency, bandwidth)
        self.log: list[tuple[str, int]] = []
        self._free = 0.0

    def start(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> Request:
        self.log.append((kind, send.nbytes))
        if kind == "all_reduce":
            np.multiply(send, self.size if operation == "sum" else 1, out=receive)
        elif kind == "all_gather":
            receive[...] = np.tile(send.reshape(-1), self.size).reshape(receive.shape)
        elif kind == "reduce_scatter":
            receive[...] = send.reshape(-1)[: receive.size].reshape(receive.shape) * self.size
        elif receive is not send:
            receive[...] = send
        self._free = max(self._free, time.perf_counter()) + self.link.seconds(max(send.nbytes, receive.nbytes), kind)
        return _Until(self._free)


class _MpiRequest:
    """A request of MPI's."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def test(self) -> bool:
        try:
            return self._request.Test()
        except RuntimeError as error:  # MPI's
            raise RankLostError(f"a rank that others wait for is lost: {error}") from None

    def wait(self) -> None:
        spins = 0
        while not self.test():
            spins += 1
            time.sleep(2e-5 if spins > 200 else 0)  # after a tenth of a millisecond: others may need the core


class Mpi(Communicator):
    """MPI's processes, by mpi4py."""

    def __init__(self) -> None:
        """Raises CommunicationError where mpi4py or an MPI is missing."""
        self.elastic = os.environ.get(FAULT_TOLERANT) == "1"
        try:
            import mpi4py

            if self.elastic:  # Open MPI's end may hang when a rank was lost
                mpi4py.rc.finalize = False
                atexit.register(self._end)
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise CommunicationError(f"{LACKING} ({error})") from None
        self._mpi = MPI
        node = self.meet(MPI.COMM_WORLD.Dup())  # messages of the user's own are apart
        self.board = opened(node.bcast, node.rank, node.allgather, self.rank, self.size)
        self._operations = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self.link = self._measured()

    def _end(self) -> None:
        if self._mpi.COMM_WORLD.size == self.size:
            self._mpi.Finalize()

    def meet(self, comm: Any) -> Any:
        """Let the group be that of an MPI communicator, `comm`; returns that of its ranks of this node."""
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        node = comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.local_rank = node.rank
        cores = node.allgather(core_numbers())
        self.cores = max(1, len(set[int]().union(*cores)) // node.size)  # shared by all, or bound to some by a launcher
        return node

    def start(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> Request:
        comm = self.comm
        try:
            if kind == "all_reduce":
                own = self._mpi.IN_PLACE if send.ctypes.data == receive.ctypes.data else send
                return _MpiRequest(comm.Iallreduce(own, receive, self._operations[operation]))
            if kind == "broadcast":
                return _MpiRequest(comm.Ibcast(receive, root))
            if kind == "all_gather":
                return _MpiRequest(comm.Iallgather(send, receive))
            return _MpiRequest(comm.Ireduce_scatter_block(send, receive, self._operations[operation]))
        except self._mpi.Exception as error:
            raise RankLostError(f"a rank that others wait for is lost: {error}") from None

    def _measured(self) -> Link:
        """The link, by all-reduces of 8 bytes and of 1 MiB: the fastest of a few, on the slowest rank."""
        seconds = []
        for count in (1, 1 << 17):
            values, times = np.zeros(count), []
            for _ in range(5):
                self.comm.Barrier()
                began = time.perf_counter()
                self.start("all_reduce", values, values).wait()
                times.append(time.perf_counter() - began)
            seconds.append(self.comm.allreduce(min(times), self._mpi.MAX))
        latency = max(seconds[0], 1e-7)
        return Link(latency, (1 << 20) / max(seconds[1] - latency, (1 << 20) / FASTEST))
