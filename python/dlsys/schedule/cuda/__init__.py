"""Rules for GPUs by CUDA, in the order in which they are asked.

The mechanisms: tiles of products in shared memory, by CUDA cores or tensor cores (`contraction`, `product_code`,
`tensor_cores`, by the instructions of `mma`), chosen by the fewest cycles; rows held in registers (`rows`); sums by
threads side by side or together, in parts where results are few (`reduction`); a launch for all functions of an index
and transposes through shared memory (`pointwise`); loops of formulas (`loops`); what threads do and how they
are launched (`threads`); CUDA's compiler (`nvrtc`).
"""

from __future__ import annotations

from tvm import tirx

from ...errors import TargetError
from . import contraction, loops, pointwise, reduction, rows
from . import nvrtc as compiler
from .threads import is_bound

RULES = (contraction.RULE, rows.RULE, reduction.RULE, loops.RULE, pointwise.RULE, loops.FALLBACK)


def require_runs(func: tirx.PrimFunc) -> None:
    """Raises TargetError for a scheduled function that would not run on a GPU, but crash there."""
    if not is_bound(func):
        raise TargetError("loops that no threads of a GPU are bound to cannot run there; see schedule/cuda")
