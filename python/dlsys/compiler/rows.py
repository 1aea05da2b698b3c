"""Loops whose threads do not wait for each other: each has rows of its own, with which it walks all steps.

Else all threads share every kernel and wait for each other at its end, 700 times in a training step of an LSTM of two
layers and 35 steps. They need not where row i of all that a step computes comes from row i of what moves from step to
step, and from what is the same in all steps: as the sequences of a batch do in a recurrent network.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..graph import Node
from .base import TypedGraph

LEAST_ROWS = 16  # of a thread: it reads all matrices of a step, which with fewer rows it would wait for


def rows_apart(step: TypedGraph, moving: Collection[Node]) -> tuple[int, frozenset[Node]]:
    """The number of rows of all that depends on what moves from step to step, and these nodes; 0 and none where a row
    of one depends on others."""
    shapes, none = step.shapes, (0, frozenset[Node]())
    found = {node for node in moving if node in shapes}  # what is read
    counts = {shapes[node][:1] for node in found}
    if len(counts) != 1 or () in counts:
        return none
    (count,) = counts.pop()
    for node in step.nodes:
        own = [value in found for value in node.inputs]
        if any(own):
            if not _is_by_rows(node, own, count, step):
                return none
            found.add(node)
    return (count, frozenset(found)) if found.issuperset(step.roots) else none


def _is_by_rows(node: Node, own: list[bool], count: int, step: TypedGraph) -> bool:
    """Whether each of a node's `count` rows comes from that row of the inputs that are its `own`."""
    shape, inputs = step.shapes[node], [step.shapes[value] for value in node.inputs]
    if shape[:1] != (count,) or node.op.shape_only or "shape" in node.attrs:
        return False
    if node.op.kind == "contraction":
        return own == [True, False] and len(inputs[0]) == len(shape) == 2 and not node.attrs.get("trans_A")
    others = [given for given, is_own in zip(inputs, own, strict=True) if not is_own]
    mine = [given for given, is_own in zip(inputs, own, strict=True) if is_own]
    repeated = all(len(given) < len(shape) or given[0] == 1 for given in others)
    apart = all(len(given) == len(shape) and given[0] == count for given in mine)
    return node.op.kind == "elementwise" and repeated and apart


def of_one_thread(step: TypedGraph, apart: Collection[Node], threads: int) -> TypedGraph:
    """The graph of the rows of one of so many threads."""
    narrow = {node: (step.shapes[node][0] // threads, *step.shapes[node][1:]) for node in apart}
    return replace(step, shapes={**step.shapes, **narrow})
