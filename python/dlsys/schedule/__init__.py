"""How kernels run: rules that turn a function's plain loops into loops for one machine.

A rule is a function of a PrimFunc and a Machine that returns a schedule, or None where it declines. The
first that takes the function has it; the last always does.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from . import common, contraction, elementwise, fallback, matvec, reduction, windows
from .target import Machine, host_target, machine_of, resolve_target

__all__ = ["RULES", "Machine", "Rule", "apply", "host_target", "machine_of", "resolve_target"]

Rule = Callable[[tirx.PrimFunc, Machine], "s_tir.Schedule | None"]

RULES: tuple[Rule, ...] = (
    contraction.schedule,
    matvec.schedule,
    windows.schedule,
    reduction.schedule,
    elementwise.schedule,
    fallback.schedule,
)


def apply(func: tirx.PrimFunc, target: Target) -> tuple[tirx.PrimFunc, str]:
    """The function scheduled for the target, and the name of the rule that did it: "contraction", "matvec", "windows",
    "reduction", "elementwise", "fallback", or "empty" for one without anything to compute."""
    if _is_empty(func):
        return func, "empty"
    machine = machine_of(target)
    for rule in RULES:
        name = rule.__module__.rpartition(".")[2]
        try:
            sch = rule(func, machine)
        except (ScheduleError, InternalError):
            if rule is RULES[-1]:
                raise
            continue  # a primitive did not apply: the rule's structure was met only in part
        if sch is not None:
            return _function(sch, func), name
    return func, "none"


def _is_empty(func: tirx.PrimFunc) -> bool:
    """Whether no stage has anything to compute."""
    sch = common.start(func)
    return all(common.domain(sch, block) == 0 for block in common.stages(sch))


def _function(sch: s_tir.Schedule, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The schedule's one function, under the name that it had."""
    scheduled = common.function_of(sch)
    name = func.attrs.get("global_symbol") if func.attrs else None
    return scheduled.with_attr("global_symbol", name) if name else scheduled
