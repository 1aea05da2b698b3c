"""The order of kernels: a memory-aware one beside the order in which the graph was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..graph import Node
from ..passes import Group

MOST_GROUPS = 2000  # the search is quadratic where much is ready at once


def thrifty(
    groups: Sequence[Group],
    before: Callable[[Group], Iterable[Group]],
    memory_of: Callable[[Node], Node],
    nbytes: Callable[[Node], int],
    kept: set[Node],
) -> list[Group]:
    """The groups, each behind those `before` it; of those that are ready always the one that takes the least memory
    more than it frees, of equals the first. A gradient's update then runs as soon as it may, and not at the end.

    `groups` must be in such an order already. `memory_of` gives the value whose memory a value is, `nbytes` its size
    in the arena, 0 for what lies elsewhere; `kept` are memories that are not freed.
    """
    if len(groups) > MOST_GROUPS:
        return list(groups)
    position = {id(group): number for number, group in enumerate(groups)}
    waiting, followers = [0] * len(groups), [[] for _ in groups]  # type: tuple[list[int], list[list[int]]]
    for number, group in enumerate(groups):
        earlier = {position[id(other)] for other in before(group)} - {number}
        waiting[number] = len(earlier)
        for other in earlier:
            followers[other].append(number)
    read = [{memory_of(value) for value in group.inputs} for group in groups]
    written = [{memory_of(value) for value in group.outputs} for group in groups]
    readers: dict[Node, int] = {}
    for memories in read:
        for memory in memories:
            readers[memory] = readers.get(memory, 0) + 1

    def growth(number: int) -> tuple[int, int]:
        freed = sum(nbytes(m) for m in read[number] if readers[m] == 1 and m not in kept)
        return sum(nbytes(m) for m in written[number]) - freed, number

    ready = [number for number, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        number = min(ready, key=growth)
        ready.remove(number)
        order.append(groups[number])
        for memory in read[number]:
            readers[memory] -= 1
        for follower in followers[number]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return order
