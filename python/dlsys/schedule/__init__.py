"""How kernels run: rules that turn a function's plain loops into loops for one machine.

A target's rules are asked in turn; the first that takes the function has it. The last always does.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

from tvm import ir, tirx
from tvm.error import InternalError
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ..system import warn
from ..tvm_import import with_compiler
from . import common, cpu
from .intrinsics import DECLARED
from .stages import with_nests
from .target import Rule, ScheduleWarning
from .target import Machine, host_target, machine_of, resolve_target


def extension(kind: str) -> Any:
    """The package of the schedules for another kind of target, as cuda/, which is loaded when it is first needed. It
    has `RULES`, `require_runs` of a scheduled function, and the compiler of its source as `compiler`."""
    return with_compiler(f"schedule.{kind}")


class _Rules(dict[str, tuple[Rule, ...]]):
    """By the kind of target; those of an extension from when they are first asked for."""

    def __missing__(self, kind: str) -> tuple[Rule, ...]:
        self[kind] = found = extension(kind).RULES
        _versions[kind, _in_use(kind)] = 0
        return found


RULES: dict[str, tuple[Rule, ...]] = _Rules({"llvm": cpu.RULES})
"""By the kind of target. A program may put a rule of its own before these."""
EMPTY, WRITTEN, DEFAULT = (Rule(name, "", lambda func, machine: func) for name in ("empty", "written", "default"))
"""For functions without anything to compute; for those that are given as loops; TVM's own loops, if they are asked."""


def _in_use(kind: str) -> Hashable:
    """The rules for a kind of target and the instructions that they know."""
    of_warps = kind != "llvm"
    return tuple(RULES[kind]), tuple([one for one in DECLARED.values() if (one.warp is not None) == of_warps])


_numbers = itertools.count(1)
_versions: dict[Hashable, int] = {("llvm", _in_use("llvm")): 0}


def version(kind: str) -> int:
    """The number of the rules and instructions that kernels of a kind of target are made by: 0 for those of dlsys,
    which its sources tell; in this process another for each other set, of which nothing tells the next process."""
    return _versions.setdefault((kind, _in_use(kind)), next(_numbers))


def apply(func: tirx.PrimFunc, target: Target, precision: str = "") -> tuple[tirx.PrimFunc, Rule]:
    """The function scheduled for the target, and the rule that did it. `precision`: see `machine_of`. Warns of a rule
    that takes the function and fails; a later one then has it."""
    if _is_empty(func):
        return func, EMPTY
    machine = machine_of(target, precision)
    rules, iters = RULES[machine.kind], [v for block in common.blocks_of(func) for v in block.iter_vars]
    sums = any(v.iter_type == tirx.IterVar.CommReduce for v in iters)
    for rule in (rule for rule in rules if rule.sums in (sums, None)):
        try:
            if (found := rule.schedule(func, machine)) is not None:
                return found, rule
        except (ScheduleError, InternalError) as error:
            if rule is rules[-1]:
                raise
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            warn(f"the rule {rule.name} failed, a slower one has the kernel: {reason[0]}", ScheduleWarning)
    raise AssertionError("the last rule takes all")


def check(func: tirx.PrimFunc, target: Target) -> None:
    """Raises TargetError for a scheduled function that would not run on the target, but crash there."""
    if (kind := str(target.kind)) != "llvm" and not _is_empty(func):
        extension(kind).require_runs(func)


def with_scratch_given(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[ir.Var]]:
    """A scheduled function that is given the arrays between its launches, as its last parameters; and these arrays."""
    arrays = [array for array in func.body.block.alloc_buffers if array.scope() == "global"]
    given = tirx.PrimFunc([*func.params, *arrays], func.body, func.ret_type, attrs=func.attrs)
    return (with_nests(given, [func.body.block.body]) if arrays else func), arrays


def _is_empty(func: tirx.PrimFunc) -> bool:
    """Whether no stage has anything to compute."""
    blocks = common.blocks_of(func)
    return bool(blocks) and all(any(int(v.dom.extent) == 0 for v in block.iter_vars) for block in blocks)
