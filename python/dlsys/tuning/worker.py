"""A process that compiles and measures choices for a kernel, so that a crash or a loop without end costs one of them.

It is started as `python -m dlsys.tuning.worker PIPE`, with the number of an open pipe (`multiprocessing.connection`),
over which it takes requests and gives answers:

    {"load": loops, "target": ..., "precision": ..., "bytes": of a step} -> {"rule": seconds}
    {"try": [knobs, ...], "best": ratio}    -> {}, when all are compiled; for each {"seconds", "rule"} or {"error"}
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from .. import timing
from ..devices import empty
from ..kernels.build import UNCHECKED
from ..schedule import apply
from ..schedule.knobs import Knobs, wanting
from ..schedule.machine_code import compiled
from ..system import available_cores

MAIN = "main"
MEASURED, ROUNDS = 1e-3, 5  # seconds of a turn, and turns of a choice, each behind one of the rule's
LONG = 20  # turns of what may be the best
SLOW = 3  # times as long as the best: given up after two turns
NEAR = 1.03  # times as long as the best may take what has more turns
MOST_BYTES, MOST_COPIES = 64 * 2**20, 16  # of copies of a kernel's arrays, which the rest of a step drives from caches
AGREE = 1e-3  # the largest difference from the rule's result, relative to its largest element


class Bench:
    """One kernel: its rule's code and arrays, and how choices are measured beside it."""

    def __init__(self, loops: str, target: str, precision: str, step_bytes: int) -> None:
        """`loops`: a module of the plain function, and the target, as TVM's JSON; `step_bytes`: of all arrays of a
        step."""
        self.function, self.precision = tvm.ir.load_json(loops)[MAIN], precision
        self.target = tvm.ir.load_json(target)
        first = _arrays(self.function)
        nbytes = sum(np.from_dlpack(array).nbytes for array in first)
        copies = min(max(1, math.ceil(min(step_bytes, MOST_BYTES) / max(nbytes, 1))), MOST_COPIES)
        self.copies = [first, *(_arrays(self.function) for _ in range(copies - 1))]
        self.rule = self.built(None)
        self.wanted = self.results(self.rule)
        self.calls = timing.calls_lasting(self.runner(self.rule), MEASURED)
        self.seconds = min(timing.seconds(self.runner(self.rule), self.calls) for _ in range(ROUNDS))

    def built(self, knobs: Knobs | None) -> Any:
        """The compiled function by some knobs; by the rule's own for None."""
        return module_of(self.function, self.target, self.precision, knobs)[MAIN]

    def built_or_why(self, knobs: Knobs) -> Any:
        """`built`, or why that fails."""
        try:
            return self.built(knobs)
        except (RuntimeError, TypeError, ValueError) as error:
            return (str(error).strip() or type(error).__name__).splitlines()[-1]

    def loaded(self) -> dict[str, Any]:
        """The answer to a request that has loaded it."""
        return {"rule": self.seconds}

    def tried(self, choices: Sequence[Knobs], best: float) -> Iterator[dict[str, Any]]:
        """An answer when all choices are compiled, and then that of each."""
        with ThreadPoolExecutor(available_cores()) as pool:
            kernels = list(pool.map(self.built_or_why, choices))
        yield {}
        for kernel in kernels:
            yield {"error": kernel} if isinstance(kernel, str) else self.measured(kernel, best)

    def runner(self, kernel: Any) -> timing.Runner:
        """A runner that calls a kernel with one copy of the arrays after another."""

        def run(calls: int) -> None:
            for _, arrays in zip(range(calls), itertools.cycle(self.copies), strict=False):
                kernel(*arrays)

        return run

    def results(self, kernel: Any) -> list[np.ndarray]:
        """All arrays after a call with fresh ones."""
        arrays = _arrays(self.function)
        kernel(*arrays)
        return [np.array(np.from_dlpack(array)) for array in arrays]

    def agrees(self, kernel: Any) -> bool:
        """Whether a kernel's results are the rule's, up to rounding."""
        pairs = zip(self.results(kernel), self.wanted, strict=True)
        return all(
            np.allclose(one, other, atol=AGREE * np.abs(other).max(initial=0), rtol=0, equal_nan=True)
            for one, other in pairs
        )

    def measured(self, kernel: Any, best: float) -> dict[str, Any]:
        """The seconds of a call, and of the rule's in turn: by the least or by the medians of some turns, whichever
        flatters less. `best`: see `Measurer.measure`."""
        if not self.agrees(kernel):
            return {"error": "its results are not the rule's"}
        run, rule = self.runner(kernel), self.runner(self.rule)
        calls = max(1, math.ceil(MEASURED / max(timing.seconds(run), 1e-7)))
        own, others = list[float](), list[float]()
        for turn in range(LONG):
            others.append(timing.seconds(rule, self.calls))
            own.append(timing.seconds(run, calls))
            ratio = min(own) / min(others)
            if (turn > 0 and ratio > SLOW * best) or (turn >= ROUNDS and ratio > NEAR * best):
                break
        pairs = [(kind(own), kind(others)) for kind in (min, statistics.median)]
        seconds, beside = max(pairs, key=lambda pair: pair[0] / pair[1])
        return {"seconds": seconds, "rule": beside}


def module_of(function: tirx.PrimFunc, target: Target, precision: str, knobs: Knobs | None) -> tvm.runtime.Module:
    """The module whose function MAIN is the compiled function by some knobs; by the rule's own for None."""
    made, _ = apply(function, target, precision, wanting(knobs))
    with tvm.transform.PassContext(config=UNCHECKED):
        return compiled({MAIN: made.with_attr("global_symbol", MAIN)}, target)


def _arrays(function: tirx.PrimFunc) -> list[Any]:
    """Arguments: floats near 1, of which no exponential is infinite, and integers 0."""
    random, made = np.random.default_rng(0), []
    for value in function.params:
        shape, dtype = tuple(map(int, value.shape)), str(value.dtype)
        array = empty(shape, dtype)
        numbers = random.uniform(0.5, 1.5, shape) if dtype.startswith("float") else np.zeros(shape)
        array.copyfrom(numbers.astype(dtype))
        made.append(array.tensor)
    return made


def bench_of(task: Mapping[str, Any]) -> Bench:
    """The bench of a kernel that is to be loaded."""
    return Bench(task["load"], task["target"], task["precision"], task["bytes"])


def serve(pipe: Any, make: Callable[[Mapping[str, Any]], Any] = bench_of) -> None:
    """Answers requests until the other end closes. `make`: of a kernel that is to be loaded makes what measures as a
    Bench does."""
    bench: Any = None
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        if "load" in request:
            bench = make(request)
            pipe.send(bench.loaded())
            continue
        for told in bench.tried(request["try"], request["best"]):
            pipe.send(told)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
