"""The functions that a plan's table calls for its messages: start, test and wait, each a call like a kernel's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..devices import Array, Context
from ..devices.nccl import connect
from ..watching import Board, as_text
from .collectives import Group, all_gather, broadcast
from .communicators import Request


@dataclass(frozen=True)
class Message:
    """A collective of a plan: its kind and operation, the arrays, and what it carries, for people."""

    kind: str
    operation: str
    send: np.ndarray | Array
    receive: np.ndarray | Array
    told: str


class Exchange:
    """The messages of one plan.

    Attributes:
        seconds: for how long each message was waited for in the latest run.
        error: what a function has raised: the table's runner knows only that one of its calls has failed.
    """

    def __init__(self, group: Group, ctx: Context) -> None:
        own, gpu = group.communicator, ctx.kind == "cuda"
        by = connect(ctx, own.rank, own.size, all_gather, broadcast) if gpu else own
        self._begin: Callable[..., Request] = by.start
        self._board = Board() if gpu else own.board  # no host waits for a GPU's messages
        self._open: dict[int, Request] = {}
        self.seconds: dict[int, float] = {}
        self.error: BaseException | None = None

    def start(self, number: int, message: Message) -> Callable[..., None]:
        """A function that begins a message."""
        begin, board, text = self._begin, self._board, as_text(f"behind the start of {message.told}")
        arguments = message.kind, message.send, message.receive, message.operation

        def start(*_: object) -> None:
            board.begins()
            board.say(text)
            self._open[number] = begin(*arguments)

        return self._guarded(start)

    def test(self, told: str) -> Callable[..., None]:
        """A function that lets the open messages make progress, behind the kernel that `told` names."""
        board, waiting, text = self._board, self._open, as_text(f"behind kernel {told}")

        def test(*_: object) -> None:
            board.say(text)
            for request in waiting.values():
                if not request.test():
                    break

        return self._guarded(test)

    def wait(self, number: int, message: Message) -> Callable[..., None]:
        """A function that returns when a message has arrived."""
        board, waiting, text = self._board, self._open, as_text(f"at {message.told}")

        def wait(*_: object) -> None:
            board.say(text)
            board.waits()
            began = time.perf_counter()
            waiting.pop(number).wait()
            self.seconds[number] = time.perf_counter() - began
            board.waits(False)

        return self._guarded(wait)

    def agrees(self, number: int) -> bool:
        """Whether all ranks give the same number."""
        return int(np.ptp(all_gather(number))) == 0

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        def guarded(*arguments: object) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.error = error
                raise

        return guarded
