"""What always works, on every target."""

from __future__ import annotations

from tvm import s_tir, tirx

from . import common
from .common import PARALLEL_WORK
from .target import Machine

BLOCK = 256  # threads of a CUDA block: whole warps, several blocks to a multiprocessor


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Each stage by itself, its outputs over threads where there are many; inner loops left to LLVM.
    On CUDA an output element is a thread, its sums serial: every stage runs on the device."""
    sch = common.start(func)
    common.inline_spatial(sch)
    for block in common.stages(sch):
        if machine.kind == "cuda":
            _bind(sch, block)
        elif common.work(sch, block) >= PARALLEL_WORK:
            _parallel(sch, block)
    return sch


def _spatial_loops(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> list[s_tir.schedule.LoopRV]:
    loops, kinds = sch.get_loops(block), [v.iter_type for v in sch.get(block).iter_vars]
    if len(loops) != len(kinds):
        return []
    return [x for x, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]


def _parallel(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    loop = next((x for x in _spatial_loops(sch, block) if common.extent_of(sch, x) > 1), None)
    if loop is not None:
        sch.parallel(loop)


def _bind(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    loops = _spatial_loops(sch, block)
    if loops:
        sch.reorder(*loops, *(x for x in sch.get_loops(block) if not any(x.same_as(y) for y in loops)))
        fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    else:
        fused = sch.add_unit_loop(block if not sch.get_loops(block) else sch.get_loops(block)[0])
    grid, thread = sch.split(fused, [None, min(BLOCK, common.extent_of(sch, fused))])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
