"""Measurements in a process of their own: what crashes it or takes too long is lost, and the process replaced."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
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
        error: why there is no measurement.
    """

    seconds: float = math.inf
    rule: float = 1.0
    error: str = ""

    @property
    def ratio(self) -> float:
        """Its time over the rule's."""
        return self.seconds / self.rule


class Measurer(Protocol):
    """A measurer of choices: a process, a device far away, a test's function."""

    def load(self, task: Task, step_bytes: int) -> float:
        """Makes a task the one that is measured; returns the seconds of a call by its rule."""

    def measure(self, choices: Sequence[Knobs], best: float = math.inf) -> list[Measured]:
        """Measures choices of the task, each in turn with the rule's. One whose time over the rule's is thrice the
        `best` is given up early; one near it is measured for long, as all are without a best."""

    def close(self) -> None:
        """Ends it."""


class Worker:
    """Measures in a process on this machine, see `worker`; or by one, see `far`."""

    def __init__(self, command: Sequence[str] = LOCAL) -> None:
        """`command`: what is started, with the number of a pipe behind it; it talks as `worker` does."""
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def load(self, task: Task, step_bytes: int) -> float:
        """See `Measurer`. Raises DlsysError for a kernel that cannot be measured at all."""
        self._task, self._step_bytes = task, step_bytes
        if self._process is None:
            self._pipe, other = connection.Pipe()
            with other:
                self._process = subprocess.Popen(
                    [*self._command, str(other.fileno())], pass_fds=[other.fileno()], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
        told = self._ask({**task.request, "bytes": step_bytes})
        if "rule" not in told:
            raise DlsysError(f"tune: a kernel cannot be measured: {told['error']}")
        return float(told["rule"])

    def measure(self, choices: Sequence[Knobs], best: float = math.inf) -> list[Measured]:
        """See `Measurer`."""
        found, size = list[Measured](), len(choices)
        while len(found) < len(choices):
            batch = choices[len(found) : len(found) + size]
            if self._process is None:
                self.load(self._task, self._step_bytes)
            told = self._ask({"try": [dict(knobs) for knobs in batch], "best": best})
            if "error" in told and len(batch) > 1:  # one of them ends the compiler: from here on one by one
                size = 1
                continue
            for _ in batch:
                found.append(Measured(**(told if "error" in told else self._answer())))
                if self._process is None:
                    break
        return found

    def close(self) -> None:
        """Ends the process and all that it has started."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._pipe.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(OSError):  # it has ended, which the answer tells
            self._pipe.send(request)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The next answer; an error where the process ends or takes too long, and is then ended."""
        why = f"it took more than {LIMIT:.0f} s"
        try:
            if self._pipe.poll(LIMIT):
                return dict(self._pipe.recv())
        except (EOFError, OSError):
            why = "it ended the process"
        except KeyboardInterrupt:  # whose answer is still to come
            self.close()
            raise
        self.close()
        return {"error": why}
