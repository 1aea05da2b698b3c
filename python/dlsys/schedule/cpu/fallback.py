"""What always works on a CPU."""

from __future__ import annotations

from tvm import tirx

from ..target import Machine, Rule
from . import reduction


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Each stage by itself; loops that are no stage are left to LLVM."""
    return reduction.finish(func, machine)


RULE = Rule("fallback", "llvm", schedule)
