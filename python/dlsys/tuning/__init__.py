"""Search over the choices of our own rules: measured, learned from, stored, and used where they are faster.

    tasks.py     which kernels of a step have a choice, and its space (`schedule.knobs`)
    model.py     learned models of how long a choice takes
    search.py    what to try next: annealing over the model's predictions, then a descent
    measure.py   measurements, in the process of `worker.py`
    tuner.py     `tune`: all of these by turns, and the result

What was measured is kept by `kernels.choices`, which kernels ask. The rules' own choice is always one of those that are
compared: no result is slower than the rules, as measured. TVM's MetaSchedule searches for its own schedules, by
`relax.tune`.
"""

from __future__ import annotations

from typing import Any

from ..tvm_import import with_compiler


def __getattr__(name: str) -> Any:
    """A name of a file that needs TVM's compiler, which is imported now."""
    if name in ("Tuning", "tune"):
        return getattr(with_compiler("tuning.tuner"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
