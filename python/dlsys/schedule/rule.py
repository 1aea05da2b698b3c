"""What a schedule rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import s_tir, tirx

from .target import Machine

Schedule = Callable[[tirx.PrimFunc, Machine], "s_tir.Schedule | None"]


class ScheduleWarning(UserWarning):
    """A rule took a function and failed: its kernel is right, and slower than it should be."""


@dataclass(frozen=True)
class Rule:
    """A way to turn the plain loops of some functions into loops for one kind of machine.

    Attributes:
        name: as a kernel tells it.
        target: the kind of target that it is for, "llvm" or "cuda"; "" for every one.
        schedule: returns the schedule of a function for a machine, or None where it declines.
        overwrites: whether its kernels may write results before they have read all inputs, so that an output must
            not be an input.
        unrolled: whether its kernels are long straight code, in which LLVM's SLP vectorizer takes half of the
            compiler's time and finds nothing.
    """

    name: str
    target: str
    schedule: Schedule
    overwrites: bool = False
    unrolled: bool = False
