"""Graphs as modules of TVM Relax: translated, fused by Relax's passes, scheduled by our rules, run by its machine.

    translate.py   `to_relax`: nodes -> an IRModule, each operator by its one formula
    build.py       `compile`: Relax's passes, our schedule rules, what the memory comes to
    tuning.py      `tune`: schedules searched, measured and kept
    machine.py     `load`, and calling what was compiled, for which TVM's runtime suffices
"""

from __future__ import annotations

from typing import Any

from ..tvm_import import with_compiler
from .machine import Machine, default_database, load

_COMPILER = {
    "Compiled": "build",
    "Records": "tuning",
    "Tuning": "tuning",
    "compile": "build",
    "to_relax": "translate",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    """A name of the files that need TVM's compiler, which is imported now."""
    if name not in _COMPILER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(with_compiler(f"relax.{_COMPILER[name]}"), name)
