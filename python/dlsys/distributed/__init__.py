"""Training on several processes: data parallelism by MPI.

`mpiexec -n 4 python train.py` starts four processes, the *ranks*, of one program. Each computes the gradients of its
share of a batch, and their mean updates the parameters of all, so that these stay equal. In a group of one all
functions do nothing, so a program needs no `if`.

    communicators   who exchanges arrays: MPI, one process alone, ranks that are simulated
    group           the group of the process, and the functions that users call
    means           means over the ranks as nodes: of the gradients of every optimizer, in buckets
"""

from __future__ import annotations

from .communicators import OPERATIONS, Alone, Communicator, Mpi, Simulated
from .group import (
    Group, all_gather, all_reduce, barrier, broadcast, group, init, local_rank, rank, share, size, using,
)
from .means import averaged, mean_over_ranks, synchronize
