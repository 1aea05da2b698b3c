"""Schedules that a search has found, in a file: of a kernel's plain loops the steps that make the best of them.

The file is JSON: for each target, by the structural hash of a kernel's loops, its name, the seconds of a call under our
rule and under the best schedule found, measured in turn, how many were tried, and the best few of them, each with its
seconds and its steps as TVM writes them. Each entry holds the hash of all this: one that was damaged, whose steps could
end the process in TVM, is warned of and left out.
"""

from __future__ import annotations

import hashlib
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
from ..system import warn
from .target import Rule, ScheduleWarning

GAIN = 0.97  # of the rule's time: a schedule that takes more of it is not used, since measurements vary
KEPT = 16  # schedules of a kernel, from which a later search goes on
MAIN = "main"  # the function's name in the steps
HASH = "sha256"  # of an entry, in the file
TUNED = Rule("tuned", "", lambda function, machine: None, overwrites=True)
"""What a kernel names as its rule whose schedule was found."""

Kernel = dict[str, Any]
"""{"name": ..., "rule": seconds, "tuned": seconds or None, "trials": ..., "found": [[seconds, steps], ...]}"""


class Records:
    """The schedules of a file, or none yet. Changes go into the file with `save`."""

    def __init__(self, path: Any, content: bytes | None = None) -> None:
        """`content`: of the file, where it was read before. Raises DataError for a file that holds something else."""
        self.path = Path(os.path.expanduser(path))
        self._targets: dict[str, dict[str, Kernel]] = {}
        if content is not None or self.path.exists():
            try:
                found = json.loads(self.path.read_bytes() if content is None else content)
                given = {str(target): dict(kernels) for target, kernels in found["targets"].items()}
            except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
                raise DataError(f"{self.path} holds no schedules: {error}") from None
            self._targets = {target: self._whole(target, kernels) for target, kernels in given.items()}

    def _whole(self, target: str, kernels: dict[str, Any]) -> dict[str, Kernel]:
        """The entries that are what was saved; of others it warns."""
        whole: dict[str, Kernel] = {}
        for key, kernel in kernels.items():
            if isinstance(kernel, dict) and kernel.pop(HASH, None) == _hash_of(target, key, kernel):
                whole[key] = kernel
        if damaged := ", ".join(sorted(kernels.keys() - whole.keys())):
            told = f"{self.path}: damaged entries, or an older dlsys'; our rules have their kernels: {damaged}"
            warn(told, ScheduleWarning)
        return whole

    def save(self) -> None:
        """Writes the file, whole or not at all. Raises DataError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            targets = {
                target: {key: {**kernel, HASH: _hash_of(target, key, kernel)} for key, kernel in kernels.items()}
                for target, kernels in self._targets.items()
            }
            write_atomically(self.path, json.dumps({"targets": targets}).encode())
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


def _hash_of(target: str, key: str, kernel: Kernel) -> str:
    """The hash of an entry and its place."""
    return hashlib.sha256(json.dumps([target, key, kernel], sort_keys=True).encode()).hexdigest()


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
    name = function.attrs.get("global_symbol") if function.attrs else None
    return made.with_attr("global_symbol", name) if name else made.without_attr("global_symbol")


@lru_cache(maxsize=4)
def records_of(path: str, content: bytes) -> Records:
    """The schedules of a file of this content. Raises DataError."""
    return Records(path, content)
