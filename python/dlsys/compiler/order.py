"""The order of a graph while its nodes are put into groups, which must not depend on each other in a circle; and that
of its groups, which saves memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from ..graph import Node
from .groups import Group

WINDOW = 2000  # nodes looked at to make sure that no path leaves a group and comes back; beyond, one is presumed


class Order:
    """A topological order in which the nodes of each group stand together: inputs first also when each group is one
    node. A new group moves only what stands between its members, as in Pearce and Kelly, "A dynamic topological sort
    algorithm for directed acyclic graphs" (2006).

    Attributes:
        inputs, consumers: of each node those that it reads, and that read it.
        group_of: the group of each node that has one.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Mapping[Node, list[Node]],
        consumers: Mapping[Node, list[Node]],
        group_of: Mapping[Node, Sequence[Node]],
    ) -> None:
        self._nodes = list(nodes)
        self._rank = {node: rank for rank, node in enumerate(nodes)}
        self.inputs = inputs
        self.consumers = consumers
        self.group_of = group_of

    def between(self, node: Node, members: set[Node]) -> Node | None:
        """A node on a path outside between the members and the node, in either direction; None if there is none, and
        they may share a kernel. No path may leave the members and come back."""
        ranks, own = [self._rank[member] for member in members], self._rank[node]
        found = None
        if own < max(ranks):
            users = [user for user in self.consumers[node] if user not in members]
            found = self._meets(users, self.consumers, members, own, max(ranks))
        if found is None and own > min(ranks):
            values = [value for value in self.inputs[node] if value not in members]
            found = self._meets(values, self.inputs, members, min(ranks), own)
        return found

    def _meets(
        self, stack: list[Node], neighbours: Mapping[Node, list[Node]], targets: set[Node], low: int, high: int
    ) -> Node | None:
        """Where a search from the nodes of the stack, among those whose rank is between the two, meets the targets;
        groups that exist are passed through whole."""
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen or not low < self._rank.get(node, -1) < high:  # given nodes have no rank
                continue
            if len(seen) > WINDOW:
                return node
            for passed in self.group_of.get(node, (node,)):
                seen.add(passed)
                for other in neighbours[passed]:
                    if other in targets:
                        return passed
                    if other not in seen:
                        stack.append(other)
        return None

    def gather(self, members: Sequence[Node]) -> None:
        """Brings the members of a new group together: what depends on them comes behind, what does not before."""
        rank, group_of, consumers = self._rank, self.group_of, self.consumers
        ranks = [rank[node] for node in members]
        low, high = min(ranks), max(ranks)
        if high - low < len(members):
            return
        inside, behind = set(members), set()  # type: tuple[set[Node], set[Node]]
        stack = list(members)
        while stack:
            for user in consumers[stack.pop()]:
                if user not in behind and user not in inside and rank[user] < high:
                    mates = group_of.get(user, (user,))
                    behind.update(mates)
                    stack += mates
        region = [node for node in self._nodes[low : high + 1] if node not in inside]
        before = [node for node in region if node not in behind]
        after = [node for node in region if node in behind]
        found = [*before, *members, *after]
        self._nodes[low : high + 1] = found
        rank.update(zip(found, range(low, high + 1), strict=True))


SHARING = 8  # readers: a matrix that many steps read is freed by none of them


def list_schedule(
    groups: Sequence[Group],
    before: Callable[[Group], Iterable[Group]],
    memories_of: Callable[[Node], Iterable[Node]] = lambda value: (),
    nbytes: Callable[[Node], int] = lambda memory: 0,
    kept: Container[Node] = (),
) -> list[Group]:
    """The groups in an order that saves memory: among those whose `before` groups have run, always the one that frees
    the most memory beyond what it takes; if none frees any, the first as given. Each of the last SHARING readers of a
    value counts as freeing a part of it. So readers of one value follow each other, a gradient's update runs as soon as
    it can, and what is needed late waits. Groups that depend on each other in a circle are left out.

    `memories_of` gives the values whose memory a value is, one or those that are put together, `nbytes` the size of
    each in the arena, 0 for what lies elsewhere; `kept` are memories that are not freed.
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
        found = {memory for value in values for memory in memories_of(value)}
        size.update((memory, nbytes(memory)) for memory in found if memory not in size)
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
        for number in numbers:
            growth[number] -= freed(memory, len(numbers))

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
