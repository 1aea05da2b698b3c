"""The fallback on a GPU, which always works: a thread for each output element, with serial sums."""

from __future__ import annotations

from tvm import s_tir, tirx

from ..codegen import sequence
from ..common import blocks_of
from ..loops import around
from ..stages import inlined, with_nests
from ..target import Machine, Rule
from .loops import launch_of


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Every stage by itself, on the device."""
    stages = inlined(func)
    return with_nests(func, list(map(_launch, blocks_of(func) if stages is None else [one.block for one in stages])))


def _launch(block: s_tir.SBlock) -> tirx.Stmt:
    """The launch of a loop nest's block, whose sums a thread adds up."""
    own = [tirx.For(v.var, 0, v.dom.extent, tirx.ForKind.SERIAL, block.body) for v in block.iter_vars]
    kinds = [v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars]
    spatial, terms = ([loop for loop, kind in zip(own, kinds, strict=True) if kind == one] for one in (True, False))
    body = around(terms, block.body)
    code = body if block.init is None else sequence([block.init, body])
    return launch_of(block.name_hint, [(loop, int(loop.extent)) for loop in spatial], code)


RULE = Rule("fallback", "cuda", schedule)
