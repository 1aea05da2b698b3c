"""Schedules that a search has found, in a file: of a kernel's plain loops the steps that make the best of them.

The file is JSON: for each target, by the structural hash of a kernel's loops, its name, the seconds of a call under our
rule and under the best schedule found, measured in turn, how many were tried, and the best few of them, each with its
seconds and its steps as TVM writes them.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from ..errors import DataError
from ..storage import write_atomically
from ..system import TUNING
from .target import Rule

GAIN = 0.97  # of the rule's time: a schedule that takes more of it is not used, since measurements vary
KEPT = 16  # schedules of a kernel, from which a later search goes on
MAIN = "main"  # the function's name in the steps
TUNED = Rule("tuned", "", lambda function, machine: None, overwrites=True)
"""What a kernel names as its rule whose schedule was found."""

Kernel = dict[str, Any]
"""{"name": ..., "rule": seconds, "tuned": seconds or None, "trials": ..., "found": [[seconds, steps], ...]}"""


class Records:
    """The schedules of a file, or none yet. Changes go into the file with `save`."""

    def __init__(self, path: Any) -> None:
        """Raises DataError for a file that holds something else."""
        self.path = Path(os.path.expanduser(path))
        self._targets: dict[str, dict[str, Kernel]] = {}
        if self.path.exists():
            try:
                found = json.loads(self.path.read_text(encoding="utf-8"))
                self._targets = {str(target): dict(kernels) for target, kernels in found["targets"].items()}
            except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
                raise DataError(f"{self.path} holds no schedules: {error}") from None

    def save(self) -> None:
        """Writes the file, whole or not at all. Raises DataError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps({"targets": self._targets}).encode())
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
        """The function under the best schedule found; None where there is none that is faster than our rule's."""
        kernel = self.of(function, target)
        return replayed(function, kernel["found"][0][1]) if kernel and _ratio(kernel) <= GAIN else None


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
    """The function after the steps of a schedule. Raises RuntimeError where they do not fit it."""
    module = workload(function)  # which stays, so that TVM works on a copy: else it would change the function
    sch = s_tir.Schedule(module, error_render_level="none")
    s_tir.schedule.Trace.apply_json_to_schedule(steps, sch)
    made = sch.mod[MAIN]
    name = function.attrs.get("global_symbol") if function.attrs else None
    return made.with_attr("global_symbol", name) if name else made.without_attr("global_symbol")


def of_environment() -> Records | None:
    """The schedules of the file that `DLSYS_TUNING` names; None where it names none. Raises DataError."""
    path = os.environ.get(TUNING)
    return _read(path, os.stat(path).st_mtime_ns) if path else None


@lru_cache(maxsize=4)
def _read(path: str, changed: int) -> Records:
    """The schedules of a file as it was then."""
    return Records(path)
