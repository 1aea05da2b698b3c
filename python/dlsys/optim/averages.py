"""The mean of gradients over processes, which an extension registers: `dlsys.distributed`. Without it there is one
process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..graph import Node


def _same(optimizer: Any, gradients: Sequence[Node]) -> list[Node]:
    return list(gradients)


class Averages:
    """The registered functions that average gradients.

    Attributes:
        mean: (optimizer, gradients) -> of each gradient the node of its mean.
        count: () -> of how many processes.
    """

    def __init__(self) -> None:
        self.mean: Callable[[Any, Sequence[Node]], list[Node]] = _same
        self.count: Callable[[], int] = lambda: 1


averages: Averages = Averages()
