"""Updates of parameters in one launch: on a GPU a launch costs more than what it does for a small parameter."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Node
from .aliases import Aliases
from .base import TypedGraph
from .groups import Group, other_inputs

MOST = 200  # arrays of a kernel: their pointers are its arguments, of which a GPU takes 4 KiB


def join_updates(groups: Sequence[Group], graph: TypedGraph, aliases: Aliases) -> list[Group]:
    """The groups, with those that only update parameters joined into few, which come last. Each stays a part of its
    own, computed by other threads, so none may read what another one overwrites."""
    parameter_of = {value: parameter for parameter, value in graph.updates}
    read = {value for group in groups for given in group.inputs for value in aliases.computed(given)}
    read |= {value for node in graph.outputs if node is not None for value in aliases.computed(node)}

    def updates(group: Group) -> bool:
        own = group.kind == "elementwise" and read.isdisjoint(group.outputs)
        return own and all(node in parameter_of and node not in aliases.parts for node in group.outputs)

    found = [group for group in groups if updates(group)]
    readers: dict[Node, set[int]] = {}
    for group in found:
        for value in group.inputs:
            readers.setdefault(aliases.source(value), set()).add(id(group))
    by_dtype: dict[frozenset[str], list[Group]] = {}  # memory is not shared by values of different dtypes
    for group in found:
        if all(readers.get(parameter_of[node], set()) <= {id(group)} for node in group.outputs):
            by_dtype.setdefault(frozenset(graph.dtypes[node] for node in group.outputs), []).append(group)
    joined = [_joined(share, graph) for parts in by_dtype.values() for share in _shares(parts) if len(share) > 1]
    within = {id(part) for group in joined for part in group.parts}
    return [*(group for group in groups if id(group) not in within), *joined]


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


def _joined(parts: Sequence[Group], graph: TypedGraph) -> Group:
    """One group of several."""
    nodes, inputs, outputs = (
        tuple(dict.fromkeys(node for part in parts for node in getattr(part, what)))
        for what in ("nodes", "inputs", "outputs")
    )
    return Group(nodes, inputs, outputs, "elementwise", other_inputs(inputs, outputs, graph), tuple(parts))
