"""A program's calls on a GPU, replayed as one CUDA graph where they are made again with the same arrays."""

from __future__ import annotations

from typing import Any

from ..devices import Graph
from ..errors import DeviceError
from ..system import warn
from .runner import Runner

MOST = 8  # sets of given arrays whose graphs are kept: values that are fed lie in two places in turn
NEW, SEEN = -1, 0  # given arrays without a graph, whose numbers begin with 1


class ReplayWarning(UserWarning):
    """CUDA did not record a program's launches: they are asked for one by one."""


class Replay(Runner):
    """A runner whose calls are made one by one with given arrays that are new to it, recorded the second time, and
    replayed from then on. Where messages are among them, all ranks do the same of these in a run, as NCCL asks for."""

    def __init__(self, calls: Any, functions: Any, count: int, arena: Any, messages: Any = None) -> None:
        super().__init__(calls, functions, count, arena, messages)
        self._device = arena.device
        self._graphs: dict[bytes, tuple[int, Graph | None]] = {}  # by where the given arrays lie, the latest one last
        self._recordings = 0
        self._records = len(self) > 1

    def run(self) -> None:
        """Make all calls. Raises DeviceError."""
        graph = None
        if self._records:
            given = self.given.tobytes()
            number, graph = self._graphs.pop(given, (NEW, None))
            alike = self._agrees(number)
            if alike and number == SEEN:
                number, graph = self._recorded()
            self._graphs[given] = max(number, SEEN), graph
            if len(self._graphs) > MOST:
                del self._graphs[next(iter(self._graphs))]
            graph = graph if alike else None
        if graph is None:
            super().run()
        else:
            graph.launch()

    def _agrees(self, number: int) -> bool:
        """Whether all ranks give the same number."""
        return self.messages is None or self.messages.agrees(number)

    def _recorded(self) -> tuple[int, Graph | None]:
        """The number and the graph of the calls; None where CUDA does not record them, which is told once."""
        made, told = None, "another process cannot record them"
        try:
            made = Graph(self._device, super().run)
        except DeviceError as error:
            told = str(error)
        if self._agrees(int(made is not None)) and made is not None:
            self._recordings += 1
            return self._recordings, made
        self._records = False
        warn(f"the launches are asked for one by one: {told}", ReplayWarning)
        return SEEN, None
