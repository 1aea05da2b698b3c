"""Changes of state that wait: cells hold the nodes of their new values.

They happen in the order of the calls, whether or not anybody looks: each reads what the one before left. A batch norm's
statistics cost no pass of their own when they are computed with the network's output, so they wait for it, or until the
state is read or saved, or many changes of it wait.
"""

from __future__ import annotations

from ..graph import Node
from .cell import Cell

MOST = 4  # changes of a cell that wait; each holds the inputs of its network

_waiting: list[tuple[Cell, Node]] = []


def add(cell: Cell, value: Node) -> None:
    """Let the cell hold the node of its new value."""
    if cell.waiting >= MOST:
        cell.array()  # computes all that wait
    cell.content = value
    cell.waiting += 1
    _waiting.append((cell, value))


def waiting() -> list[Node]:
    """The changes that wait."""
    return [value for _, value in _waiting if value.kept is None]


def forget() -> None:
    """Leave the changes to those who read the cells: one of them cannot be computed."""
    _waiting.clear()


def settle() -> None:
    """Give cells the arrays of the changes that were computed."""
    for cell, value in _waiting:
        if value.kept is not None and cell.content is value:
            cell.give(value.kept)
    _waiting[:] = [(cell, value) for cell, value in _waiting if value.kept is None]
