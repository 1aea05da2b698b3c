"""Messages about compiling: one line for each plan, a hint where shapes vary, and a progress bar where it takes long.

Lines go to Python's logger "dlsys": `logging.basicConfig(level=logging.INFO)` shows them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Sequence

from tqdm import tqdm

from ..graph import Shape
from ..system import free_at_fork

LOG: logging.Logger = logging.getLogger("dlsys")
MANY = 5  # shapes of one graph: then a hint says that padding would compile less
MOST_NAMED = 4  # values named in a line
PATIENCE = 3.0  # seconds of compiling before a terminal gets a progress bar


class Bar(tqdm):
    """A progress bar with a lock that is free in forked processes, unlike that of all bars of tqdm."""


Bar.set_lock(free_at_fork(threading.RLock()))


def bar(total: int) -> Bar:
    """A progress bar of so many kernels, on a terminal alone, and only where they take longer than `PATIENCE`."""
    return Bar(
        total=total, desc="compiling kernels", unit="kernel", delay=PATIENCE, disable=None, leave=False, file=sys.stderr
    )


def tell_compiled(
    results: Sequence[str], feeds: Sequence[tuple[str, Shape]], count: int, made: int, seconds: float
) -> None:
    """Logs that the kernels of a plan are ready. `results`: names; `feeds`: names and shapes; `count`: of its kernels;
    `made`: how many of them were compiled, and neither in the process nor on disk."""
    if LOG.isEnabledFor(logging.INFO):
        fed = _some(f"{name} {shape}" for name, shape in feeds)
        told = "kernel" if count == 1 else "kernels"
        LOG.info("%s for %s: %d %s, %d compiled, %.2f s", _some(results), fed, count, told, made, seconds)


def tell_of_shapes(count: int, what: str) -> None:
    """Logs the hint when the `MANY`th set of shapes of one graph is compiled."""
    if count == MANY:
        told = "%s was compiled for %d sets of shapes, each takes time and memory: pad to buckets (docs/shapes.md)"
        LOG.warning(told, what, count)


def _some(names: Iterable[str]) -> str:
    found = list(names)
    rest = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "") or "nothing"
