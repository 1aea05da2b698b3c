"""A process as `worker`, which compiles choices here and has them measured by the workers of a device far away.

It is started as `python -m dlsys.tuning.far HOST:PORT/NAME PIPE`.
Each measurement has a session of its own with whichever worker is free, so all of them share the work; where one ends,
its measurement is lost, and an error names it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tvm

from ..errors import DeviceError
from ..kernels import disk
from ..rpc.client import Remote
from ..rpc.server import library
from ..schedule.knobs import Knobs
from ..system import available_cores
from .worker import MAIN, Bench, module_of, serve

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
    bench, best = Sent(request["load"], request["target"], request["precision"], request["bytes"]), request.get("best")
    return json.dumps(bench.loaded() if best is None else bench.measured(bench.built({}), best))


SERVED = {MEASURE: _measured}


class Far:
    """One kernel, measured as by a `Bench`: its rule's library, which workers get with that of a choice."""

    def __init__(self, device: Remote, task: Mapping[str, Any]) -> None:
        self._device, self._task = device, task
        self._function, self._target = tvm.ir.load_json(task["load"])[MAIN], tvm.ir.load_json(task["target"])
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

    def loaded(self) -> dict[str, Any]:
        """See `Bench`; or an error."""
        return self.asked(lambda: None)

    def tried(self, choices: Sequence[Knobs], best: float) -> Iterator[dict[str, Any]]:
        """See `Bench`. Those that are compiled are measured meanwhile, by all workers."""
        count = 1
        with contextlib.suppress(DeviceError):  # of a tracker that has ended, as each measurement tells
            count = max(self._device.workers(), 1)
        with ThreadPoolExecutor(available_cores()) as cores, ThreadPoolExecutor(count) as workers:
            built = [cores.submit(self._compiled, knobs) for knobs in choices]
            found = [workers.submit(self.asked, library.result, best=best) for library in built]
            wait(built)
            yield {}
            for each in found:
                yield each.result()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[2])), partial(Far, Remote(sys.argv[1])))
