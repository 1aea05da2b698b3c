"""Measurements in a process of their own: what crashes it or takes too long is lost, and the process replaced."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import DlsysError
from ..schedule.knobs import Knobs
from .tasks import Task

LOCAL, FAR = ((sys.executable, "-m", f"{__package__}.{name}") for name in ("worker", "far"))
LIMIT = 60.0  # seconds that a batch may take to compile, or one choice to be measured


@dataclass(frozen=True)
class Measured:
    """The result of measuring a choice.

    Attributes:
        seconds: of a call; infinite where there is none.
        rule: of a call by the rule's own choice, measured in turn.
        gain: how many times as fast it is, of a comparison; else 0.
        error: why there is no measurement.
    """

    seconds: float
    rule: float = math.inf
    gain: float = 0.0
    error: str = ""

    @property
    def ratio(self) -> float:
        """Its time over the rule's."""
        return self.seconds / self.rule if self.seconds < math.inf else math.inf


class Measurer(Protocol):
    """A measurer of choices: a process, a device far away, a test's function."""

    def load(self, task: Task, step_bytes: int) -> float:
        """Makes a task the one that is measured; returns the seconds of a call by its rule."""

    def measure(self, choices: Sequence[Knobs], best: float) -> list[Measured]:
        """Measures choices of the task; one that takes thrice as long as `best` seconds is given up early."""

    def compare(self, knobs: Knobs) -> Measured:
        """Measures a choice and the rule's in turn, for long."""

    def close(self) -> None:
        """Ends it."""


class Worker:
    """Measures in a process on this machine, see `worker`; or by one, see `far`."""

    def __init__(self, command: Sequence[str] = LOCAL) -> None:
        """`command`: what is started; it talks as `worker` does."""
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._loaded: dict[str, Any] = {}
        self._text = ""

    def load(self, task: Task, step_bytes: int) -> float:
        """See `Measurer`. Raises DlsysError for a kernel that cannot be measured at all."""
        self._loaded = {**task.request, "bytes": step_bytes}
        return self._begin()

    def measure(self, choices: Sequence[Knobs], best: float) -> list[Measured]:
        """See `Measurer`."""
        found, size = list[Measured](), len(choices)
        while len(found) < len(choices):
            batch = choices[len(found) : len(found) + size]
            told = self._ask({"try": [dict(knobs) for knobs in batch], "best": best})
            if "compiled" in told:
                for _ in batch:
                    found.append(_measured(self._answer()))
                    if self._process is None:
                        break
            elif len(batch) > 1:  # one of them ends the compiler: from here on one by one
                size = 1
            else:
                found.append(_measured(told))
        return found

    def compare(self, knobs: Knobs) -> Measured:
        """See `Measurer`."""
        return _measured(self._ask({"compare": dict(knobs)}))

    def close(self) -> None:
        """Ends the process and all that it has started."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _begin(self) -> float:
        """Starts the process if there is none and loads the kernel; returns the seconds of our rule's. Raises
        DlsysError."""
        if self._process is None:
            self._text = ""
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                start_new_session=True,
            )  # fmt: skip
            os.set_blocking(self._process.stdout.fileno(), False)  # type: ignore[union-attr]
        told = self._send(self._loaded)
        if "rule" not in told:
            raise DlsysError(f"tune: a kernel cannot be measured: {told['error']}")
        return float(told["rule"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._begin()
        return self._send(request)

    def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of the process to a request; an error of a process that has ended."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            return self._lost("it ended the process")
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The next line; an error where the process ends or takes too long, and is then ended."""
        assert self._process is not None and self._process.stdout is not None
        end, stream = time.monotonic() + LIMIT, self._process.stdout.fileno()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(stream, selectors.EVENT_READ)
                while "\n" not in self._text:
                    if not selector.select(max(end - time.monotonic(), 0)):
                        return self._lost(f"it took more than {LIMIT:.0f} s")
                    if not (part := os.read(stream, 1 << 16)):
                        return self._lost("it ended the process")
                    self._text += part.decode()
        except KeyboardInterrupt:  # whose answer is still to come
            self.close()
            raise
        line, _, self._text = self._text.partition("\n")
        return dict(json.loads(line))

    def _lost(self, why: str) -> dict[str, Any]:
        self.close()
        return {"error": why}


def _measured(told: dict[str, Any]) -> Measured:
    if "seconds" not in told:
        return Measured(math.inf, error=str(told["error"]))
    return Measured(told["seconds"], told["rule"], told.get("gain", 0.0))
