"""What always works on a CPU."""

from __future__ import annotations

from tvm import s_tir, tirx

from .. import common
from ..common import PARALLEL_WORK
from ..target import Machine, Rule
from .sharing import least_parts, share_out


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Each stage by itself, its outputs over threads where there are many; inner loops left to LLVM."""
    sch = common.start(func)
    common.inline_spatial(sch)
    for block in common.stages(sch):
        if common.work(sch, block) >= PARALLEL_WORK:
            results, _ = common.loops_of(sch, block)
            if results:
                share_out(sch, results, least_parts(machine))
    return sch


RULE = Rule("fallback", "llvm", schedule)
