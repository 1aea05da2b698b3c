"""Small kernels side by side in one launch: on a GPU a launch costs more than what it does for a small parameter.

Joined are groups that only update parameters, which come last, and groups that compute single numbers of what is given,
as an optimizer's corrections, which come first. Each stays a part of its own, computed by other threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph import Node
from .aliases import Aliases
from .base import TypedGraph
from .groups import Group

MOST = 480  # arrays of a kernel: their pointers are its arguments, of which a GPU takes 4 KiB


def join(groups: Sequence[Group], graph: TypedGraph, aliases: Aliases) -> list[Group]:
    """The groups, with those joined that may be."""
    parameter_of = {value: parameter for parameter, value in graph.updates}
    read = {aliases.computed(value) for group in groups for value in group.inputs}
    read |= {aliases.computed(node) for node in graph.outputs if node is not None}
    sets: dict[object, list[Group]] = {}
    level: dict[Node, int] = {}  # of the numbers that are computed of what is given, and of numbers of lower levels
    for group in groups:
        if group.kind != "elementwise" or not aliases.lies_in.keys().isdisjoint(group.outputs):
            continue
        sources = [source for value in group.inputs if (source := aliases.computed(value)) not in graph.fed]
        dtypes = frozenset(graph.dtypes[node] for node in group.outputs)  # others never share memory
        if all(graph.size(node) == 1 for node in group.outputs) and level.keys() >= set(sources):
            own = 1 + max((level[source] for source in sources), default=-1)
            level.update(dict.fromkeys(group.outputs, own))
            sets.setdefault((own, dtypes), []).append(group)
        elif read.isdisjoint(group.outputs) and parameter_of.keys() >= set(group.outputs):
            sets.setdefault(dtypes, []).append(group)
    joined = []
    for found in sets.values():
        for share in _shares(_independent(found, parameter_of, aliases)):
            if len(share) > 1:
                joined.append(_joined(share))
    within = {id(part) for group in joined for part in group.parts}
    first = [group for group in joined if level.keys() >= set(group.outputs)]
    rest = [group for group in groups if id(group) not in within]
    return [*first, *rest, *(group for group in joined if level.keys().isdisjoint(group.outputs))]


def _independent(groups: Iterable[Group], parameter_of: dict[Node, Node], aliases: Aliases) -> list[Group]:
    """The groups of which none updates a parameter that another one reads."""
    readers: dict[Node, set[int]] = {}
    for group in groups:
        for value in group.inputs:
            readers.setdefault(aliases.source(value), set()).add(id(group))

    def alone(group: Group) -> bool:
        updated = [parameter_of[node] for node in group.outputs if node in parameter_of]
        return all(readers.get(parameter, set()) <= {id(group)} for parameter in updated)

    return [group for group in groups if alone(group)]


def _shares(parts: Sequence[Group]) -> list[list[Group]]:
    """The parts, in order, by kernels that have no more than MOST arrays."""
    shares: list[list[Group]] = []
    left = 0
    for part in parts:
        arrays = len(part.inputs) + len(part.outputs)
        if arrays > left:
            shares.append([])
            left = MOST
        shares[-1].append(part)
        left -= arrays
    return shares


def _joined(parts: Sequence[Group]) -> Group:
    """One group of several. Its kernel is given what a part reads for this part alone: so `schedule` tells parts."""
    nodes = tuple(dict.fromkeys(node for part in parts for node in part.nodes))
    inputs = tuple(value for part in parts for value in part.inputs)
    outputs = tuple(node for part in parts for node in part.outputs)
    return Group(nodes, inputs, outputs, "elementwise", tuple(parts))
