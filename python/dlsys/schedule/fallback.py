"""What always works, on every target."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from . import blocked, common
from .common import PARALLEL_WORK
from .rule import Rule
from .target import Machine

BLOCK = 256  # threads of a CUDA block: whole warps, several blocks to a multiprocessor


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Each stage by itself, its outputs over threads where there are many; inner loops left to LLVM.
    On CUDA an output element is a thread, its sums serial: every stage runs on the device."""
    sch = common.start(func)
    common.inline_spatial(sch)
    sch = common.start(blocked.blocked(common.function_of(sch), None))
    for block in common.stages(sch):
        if machine.kind == "cuda":
            _bind(sch, block)
        elif common.work(sch, block) >= PARALLEL_WORK:
            _parallel(sch, block)
    return sch


def _parallel(sch: s_tir.Schedule, block: SBlockRV) -> None:
    loop = next((x for x in _loops(sch, block)[0] if common.extent_of(sch, x) > 1), None)
    if loop is not None:
        sch.parallel(loop)


def _bind(sch: s_tir.Schedule, block: SBlockRV) -> None:
    spatial, terms = _loops(sch, block)
    if not spatial:  # one number
        spatial = [sch.add_unit_loop(terms[0] if terms else block)]
    if terms:
        sch.reorder(*spatial, *terms)
    fused = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    grid, thread = sch.split(fused, [None, min(BLOCK, max(1, common.extent_of(sch, fused)))])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _loops(sch: s_tir.Schedule, block: SBlockRV) -> tuple[list[LoopRV], list[LoopRV]]:
    """The block's loops over its results, and those over its terms."""
    loops, kinds = sch.get_loops(block), [v.iter_type for v in sch.get(block).iter_vars]
    if len(loops) != len(kinds):
        return [], list(loops)
    pairs = list(zip(loops, kinds, strict=True))
    spatial = [loop for loop, kind in pairs if kind == tirx.IterVar.DataPar]
    return spatial, [loop for loop, kind in pairs if kind != tirx.IterVar.DataPar]


RULE = Rule("fallback", ("llvm", "cuda"), schedule)
