"""What always works on a GPU: an output element is a thread, its sums serial."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from .. import common
from ..target import Machine, Rule
from .threads import BLOCK


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Every stage by itself, on the device."""
    sch = common.start(func)
    common.inline_spatial(sch)
    for block in common.stages(sch):
        _bind(sch, block)
    return sch


def _bind(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Bind a block's results to threads, BLOCK of them in a block of threads."""
    spatial, terms = common.loops_of(sch, block)
    if not spatial:  # one number
        spatial = [sch.add_unit_loop(terms[0] if terms else block)]
    if terms:
        sch.reorder(*spatial, *terms)
    fused = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    grid, thread = sch.split(fused, [None, min(BLOCK, max(1, common.extent_of(sch, fused)))])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


RULE = Rule("fallback", "cuda", schedule)
