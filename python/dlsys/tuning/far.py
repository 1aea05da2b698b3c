"""A process as `worker`, which compiles choices here and has them measured by the workers of a device far away.

It is started as `python -m dlsys.tuning.far HOST:PORT/NAME`. Each measurement has a session of its own with whichever
worker is free, so all of them share the work; where one ends, its measurement is lost, and an error names it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from ..kernels import disk
from ..rpc.client import Remote
from ..rpc.server import library
from ..schedule.knobs import Knobs
from ..system import available_cores
from .worker import MAIN, Bench, main, module_of

MEASURE = "dlsys.tuning.measure"
SECONDS = 25.0  # that a measurement may take; with the wait for a worker less than a `Worker`'s
RULE, CHOICE = "rule.so", "choice.so"


class Sent(Bench):
    """On the device: measures kernels that were compiled elsewhere and sent."""

    def built(self, knobs: Knobs | None) -> Any:
        """The kernel of the rule's own choice for None, else of the choice that was sent."""
        return library(RULE if knobs is None else CHOICE)[MAIN]


def _measured(text: str) -> str:
    """On the device: answers one request, as a `worker` does."""
    request = json.loads(text)
    bench = Sent(request["load"], request["target"], request["precision"], request["bytes"])
    if "compare" in request:
        return json.dumps(bench.compared({}))
    best = request.get("best")
    return json.dumps({"rule": bench.seconds} if best is None else bench.measured(bench.built({}), best))


SERVED = {MEASURE: _measured}


class Far:
    """One kernel: its rule's library, and how choices are measured beside it."""

    def __init__(self, device: Remote, task: dict[str, Any]) -> None:
        self._device, self._task = device, task
        self._function, self._target = tvm.ir.load_json(task["load"])[MAIN], Target(task["target"])
        self._rule = self._compiled(None)

    def _compiled(self, knobs: Knobs | None) -> bytes:
        """The library of the kernel by some knobs; by the rule's own for None."""
        module = module_of(self._function, self._target, self._task["precision"], knobs)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, CHOICE)
            disk.link([disk.written(module, path.with_suffix(".o"))], path)
            return path.read_bytes()

    def asked(self, library: Callable[[], bytes | None], **request: Any) -> dict[str, Any]:
        """The answer of a worker that is free, for the library of a choice or for the rule alone; or an error."""
        try:
            choice = library()
            session = self._device.session(SECONDS)
            session.put(self._rule, RULE)
            if choice:
                session.put(choice, CHOICE)
            return dict(json.loads(session.asked(MEASURE, json.dumps({**self._task, **request}))))
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            return {"error": (str(error).strip() or type(error).__name__).splitlines()[-1]}

    def compared(self, knobs: Knobs) -> dict[str, Any]:
        """See `Bench.compared`."""
        return self.asked(lambda: self._compiled(knobs), compare=True)

    def measured(self, choices: Sequence[Knobs], best: float) -> Iterator[Callable[[], dict[str, Any]]]:
        """Waits until all choices are compiled, while those that are have been sent to all workers; then for each the
        function that waits for its measurement."""
        with ThreadPoolExecutor(available_cores()) as cores, ThreadPoolExecutor(self._device.workers() or 1) as workers:
            built = [cores.submit(self._compiled, knobs) for knobs in choices]
            found = [workers.submit(self.asked, library.result, best=best) for library in built]
            wait(built)
            yield from [each.result for each in found]


def serve(device: Remote, lines: Any, answer: Any) -> None:
    """Answers requests as `worker.serve` does."""
    far: Far | None = None
    for line in lines:
        request = json.loads(line)
        if "load" in request:
            far = Far(device, request)
            answer(far.asked(lambda: None))
            continue
        assert far is not None
        if "compare" in request:
            answer(far.compared(request["compare"]))
            continue
        for at, result in enumerate(far.measured(request["try"], request["best"])):
            if at == 0:
                answer({"compiled": len(request["try"])})
            answer(result())


if __name__ == "__main__":
    main(lambda lines, answer: serve(Remote(sys.argv[1]), lines, answer))
