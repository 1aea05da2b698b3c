"""What always works on a CPU."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from .. import blocked, common
from ..common import PARALLEL_WORK
from ..target import Machine, Rule


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Each stage by itself, its outputs over threads where there are many; inner loops left to LLVM."""
    sch = common.start(func)
    common.inline_spatial(sch)
    sch = common.start(blocked.blocked(common.function_of(sch), None))
    for block in common.stages(sch):
        if common.work(sch, block) >= PARALLEL_WORK:
            _parallel(sch, block)
    return sch


def _parallel(sch: s_tir.Schedule, block: SBlockRV) -> None:
    loop = next((x for x in common.loops_of(sch, block)[0] if common.extent_of(sch, x) > 1), None)
    if loop is not None:
        sch.parallel(loop)


RULE = Rule("fallback", "llvm", schedule)
