"""Measurements in a process of their own: what crashes it or takes too long is lost, and the process replaced.

`python -m dlsys.tuning.measure PIPE` answers the calls of a Worker.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from .. import timing
from ..devices import array
from ..errors import DlsysError
from ..kernels.build import UNCHECKED
from ..processes import Answer, Process, serve
from ..schedule import apply
from ..schedule.knobs import Knobs, wanting
from ..schedule.machine_code import compiled
from ..system import available_cores

LOCAL = (sys.executable, "-m", "dlsys.tuning.measure")
MEASURED = 1e-3  # seconds of a turn
MOST_BYTES, MOST_COPIES = 64 * 2**20, 16  # of copies of a kernel's arrays, which the rest of a step drives from caches
AGREE = 1e-3  # the largest difference from the rule's result, relative to its largest element
MAIN = "main"
Request = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """The seconds of a call by a choice, infinite where there are none, and by the rule's own choice, measured in turn;
    or why there is no measurement."""

    seconds: float = math.inf
    rule: float = 1.0
    error: str = ""

    @property
    def ratio(self) -> float:
        """Its time over the rule's."""
        return self.seconds / self.rule


class Worker(Process):
    """Measures choices of one kernel after another in a process."""

    def load(self, request: Request) -> float:
        """Makes a kernel the one that is measured, by the request that loads it; returns the seconds of a call by its
        rule. Raises DlsysError for one that cannot be measured at all."""
        told = self.first("load", request)
        if "rule" not in told:
            raise DlsysError(f"tune: a kernel cannot be measured: {told['error']}")
        return float(told["rule"])

    def measure(self, choices: Sequence[Knobs], best: float = math.inf) -> list[Measured]:
        """Measures choices, each in turn with the rule's. One whose time over the rule's is thrice the `best` is given
        up early; one near it is measured for long, as all are without a best."""
        plain = list(map(dict, choices))
        self.asked("compile", plain, best)  # what ends the process is compiled alone when it is measured
        return [Measured(**self.asked("measure", knobs, best)) for knobs in plain]


def module_of(task: Request, knobs: Knobs | None) -> tvm.runtime.Module:
    """The module whose function MAIN is a kernel by some knobs, by the rule's own for None."""
    target = tvm.ir.load_json(task["target"])
    made, _ = apply(tvm.ir.load_json(task["loops"])[MAIN], target, task["precision"], wanting(knobs))
    with tvm.transform.PassContext(config=UNCHECKED):
        return compiled({MAIN: made.with_attr("global_symbol", MAIN)}, target)


class Bench:
    """One kernel after another: its rule's code and arrays, and how choices are measured beside it."""

    def __init__(self, built: Callable[..., Any] = lambda task, knobs: module_of(task, knobs)[MAIN]) -> None:
        """`built`: returns a kernel's function by some knobs, by the rule's own for None."""
        self._built = built

    def load(self, task: Request) -> Answer:
        """Makes a kernel the one that is measured; the seconds of a call by its rule."""
        self._task, self._kernels = task, dict[str, Future[Any]]()
        self._parameters = tvm.ir.load_json(task["loops"])[MAIN].params
        first = self._arrays()
        nbytes = sum(np.from_dlpack(array).nbytes for array in first)
        copies = min(max(1, math.ceil(min(task["bytes"], MOST_BYTES) / max(nbytes, 1))), MOST_COPIES)
        self._copies = [first, *(self._arrays() for _ in range(copies - 1))]
        self.rule: Any = self._built(task, None)
        self.wanted: list[np.ndarray] = self._results(self.rule)
        return {"rule": timing.in_turn({"rule": self._runner(self.rule)}, 5, MEASURED)["rule"].best}

    def compile(self, choices: Sequence[Knobs], best: float) -> Answer:
        """Compiles choices, on all cores, that are to be measured."""
        with ThreadPoolExecutor(available_cores()) as cores:
            self._kernels = {str(knobs): cores.submit(self._built, self._task, knobs) for knobs in choices}
        return {}

    def measure(self, knobs: Knobs, best: float) -> Answer:
        """See `timed`."""
        if str(knobs) not in self._kernels:
            self.compile([knobs], best)
        return self.timed(self._kernels[str(knobs)].result(), best)

    def timed(self, kernel: Any, best: float) -> Answer:
        """The seconds of a call, and of the rule's in turn. Raises ValueError for other results than the rule's."""
        for one, other in zip(self._results(kernel), self.wanted, strict=True):
            if not np.allclose(one, other, atol=AGREE * np.abs(other).max(initial=0), rtol=0, equal_nan=True):
                raise ValueError("its results are not the rule's")
        seconds, rule = timing.beside(self._runner(kernel), self._runner(self.rule), MEASURED, best)
        return {"seconds": seconds, "rule": rule}

    def _runner(self, kernel: Any) -> timing.Runner:
        """A runner that calls a kernel with one copy of the arrays after another."""

        def run(calls: int) -> None:
            for _, arrays in zip(range(calls), itertools.cycle(self._copies), strict=False):
                kernel(*arrays)

        return run

    def _results(self, kernel: Any) -> list[np.ndarray]:
        """All arrays after a call with fresh ones."""
        arrays = self._arrays()
        kernel(*arrays)
        return [np.array(np.from_dlpack(array)) for array in arrays]

    def _arrays(self) -> list[Any]:
        """Arguments: floats near 1, of which no exponential is infinite, and integers 0."""
        random, types = np.random.default_rng(0), [(tuple(map(int, x.shape)), str(x.dtype)) for x in self._parameters]
        kinds = [(random.uniform(0.5, 1.5, shape) * dtype.startswith("float"), dtype) for shape, dtype in types]
        return [array(value, dtype=dtype).tensor for value, dtype in kinds]


if __name__ == "__main__":
    serve(int(sys.argv[-1]), Bench())
