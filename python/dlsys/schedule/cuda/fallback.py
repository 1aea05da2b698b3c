"""The fallback on a GPU, which always works: a thread for each output element, with serial sums."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from .. import common
from ..stages import inlined
from ..target import Machine, Rule
from .threads import BLOCK


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Every stage by itself, on the device."""
    func, _ = inlined(func) or (func, None)
    sch = common.start(func)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        _bind(sch, block)
    return sch


def _bind(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Bind a block's results to threads, BLOCK of them in a block of threads."""
    loops, kinds = list(sch.get_loops(block)), [v.iter_type for v in sch.get(block).iter_vars]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=False) if kind == tirx.IterVar.DataPar]
    spatial = spatial if len(loops) == len(kinds) else []
    terms = [loop for loop in loops if all(loop is not other for other in spatial)]
    if not spatial:  # one number
        spatial = [sch.add_unit_loop(terms[0] if terms else block)]
    if terms:
        sch.reorder(*spatial, *terms)
    fused = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    grid, thread = sch.split(fused, [None, min(BLOCK, max(1, int(sch.get(fused).extent)))])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


RULE = Rule("fallback", "cuda", schedule)
