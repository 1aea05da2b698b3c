"""The passes in their order: from a graph to a simpler one of the same results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from ..errors import GraphError
from .base import TypedGraph
from .moves import cut_taps
from .simplify import drop_dead, fold, merge, simplify
from .slices import join_slices

Pass = Callable[[TypedGraph], TypedGraph]

PASSES: dict[str, Pass] = {
    "fold": fold,
    "simplify": simplify,
    "taps": cut_taps,
    "slices": join_slices,
    "cse": merge,
    "dead": drop_dead,
}
"""From graph to graph, in the order in which they run."""

NAMES = (*PASSES, "pack", "views", "fuse")
"""All that a user can choose: the passes, then what is done as the graph becomes kernels."""

MOST_ROUNDS = 16  # a round makes what the next one finds; drawn graphs took up to six, mostly two


def select(passes: Any) -> tuple[str, ...]:
    """The names of the passes to use, in order: all for None or "all", else those of a sequence.

    Raises GraphError for what names no pass.
    """
    if passes is None or passes == "all":
        return NAMES
    chosen = [passes] if isinstance(passes, str) or not isinstance(passes, Iterable) else list(passes)
    for name in chosen:
        if name not in NAMES:
            raise GraphError(f"passes: {name!r} is none of {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in chosen)


def run_passes(graph: TypedGraph, names: Collection[str]) -> TypedGraph:
    """The graph through those of PASSES that are named, round after round until none changes it."""
    passes = [function for name, function in PASSES.items() if name in names]
    users = {*graph.nodes, *graph.current}
    unchanged = 0
    for number in range(MOST_ROUNDS * len(passes)):
        before = graph
        graph = passes[number % len(passes)](graph)
        unchanged = unchanged + 1 if graph is before else 0
        if unchanged == len(passes):
            break
    current = {old: node for old, node in graph.current.items() if old in users}
    return replace(graph, current=current)
