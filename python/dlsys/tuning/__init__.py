"""Search over the choices of our own rules: measured, learned from, stored, and used where they are faster.

    model.py     learned models of how long a choice takes
    search.py    what to try next: annealing over the model's predictions, then a descent
    measure.py   a process that measures, here or by the workers of a device far away
    tuner.py     `tune`: the kernels of a step that have a choice (`schedule.knobs`), by turns, and the result

What was measured `kernels.choices` keeps, which kernels ask. TVM's MetaSchedule searches by `relax.tune`.
"""

from __future__ import annotations

from typing import Any

from ..tvm_import import with_compiler


def __getattr__(name: str) -> Any:
    """A name of a file that needs TVM's compiler, which is imported now."""
    if name in ("Tuning", "tune"):
        return getattr(with_compiler("tuning.tuner"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
