"""The fallback on a CPU, which always works."""

from __future__ import annotations

from tvm import s_tir, tirx

from .. import common
from ..stages import plain_stages
from ..target import Machine, Rule
from . import pointwise, reduction


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Each stage by itself; loops that are no stage are left to LLVM."""
    return common.start(pointwise.finish(reduction.finish(func, plain_stages(func), [], machine), machine))


RULE = Rule("fallback", "llvm", schedule)
