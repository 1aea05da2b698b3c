"""Schedules that a search has found, in a file: of a kernel's plain loops the steps that make the best of them.

The file is JSON: for each target, by the structural hash of a kernel's loops, its name, the seconds of a call under our
rule and under the best schedule found, measured in turn, how many were tried, and the best few of them, each with its
seconds and its steps as TVM writes them. A file is taken where it is the user's own, and holds no other steps than our
search writes.
"""

from __future__ import annotations

import json
import math
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from .. import schedule
from ..errors import DataError
from ..schedule import Rule, ScheduleWarning
from ..storage import own_content, write_atomically
from ..system import MOST_TUNING_BYTES, warn
from .steps import foreign, has_long_vectors

GAIN = 0.97  # of the rule's time: a schedule that takes more of it is not used, since measurements vary
KEPT = 16  # schedules of a kernel that are stored, so that a later search continues from them
MAIN = "main"  # the function's name in the steps
TUNED = Rule("tuned", "", lambda function, machine: None)
"""The rule of a kernel whose schedule was found by a search."""

Kernel = dict[str, Any]
"""{"name": ..., "rule": seconds, "tuned": seconds or None, "trials": ..., "found": [[seconds, steps], ...]}"""


class Records:
    """The schedules of a file, or none yet. Changes go into the file with `save`."""

    def __init__(self, path: Any, content: bytes | None = None) -> None:
        """`content`: of the file, where it was read before. Raises DataError for a file that others may write, or that
        holds something else. Warns of a kernel's entry that is damaged, and leaves it out."""
        self.path = Path(os.path.expanduser(path))
        self._targets: dict[str, dict[str, Kernel]] = {}
        if content is not None or self.path.exists():
            try:
                if content is None:
                    content = own_content(Path(os.path.realpath(self.path)), MOST_TUNING_BYTES)
                for target, kernels in json.loads(content)["targets"].items():
                    self._targets[target] = {key: kernel for key, kernel in kernels.items() if self._takes(kernel)}
            except PermissionError as error:
                raise DataError(f"{self.path} is not used: {error.strerror or error}") from None
            except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
                raise DataError(f"{self.path} holds no schedules: {error}") from None

    def _takes(self, kernel: Any) -> bool:
        """Whether an entry holds what it must, else warns. Raises DataError for steps that no search of ours writes."""
        try:
            for _, steps in kernel["found"]:
                if strange := foreign(steps):
                    raise DataError(f"{self.path} holds a step that no search of ours writes: {strange:.100}")
            if _is_whole(kernel):
                return True
        except (KeyError, TypeError, ValueError):
            pass
        warn(f"{self.path}: the entry of a kernel is damaged and left out", ScheduleWarning)
        return False

    def save(self) -> None:
        """Writes the file, whole or not at all. Raises DataError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps({"targets": self._targets}).encode(), own=True)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def merge(self, other: Records) -> None:
        """Takes another file's schedules too: of a kernel that both have, those of the one with the better best."""
        for target, kernels in other._targets.items():
            own = self._targets.setdefault(target, {})
            for key, kernel in kernels.items():
                if key not in own or _ratio(kernel) < _ratio(own[key]):
                    own[key] = kernel

    def of(self, function: tirx.PrimFunc, target: Target) -> Kernel | None:
        """The entry of a kernel, or None; whoever changes it changes what `save` writes."""
        return self._targets.get(str(target), {}).get(key_of(function))

    def enter(self, function: tirx.PrimFunc, target: Target, kernel: Kernel) -> None:
        """Takes what is known of a kernel."""
        kernel["found"] = sorted(kernel["found"], key=lambda found: found[0])[:KEPT]
        self._targets.setdefault(str(target), {})[key_of(function)] = kernel

    def schedule(self, function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
        """The function under the best schedule found; None where there is none that is faster than our rule's, or, with
        a warning, its steps do not fit."""
        kernel = self.of(function, target)
        if kernel is None or _ratio(kernel) > GAIN:
            return None
        try:
            return replayed(function, kernel["found"][0][1])
        except DataError as error:
            warn(f"{self.path}: our rule has the kernel {kernel['name']}: {error}", ScheduleWarning)
            return None


def _is_whole(kernel: Any) -> bool:
    """Whether an entry has a name, a number of trials, and times, and a schedule if one is faster. Raises KeyError,
    TypeError or ValueError where it lacks one of them."""
    times = [kernel["rule"], *(seconds for seconds, _ in kernel["found"])]
    times += [kernel["tuned"]] if kernel["tuned"] is not None else []
    named = isinstance(kernel["name"], str) and isinstance(kernel["trials"], int) and kernel["trials"] >= 0
    timed = all(0 < seconds < math.inf for seconds in times)
    return named and timed and (bool(kernel["found"]) or _ratio(kernel) > GAIN)


def _ratio(kernel: Kernel) -> float:
    """The best schedule's time over our rule's; infinite where none was measured."""
    return kernel["tuned"] / kernel["rule"] if kernel["tuned"] else float("inf")


def key_of(function: tirx.PrimFunc) -> str:
    """The structural hash of a function's loops: names and attributes change nothing."""
    return f"{tvm_ffi.structural_hash(tirx.PrimFunc(function.params, function.body)):016x}"


def workload(function: tirx.PrimFunc) -> tvm.IRModule:
    """The module whose schedules are searched."""
    return tvm.IRModule({MAIN: function.with_attr("global_symbol", MAIN)})


def replayed(function: tirx.PrimFunc, steps: Any) -> tirx.PrimFunc:
    """The function after the steps of a schedule. Raises DataError where they do not fit it."""
    module = workload(function)  # which stays, so that TVM works on a copy: else it would change the function
    sch = s_tir.Schedule(module, error_render_level="none")
    try:
        s_tir.schedule.Trace.apply_json_to_schedule(steps, sch)
        made = sch.mod[MAIN]
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        *_, told = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"the steps of a schedule do not fit it: {told}") from None
    if has_long_vectors(made):
        raise DataError("the steps of a schedule do not fit it: a vector is too long")
    name = function.attrs.get("global_symbol") if function.attrs else None
    return made.with_attr("global_symbol", name) if name else made.without_attr("global_symbol")


def apply(
    function: tirx.PrimFunc, target: Target, records: Records | None, precision: str = ""
) -> tuple[tirx.PrimFunc, Rule]:
    """The function as the records have it where that is faster, else as `schedule.apply` does; and the rule."""
    if records is not None and (tuned := records.schedule(function, target)) is not None:
        return tuned, TUNED
    return schedule.apply(function, target, precision)


@lru_cache(maxsize=4)
def records_of(path: str, content: bytes) -> Records:
    """The schedules of a file of this content. Raises DataError."""
    return Records(path, content)
