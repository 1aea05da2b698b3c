"""The order of a graph while its nodes are put into groups, which must not depend on each other in a circle."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

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
        self.inputs, self.consumers, self.group_of = inputs, consumers, group_of

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


def ordered(groups: Iterable[Group], after: Callable[[Group], Iterable[Group]]) -> list[Group] | None:
    """The groups with each behind those that it must come `after`, else in the order given; None for a circle."""
    groups = list(groups)
    position = {id(group): i for i, group in enumerate(groups)}
    waiting: list[int] = []
    followers: list[list[int]] = [[] for _ in groups]
    for i, group in enumerate(groups):
        before = {position[id(other)] for other in after(group)} - {i}
        waiting.append(len(before))
        for other in before:
            followers[other].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    found = []
    while ready:
        i = heapq.heappop(ready)
        found.append(groups[i])
        for follower in followers[i]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    return found if len(found) == len(groups) else None
