"""Updates of state that wait: they happen in the order of the calls that made them, whether or not anybody looks.

A batch norm in training makes a node that comes with new running statistics. Asked for with the rest of its network
they cost no pass of their own, so they wait for it: until what they come with is computed, or the state is read or
saved, or computed with, or other calls have come behind them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from ..graph import Node
from ..ops import Parameter, of_updates
from ..scopes import scopes

MOST_CALLS = 4  # of networks whose updates wait: each holds its inputs until then
MOST_ALONE = 16  # updates that wait, of functions that no module calls


class _Waiting(threading.local):
    """The nodes with updates that a thread has made and that have not happened, in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.calls = 0  # of networks since the last of them happened
        self.busy = False


_waiting = _Waiting()
_makers: list[Callable[[Sequence[Node]], None]] = []


def note(node: Node) -> None:
    """Lets the updates that come with a node wait."""
    if scopes.module is None and len(_waiting.nodes) >= MOST_ALONE:
        happen(_waiting.nodes)
    _waiting.nodes.append(node)


def another_call() -> None:
    """Says that a network is called: what has waited for several such calls happens."""
    if not _waiting.nodes:
        _waiting.calls = 0
    elif not _waiting.busy:
        _waiting.calls += 1
        if _waiting.calls >= MOST_CALLS:
            happen(_waiting.nodes)


def happened(nodes: Sequence[Node]) -> None:
    """Forgets nodes whose updates were made."""
    if _waiting.nodes:
        made = set(nodes)
        _waiting.nodes = [node for node in _waiting.nodes if node not in made]


def before(order: Sequence[Node]) -> bool:
    """Makes the updates that must come before a graph is computed, given in order: those of calls before its own
    updates, and those of state that it reads. Whether there were any."""
    waiting = _waiting.nodes
    if not waiting or _waiting.busy:
        return False
    inside, newest = set(order), max(node.id for node in order)
    others = [node for node in waiting if node not in inside]
    last = max((node.id for node in waiting if node in inside), default=0)
    first = min((node.id for node in waiting if node in inside), default=newest)

    def is_needed(node: Node) -> bool:
        reads = not inside.isdisjoint(assign.inputs[0] for assign in node.inputs[1:])
        return node.id < last or (reads and node.id < newest)

    needed = [node.id for node in others if is_needed(node)]
    due = [node for node in others if needed and node.id <= needed[-1] and node.id < first]
    if due:
        happen(due)
    return bool(due)


def read(parameter: Parameter) -> None:
    """Makes the updates that wait, if one of them is the parameter's, whose value is about to be read."""
    waiting = _waiting.nodes
    if waiting and not _waiting.busy and any(a.inputs[0] is parameter for n in waiting for a in n.inputs[1:]):
        happen(waiting)


def happen(nodes: Sequence[Node]) -> None:
    """Makes the updates of nodes, together; those of graphs with variables are left to an Executor."""
    nodes = list(nodes)
    happened(nodes)
    with computing():
        for make in _makers:
            make(nodes)


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """Inside, what is read is read for values that are computed with the updates that belong to them."""
    before, _waiting.busy = _waiting.busy, True
    try:
        yield
    finally:
        _waiting.busy = before


def install(make: Callable[[Sequence[Node]], None]) -> None:
    """Has updates wait here, until `make` makes those of some nodes."""
    _makers.append(make)
    of_updates(note, read, happened)
