"""The order of groups that saves memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Sequence

from ..graph import Node
from .groups import Group

SHARING = 8  # readers: a matrix that many steps read is freed by none of them


def list_schedule(
    groups: Sequence[Group],
    before: Callable[[Group], Iterable[Group]],
    memory_of: Callable[[Node], Node],
    nbytes: Callable[[Node], int],
    kept: Container[Node],
) -> list[Group]:
    """The groups in an order that saves memory: among those whose `before` groups have run, always the one that frees
    the most memory beyond what it takes; if none frees any, the first as given. Each of the last SHARING readers of a
    value counts as freeing a part of it. So readers of one value follow each other, a gradient's update runs as soon as
    it can, and what is needed late waits. Groups that depend on each other in a circle are left out.

    `memory_of` gives the value whose memory a value is, `nbytes` the size of that in the arena, 0 for what lies
    elsewhere; `kept` are memories that are not freed.
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
        found = set(map(memory_of, values))
        for memory in found:
            if memory not in size:
                size[memory] = nbytes(memory)
        return found

    read = [memories(group.inputs) for group in groups]
    growth = [sum(size[memory] for memory in memories(group.outputs)) for group in groups]
    readers: dict[Node, set[int]] = {}
    for number, sources in enumerate(read):
        for memory in sources:
            readers.setdefault(memory, set()).add(number)

    def freed(memory: Node, count: int) -> int:
        """The share of a memory that each of its last `count` readers frees."""
        return size[memory] // count if 0 < count <= SHARING and memory not in kept else 0

    for memory, numbers in readers.items():
        share = freed(memory, len(numbers))
        for number in numbers:
            growth[number] -= share

    def rank(number: int) -> tuple[int, int]:
        return min(growth[number], 0), number

    ready = [rank(number) for number, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)  # a group whose growth got less is there again
    done: dict[int, None] = {}
    while ready:
        _, number = heapq.heappop(ready)
        if number in done:
            continue
        done[number] = None
        for memory in read[number]:
            left = readers[memory]
            left.discard(number)
            if not left:
                continue
            more = freed(memory, len(left)) - freed(memory, len(left) + 1)
            for other in left if more else ():
                growth[other] -= more
                if waiting[other] == 0:
                    heapq.heappush(ready, rank(other))
        for follower in followers[number]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, rank(follower))
    return [groups[number] for number in done]
