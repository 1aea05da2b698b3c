"""The order of kernels: a memory-aware one beside the order in which the graph was written."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from ..graph import Node
from ..passes import Group


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
    position = {id(group): number for number, group in enumerate(groups)}
    waiting, followers = [0] * len(groups), [[] for _ in groups]  # type: tuple[list[int], list[list[int]]]
    for number, group in enumerate(groups):
        earlier = {position[id(other)] for other in before(group)} - {number}
        waiting[number] = len(earlier)
        for other in earlier:
            followers[other].append(number)
    size: dict[Node, int] = {}

    def memories(values: Iterable[Node]) -> set[Node]:
        found = {memory_of(value) for value in values}
        size.update((memory, nbytes(memory)) for memory in found if memory not in size)
        return found

    read = [memories(group.inputs) for group in groups]
    growth = [sum(size[memory] for memory in memories(group.outputs)) for group in groups]
    readers: dict[Node, set[int]] = {}
    for number, sources in enumerate(read):
        for memory in sources:
            readers.setdefault(memory, set()).add(number)

    for memory, numbers in readers.items():
        if len(numbers) == 1 and memory not in kept:
            growth[next(iter(numbers))] -= size[memory]
    ready = [(growth[number], number) for number, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)  # a group whose growth got less is there again
    done = [False] * len(groups)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        if done[number]:
            continue
        done[number] = True
        order.append(groups[number])
        for memory in read[number]:
            readers[memory].discard(number)
            if len(readers[memory]) == 1 and memory not in kept:
                (last,) = readers[memory]  # which will free it
                growth[last] -= size[memory]
                if waiting[last] == 0:
                    heapq.heappush(ready, (growth[last], last))
        for follower in followers[number]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (growth[follower], follower))
    return order
