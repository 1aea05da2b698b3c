"""A process that answers calls over a pipe. What crashes it or takes too long costs a call: the next starts another."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

Answer = dict[str, Any]
"""By name what a call gives, or its `error`."""


class Process:
    """A process; the call of `first` starts it.

    Attributes:
        limit: the seconds that a call may take.
    """

    limit: float = 60.0

    def __init__(self, command: Sequence[str]) -> None:
        """`command`: what is started, with the number of a pipe behind it, on which it calls `serve`."""
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def first(self, name: str, *arguments: Any) -> Answer:
        """The answer to a call that any process which takes this one's place gets first."""
        self._first = (name, *arguments)
        return self.asked(*self._first)

    def asked(self, name: str, *arguments: Any) -> Answer:
        """The answer to the call of a method; an error where the process ends or takes too long, and is then ended."""
        if self._process is None:
            self._pipe, other = Pipe()
            with other:
                self._process = subprocess.Popen(
                    [*self._command, str(other.fileno())], pass_fds=[other.fileno()], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            if name != self._first[0]:
                self.asked(*self._first)
        why = f"it took more than {self.limit:.0f} s"
        try:
            self._pipe.send((name, *arguments))
            if self._pipe.poll(self.limit):
                return dict(self._pipe.recv())
        except (EOFError, OSError):
            why = "it ended the process"
        except KeyboardInterrupt:  # whose answer is still to come
            self.close()
            raise
        self.close()
        return {"error": why}

    def close(self) -> None:
        """Ends the process and all that it has started."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._pipe.close()


def answer(ask: Callable[..., Answer], *arguments: Any) -> Answer:
    """An answer, or the last line of why there is none."""
    try:
        return ask(*arguments)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        return {"error": (str(error).strip() or type(error).__name__).splitlines()[-1]}


def serve(pipe: int, answering: Any) -> None:
    """Answers calls of an object's methods, which come over the pipe of a number, until the other end closes."""
    with contextlib.suppress(EOFError), Connection(pipe) as calls:
        while True:
            name, *arguments = calls.recv()
            calls.send(answer(getattr(answering, name), *arguments))
