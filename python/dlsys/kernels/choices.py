"""The results of a search, in a file of JSON lines: each measured choice of a kernel, and the verdicts.

A line is an object: `loops` (the structural hash of the kernel's plain loops), `formula` (of the `KernelSpec`, empty
for loops of others), `machine`, `versions`, `name`, `space` and `knobs` (see `schedule.knobs`), `features`, `seconds`,
and `rule`, the seconds of the rule's own choice. A verdict also has `gain`, how many times as fast it was when both
were compared for long; a kernel's last one counts. Lines hold no code. Processes may append to one file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import read_file
from ..system import MOST_TUNING_BYTES, TUNING, cache_folder, setting, warn
from . import disk
from .spec import Choice, KernelSpec, TargetName, target_name

LEAST_GAIN = 1.03  # times as fast as the rule a choice must be to be used: measurements vary
MOST_KNOBS = 32
SHIPPED = Path(__file__).parent / "tuned"  # a file for each machine whose choices come with the package, if any do
_VERDICT = '"gain"'

Record = dict[str, Any]
"""A line of the file."""


class TuningWarning(UserWarning):
    """A line of a file of choices is damaged: the rule's own choice is taken."""


def default_database() -> Path:
    """The file that `DLSYS_TUNING` names, or the user's. Raises DataError where there is no cache folder."""
    if path := setting(TUNING):
        return Path(os.path.expanduser(path))
    if (folder := cache_folder()) is None:
        raise DataError("there is no cache folder for what a search finds: name a file")
    return folder / "tuning.jsonl"


def machine_name(how: TargetName) -> str:
    """The machine of a target in records: its kind, and a hash of the CPU's features, caches and threads."""
    return f"{how.kind} {hashlib.sha256(how.machine.encode()).hexdigest()[:16]}"


def versions() -> str:
    """The versions of TVM that decide what code a choice stands for."""
    return " ".join(disk.versions())


def read(path: Any) -> list[Record]:
    """The records of a file, if it is there. Raises DataError for one that cannot be read, warns of damaged lines."""
    return list(_parsed(path, _content(path).splitlines()))


def append(path: Any, records: Iterable[Record]) -> None:
    """Writes records to the end of a file, in one piece, so that several processes may. Raises DataError."""
    lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            end = os.lseek(handle, 0, os.SEEK_END)
            whole = not end or os.pread(handle, 1, end - 1) == b"\n"  # else a killed process left a part of a line
            os.write(handle, lines if whole else b"\n" + lines)
        finally:
            os.close(handle)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def merge(path: Any, other: Any) -> int:
    """Appends another file's records that the first one lacks; returns their number. Raises DataError."""
    if not Path(other).exists():
        raise DataError(f"{other} cannot be read: there is no such file")
    known = {json.dumps(record, sort_keys=True) for record in read(path)}
    missing = [record for record in read(other) if json.dumps(record, sort_keys=True) not in known]
    append(path, missing)
    return len(missing)


def summary(path: Any) -> str:
    """The content of a file as text: each kernel's last verdict on this machine, and how many records there are."""
    records, machine = read(path), machine_name(target_name("llvm"))
    verdicts = {one["loops"]: one for one in records if one["machine"] == machine and "gain" in one}
    told = "{name}: {time:.1f} us by the rule, {gain:.2f} of it by {by}".format
    knobs = (", ".join(f"{name} {value}" for name, value in one["knobs"].items()) for one in verdicts.values())
    pairs = zip(verdicts.values(), knobs, strict=True)
    lines = [told(name=one["name"], time=1e6 * one["rule"], gain=one["gain"], by=by) for one, by in pairs]
    return "\n".join([*lines, f"{len(records)} records in {path}, {len(verdicts)} kernels tuned on this machine"])


def tuned(specs: Sequence[KernelSpec], target: Any) -> list[KernelSpec]:
    """The kernels, each with the choice that the file in use has for it on this machine. `target`: as in
    `kernels.get`, or by name. Raises DataError for a file that is not there or cannot be read."""
    found = _in_use(target_name(target)) if tunes() else {}
    return [spec.with_choice(found.get(spec.digest)) for spec in specs] if found else list(specs)


def tunes() -> bool:
    """Whether a file of choices may be in use."""
    return bool(setting(TUNING)) or SHIPPED.is_dir()


def _in_use(how: TargetName) -> Mapping[str, Choice]:
    """The choices for a target of the file that `DLSYS_TUNING` names, or of the package's for its machine, by the
    digest of a kernel's formula. Raises DataError for a file that is not there or cannot be read."""
    path = os.path.expanduser(setting(TUNING) or "")
    if how.kind != "llvm" or not how.ours or not (path or os.path.exists(path := str(shipped(how)))):
        return {}
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{TUNING}: {path} cannot be read: {error.strerror or error}") from None
    return _choices(path, "formula", machine_name(how), status.st_mtime_ns, status.st_size)


def shipped(how: TargetName) -> Path:
    """Where the choices for a target's machine lie that come with the package, if there are any."""
    return SHIPPED / f"{machine_name(how).replace(' ', '-')}.jsonl"


def of_loops(path: Any, how: TargetName) -> Mapping[str, Choice]:
    """The choices of a file for a target, by the structural hash of a kernel's plain loops."""
    return _choices(str(path), "loops", machine_name(how), -1, len(_content(path)))


@lru_cache(maxsize=16)
def _choices(path: str, key: str, machine: str, changed: int, size: int) -> Mapping[str, Choice]:
    """The best recorded choice by `record[key]`, of this machine and these versions, that gains enough."""
    lines = [line for line in _content(path).splitlines() if _VERDICT in line]  # the rest is for the search
    found: dict[str, Choice] = {}
    for record in _parsed(path, lines):
        if record["machine"] == machine and record["versions"] == versions() and record[key]:
            found[record[key]] = Choice(tuple(sorted(record["knobs"].items())), record["gain"])
    return {name: choice for name, choice in found.items() if choice.gain >= LEAST_GAIN}


def _content(path: Any) -> str:
    return read_file(path, MOST_TUNING_BYTES).decode(errors="replace") if os.path.lexists(path) else ""


def _parsed(path: Any, lines: Iterable[str]) -> Iterator[Record]:
    """The whole records of lines of JSON; warns of damaged lines, which are left out."""
    damaged = 0
    for line in filter(str.strip, lines):
        try:
            record = json.loads(line)
            if _is_whole(record):
                yield record
                continue
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            pass
        damaged += 1
    if damaged:
        told = "a line is damaged and left out" if damaged == 1 else f"{damaged} lines are damaged and left out"
        warn(f"{path}: {told}", TuningWarning)


def _is_whole(record: Record) -> bool:
    """Whether a record has all its parts. Raises AttributeError, KeyError, TypeError or ValueError where not."""
    texts = all(isinstance(record[key], str) for key in ("loops", "formula", "machine", "versions", "name", "space"))
    times = [record["seconds"], record["rule"], *([record["gain"]] if "gain" in record else [])]
    timed = all(isinstance(value, (int, float)) and 0 < value < math.inf for value in times)
    knobs = record["knobs"].items()
    named = len(knobs) <= MOST_KNOBS and all(type(value) in (int, str) for _, value in knobs)
    numbers = all(isinstance(value, (int, float)) and abs(value) < math.inf for value in record["features"])
    return texts and timed and named and numbers
