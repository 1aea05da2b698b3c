"""A program's calls on a GPU, replayed as one CUDA graph where they are made again with the same arrays."""

from __future__ import annotations

from typing import Any

from ..devices import Graph
from ..errors import DeviceError
from ..system import warn
from .runner import Runner

MOST = 8  # sets of given arrays whose graphs are kept: values that are fed lie in two places in turn


class ReplayWarning(UserWarning):
    """CUDA did not record a program's launches: they are asked for one by one."""


class Replay(Runner):
    """A runner whose calls are made one by one with given arrays that are new to it, recorded the second time, and
    replayed from then on."""

    def __init__(self, calls: Any, functions: Any, count: int, arena: Any, messages: Any = None) -> None:
        super().__init__(calls, functions, count, arena, messages)
        self._device = arena.device
        self._graphs: dict[bytes, Graph | None] = {}  # by where the given arrays lie, the latest one last
        self._records = len(self) > 1

    def run(self) -> None:
        """Make all calls. Raises DeviceError."""
        graph = None
        if self._records:
            given = self.given.tobytes()
            known = given in self._graphs
            graph = self._graphs.pop(given, None) or (self._recorded() if known else None)
            self._graphs[given] = graph
            if len(self._graphs) > MOST:
                del self._graphs[next(iter(self._graphs))]
        if graph is None:
            super().run()
        else:
            graph.launch()

    def _recorded(self) -> Graph | None:
        """The graph of the calls; None where CUDA does not record them, which is told once."""
        try:
            return Graph(self._device, super().run)
        except DeviceError as error:
            self._records = False
            warn(f"the launches are asked for one by one: {error}", ReplayWarning)
            return None
