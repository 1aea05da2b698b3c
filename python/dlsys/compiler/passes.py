"""The passes in their order: from a graph to a simpler one of the same results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from ..errors import GraphError
from .base import TypedGraph, drop_dead, rewrite
from .patterns import Rules
from .rules import TABLE

PASSES = (*TABLE, "cse", "dead")
"""From graph to graph: rules by their names, common subexpressions, what nothing depends on."""

NAMES = (*PASSES, "views", "fuse")
"""All that a user can choose: the passes, then what is done as the graph becomes kernels."""


_extensions: list[Callable[[TypedGraph], TypedGraph]] = []


def extend(change: Callable[[TypedGraph], TypedGraph]) -> None:
    """Lets every graph go through one more pass, after the others and whichever of those are chosen."""
    _extensions.append(change)


def extended(graph: TypedGraph) -> TypedGraph:
    """The graph through the passes by which other packages have extended the compiler."""
    for change in _extensions:
        graph = change(graph)
    return graph


def select(passes: Any) -> tuple[str, ...]:
    """The names of the passes to use, in order: all for None or "all", else those of a sequence.

    Raises GraphError for what names no pass.
    """
    if passes is None or passes == "all":
        return NAMES
    chosen = [passes] if isinstance(passes, str) or not isinstance(passes, Iterable) else list(passes)
    for name in chosen:
        if name not in NAMES:
            raise GraphError(f"passes: {name!r} is not one of {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in chosen)


def run_passes(graph: TypedGraph, names: Collection[str]) -> TypedGraph:
    """The graph through those of PASSES that are named: one sweep of the rules, in which equal nodes are merged; then
    dead nodes go."""
    users, chosen = {*graph.nodes, *graph.current}, tuple([name for name in TABLE if name in names])
    if chosen or "cse" in names:
        graph = rewrite(graph, _rules(chosen), merge="cse" in names)
    graph = drop_dead(graph) if "dead" in names else graph
    return replace(graph, current={old: node for old, node in graph.current.items() if old in users})


@functools.cache
def _rules(names: tuple[str, ...]) -> Rules:
    return Rules({name: TABLE[name] for name in names})
