"""The group of the process, and what users ask of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import integer
from ..devices import get_num_threads, host_array, lies_on, set_num_threads, to_array
from ..errors import CommunicationError
from .communicators import OPERATIONS, Alone, Communicator, Mpi

LAUNCHED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK")  # variables that launchers of MPI set
BUCKET_BYTES = 8 * 2**20


@dataclass
class Group:
    """The ranks of a run.

    Attributes:
        communicator: who exchanges their arrays.
        bucket_bytes: from how many bytes on a bucket of gradients is full.
    """

    communicator: Communicator
    bucket_bytes: int = BUCKET_BYTES


_group: Group | None = None


def group() -> Group:
    """The group of the process, which it joins now, by `init`, if it has not yet."""
    if _group is None:
        init()
    assert _group is not None
    return _group


def init(*, bucket_bytes: int | None = None, print_all: bool = False) -> None:
    """Join the group of all processes that a launcher of MPI has started, such as `mpiexec`; without one it is a group
    of one, and mpi4py is not imported. It is called at the first use of this module; again it sets `bucket_bytes` only.

    Kernels run on as many threads as there are cores of the node for each of its ranks. What ranks other than 0 print
    to `sys.stdout` is dropped, unless `print_all`; errors are shown by all.

    Args:
        bucket_bytes: from how many bytes on a bucket of gradients is full, which travels as one message; None for
            8 MiB.

    Raises CommunicationError where mpi4py or an MPI is missing.
    """
    global _group
    if bucket_bytes is not None:
        integer("init", "bucket_bytes", bucket_bytes, 1, CommunicationError)
    if _group is not None:
        _group.bucket_bytes = bucket_bytes or _group.bucket_bytes
        return
    communicator: Communicator = Mpi() if any(name in os.environ for name in LAUNCHED) else Alone()
    if communicator.size > 1:
        set_num_threads(min(communicator.cores, get_num_threads()))
        if communicator.rank and not print_all:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    _group = Group(communicator, bucket_bytes or BUCKET_BYTES)


@contextlib.contextmanager
def using(communicator: Communicator, bucket_bytes: int = BUCKET_BYTES) -> Iterator[Group]:
    """Inside, the process belongs to a group of this communicator, such as a `Simulated` one."""
    global _group
    before, _group = _group, Group(communicator, bucket_bytes)
    try:
        yield _group
    finally:
        _group = before


def rank() -> int:
    """The number of this process in the group, from 0 on."""
    return group().communicator.rank


def size() -> int:
    """How many processes the group has."""
    return group().communicator.size


def local_rank() -> int:
    """The number of this process among those of its node."""
    return group().communicator.local_rank


def share(rows: slice | int) -> slice:
    """This rank's share of some rows, a slice or the first `rows`: as many as the others have, or one more; those of
    rank 0 come first. Empty where there are more ranks than rows."""
    start, stop = (0, rows) if isinstance(rows, int) else (rows.start or 0, rows.stop)
    count, own = stop - start, group().communicator
    return slice(start + own.rank * count // own.size, start + (own.rank + 1) * count // own.size)


def _sent(value: Any) -> np.ndarray:
    """The value as a contiguous array of the host, copied only from a GPU or where it is not contiguous."""
    return np.asarray(host_array(value, None), order="C")


def _like(value: Any, found: np.ndarray) -> Any:
    """A result as what was given: a number, a NumPy array, or an Array for arrays of other libraries and tensors."""
    if isinstance(value, (bool, int, float)):
        return type(value)(found) if found.ndim == 0 else found
    return found if isinstance(value, (np.ndarray, np.generic)) else to_array(found, lies_on(value))


def all_reduce(value: Any, operation: str = "sum") -> Any:
    """The sum, "max" or "min" of the ranks' values, element by element. Each rank gives a number or an array of one
    shape and dtype, which is read where it lies; the result has the same bits on all ranks."""
    if operation not in OPERATIONS:
        raise CommunicationError(f"all_reduce: the operation is one of {', '.join(OPERATIONS)}, not {operation!r}")
    if size() == 1:
        return value
    send = _sent(value)
    group().communicator.run("all_reduce", send, found := np.empty_like(send), operation)
    return _like(value, found)


def broadcast(value: Any, root: int = 0) -> Any:
    """The value of rank `root`; all ranks give one of its shape and dtype."""
    if size() == 1:
        return value
    sent = _sent(value)
    found = np.array(sent) if rank() == root else np.empty_like(sent)
    group().communicator.run("broadcast", found, found, root=root)
    return _like(value, found)


def all_gather(value: Any) -> Any:
    """The ranks' values one behind another along the first axis; those of numbers are an array of one axis."""
    send = np.atleast_1d(_sent(value))
    if size() == 1:
        return value if np.ndim(value) else send
    found = np.empty((size() * len(send), *send.shape[1:]), send.dtype)
    group().communicator.run("all_gather", send, found)
    return _like(value, found)


def barrier() -> None:
    """Returns when all ranks have called it."""
    all_reduce(0)
