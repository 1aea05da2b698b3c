"""The mean of gradients over processes, which an extension registers: `dlsys.distributed`. Without it there is one
process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph import Node


@dataclass
class Averages:
    """The registered functions.

    Attributes:
        mean: (optimizer, gradients) -> of each gradient the node of its mean.
        count: () -> of how many processes.
    """

    mean: Callable[[Any, Sequence[Node]], list[Node]] = lambda optimizer, gradients: list(gradients)
    count: Callable[[], int] = lambda: 1


averages: Averages = Averages()
