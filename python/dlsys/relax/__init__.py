"""Graphs as modules of TVM Relax: translated, fused by Relax's passes, scheduled by our rules, run by Relax.

    translate.py   `to_relax`: nodes -> an IRModule with a call for each operator
    build.py       `compile`: Relax's passes and memory plan, our schedule rules
    tuning.py      `tune`: schedules searched, measured and stored by TVM's MetaSchedule
    machine.py     `load`, and calls of compiled modules, which need only TVM's runtime
"""

from __future__ import annotations

from typing import Any

from ..tvm_import import with_compiler
from .machine import Machine, load

_COMPILER = {"Compiled": "build", "compile": "build", "to_relax": "translate", "tune": "tuning"}


def __getattr__(name: str) -> Any:
    """A name of a file that needs TVM's compiler; both are imported now."""
    if name not in _COMPILER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(with_compiler(f"relax.{_COMPILER[name]}"), name)
