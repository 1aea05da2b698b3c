"""A program: which kernels run in which order, whose memory is a view, and which results lie in a parameter."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Node
from ..planner import MemoryPlan
from .aliases import Aliases, nbytes_of
from .base import TypedGraph
from .fuse import Group


@dataclass(frozen=True)
class Program:
    """The kernels of one run and the memory of its values, before they are placed.

    Attributes:
        graph: after the passes, and with the copies that results and parameters need.
        groups: the kernels, in the order in which they run.
        aliases: the values that lie in others' memory.
        results: the evaluated nodes, in order; None for a group of updates.
        bytes_unplanned: what a buffer for every node of the graph would take, before the passes.
        memory: where each value lies in the arena.
        launches: whether a kernel of several results is several launches, as on a GPU: the first may not overwrite what
            the next one reads.
    """

    graph: TypedGraph
    groups: tuple[Group, ...]
    aliases: Aliases
    results: tuple[Node | None, ...]
    bytes_unplanned: int = 0
    memory: MemoryPlan | None = None
    launches: bool = False

    def nbytes(self, node: Node) -> int:
        """The size of a node's value."""
        return nbytes_of(node, self.graph)

    @property
    def viewed(self) -> dict[Node, Node]:
        """The nodes that are no computation but another node's memory, by node."""
        return self.aliases.viewed

    @property
    def parts(self) -> dict[Node, Node]:
        """The values that are computed where they lie in a concatenation, which has no kernel, by value."""
        return self.aliases.parts

    @property
    def placed(self) -> dict[Node, Node]:
        """The values that are written straight into a parameter's memory, by value."""
        return self.aliases.placed

    def source(self, node: Node) -> Node:
        """The node in whose memory this one lies: itself if in its own, the parameter if it is placed in one."""
        return self.aliases.source(node)

    def offset(self, node: Node) -> int:
        """Where the node begins in its source, in bytes."""
        return self.aliases.offset(node)

    @property
    def parameters(self) -> list[Node]:
        """The parameters read or written, each once."""
        read = [self.source(value) for group in self.groups for value in group.inputs]
        return list(dict.fromkeys(n for n in [*read, *self.placed.values()] if n.op.name == "parameter"))

    def stored(self) -> list[Node]:
        """Every value that has memory in the arena, in the order of their writing; views and parts follow that in which
        they lie."""
        found: dict[Node, None] = {}
        views: dict[Node, list[Node]] = {}
        for node, source in self.viewed.items():
            views.setdefault(source, []).append(node)
        for group in self.groups:
            for output in group.outputs:
                chain = [output]
                while chain[-1] in self.parts:
                    chain.append(self.parts[chain[-1]])
                stack = [node for node in chain if node not in found]
                while stack:
                    node = stack.pop()
                    if node not in self.placed:
                        found[node] = None
                        stack += reversed(views.get(node, []))
        return list(found)
