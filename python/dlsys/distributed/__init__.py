"""Training on several processes: their group, and what they exchange.

`mpiexec -n 4 python train.py` starts four processes, the *ranks*, of one program. Each computes the gradients of its
share of a batch, and their weighted mean updates the parameters of all, so that these stay equal. In a group of one all
functions do nothing, so a program needs no `if`.

Mechanisms:

    communicators   who exchanges arrays: MPI, one process alone, a simulated link; all requests are non-blocking
    collectives     the group of the process, and the functions that users call
    exchange        the functions that a plan's table calls to start, test and wait for its messages
"""

from __future__ import annotations

from .collectives import (
    Group, all_gather, all_reduce, barrier, broadcast, busy, device, group, init, local_rank, rank, reduce_scatter,
    share, size, using,
)
from .communicators import OPERATIONS, Alone, Communicator, Link, Mpi, RankLostError, Simulated
from .exchange import Exchange, Message
