"""A process that compiles and measures choices for a kernel, so that a crash or a loop without end costs one of them.

It is started as `python -m dlsys.tuning.worker`, reads requests as lines of JSON and answers with lines of JSON:

    {"load": loops, "target": ..., "precision": ..., "bytes": of a step}   -> {"rule": seconds}
    {"try": [knobs, ...], "best": seconds}                                 -> for each {"seconds", "rule"} or {"error"}
    {"compare": knobs}                                                     -> {"seconds", "rule", "gain"} or {"error"}
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
COMPARED, LONG = 2e-3, 15  # the same when the best is compared with the rule's
SLOW = 3  # times as long as the best: given up after two turns
AGAIN, NEAR = 3, 1.03  # so many times as many turns for what takes no more than so many times as long as the best
MOST_BYTES, MOST_COPIES = 64 * 2**20, 16  # of copies of a kernel's arrays, which the rest of a step drives from caches
STEADY = 1.25  # times as long as at first the rule may take: beyond, other programs were running
AGREE = 1e-3  # the largest difference from the rule's result, relative to its largest element


class Bench:
    """One kernel: its rule's code and arrays, and how choices are measured beside it."""

    def __init__(self, loops: str, target: Mapping[str, Any], precision: str, step_bytes: int) -> None:
        """`loops`: a module of the plain function, as TVM's JSON; `step_bytes`: of all arrays of a step."""
        self.function: Any = tvm.ir.load_json(loops)[MAIN]
        self.target: Target = Target(dict(target))
        self.precision = precision
        nbytes = sum(math.prod(map(int, v.shape)) * np.dtype(str(v.dtype)).itemsize for v in self.function.params)
        copies = min(max(1, math.ceil(min(step_bytes, MOST_BYTES) / max(nbytes, 1))), MOST_COPIES)
        self.copies: list[list[Any]] = [_arrays(self.function) for _ in range(copies)]
        self.rule: Any = self.built(None)
        self.wanted: list[np.ndarray] = self.results(self.rule)
        self.calls: int = timing.calls_lasting(self.runner(self.rule), MEASURED)
        self.seconds: float = min(timing.seconds(self.runner(self.rule), self.calls) for _ in range(ROUNDS))

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
        yield {"compiled": len(kernels)}
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
        """The seconds of a call, and of the rule's in turn: the least of some turns. `best`: seconds of the fastest so
        far, beside those of the rule when it was loaded."""
        if not self.agrees(kernel):
            return {"error": "its results are not the rule's"}
        run, rule = self.runner(kernel), self.runner(self.rule)
        once = timing.seconds(run)
        calls = max(1, math.ceil(MEASURED / max(once, 1e-7)))
        own, others = list[float](), list[float]()
        for turn in range(AGAIN * ROUNDS):  # more of what may be the best: the least of noisy times flatters
            others.append(timing.seconds(rule, self.calls))
            own.append(timing.seconds(run, calls))
            slow = turn > 0 and min(own) > SLOW * best
            if slow or (turn >= ROUNDS and min(own) / min(others) > NEAR * best / self.seconds):
                break
        return {"seconds": min(own), "rule": min(*others, STEADY * self.seconds)}

    def compared(self, knobs: Knobs) -> dict[str, Any]:
        """The same for long, and the gain: the lesser of those by medians and by the least."""
        kernel = self.built(knobs)
        if not self.agrees(kernel):
            return {"error": "its results are not the rule's"}
        runners = {"own": self.runner(kernel), "rule": self.runner(self.rule)}
        found = timing.in_turn(runners, LONG, COMPARED)
        own, rule = found["own"], found["rule"]
        gain = min(rule.median / own.median, rule.best / own.best)
        return {"seconds": own.best, "rule": rule.best, "gain": gain}


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


def serve(lines: Any, answer: Any, make: Callable[[Mapping[str, Any]], Any] = bench_of) -> None:
    """Answers requests until there are no more. `make`: of a kernel that is to be loaded makes what measures as a Bench
    does."""
    bench: Any = None
    for line in lines:
        request = json.loads(line)
        if "load" in request:
            bench = make(request)
            answer(bench.loaded())
        elif "compare" in request:
            answer(bench.compared(request["compare"]))
        else:
            for told in bench.tried(request["try"], request["best"]):
                answer(told)


def main(make: Callable[[Mapping[str, Any]], Any] = bench_of) -> None:
    """Serves on the standard streams; what others print there goes to the error stream."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        out.write(json.dumps(content) + "\n")
        out.flush()

    serve(sys.stdin, answer, make)


if __name__ == "__main__":
    main()
