"""Liveness: from which kernel to which each value is needed, on which others it may lie, and so where it lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace

from ..graph import Node
from ..planner import MemoryPlan, Value, plan_memory
from .program import Program


def planned(program: Program) -> MemoryPlan:
    """Liveness and offsets of every value in the arena."""
    first = {node: step for step, group in enumerate(program.groups) for node in group.outputs}
    last: dict[Node, int] = {}
    stored = program.stored()
    for part in [node for node in stored if node in program.parts and node in first]:
        while part in program.parts:
            whole = program.parts[part]
            first[whole] = min(first.get(whole, first[part]), first[part])
            part = whole
    for node in stored:
        if node in program.viewed:
            first[node] = first[program.viewed[node]]
        last[node] = first[node]
    for step, group in enumerate(program.groups):
        for value in group.inputs:
            if value in last:
                last[value] = step
    last.update((node, len(program.groups)) for node in program.results if node in last)
    values = []
    over = _overwritable(program, stored, last)
    for node in stored:
        alias, offset = program.viewed.get(node, program.parts.get(node)), program.aliases.offsets.get(node, 0)
        size, in_place = program.nbytes(node), tuple(over.get(node, ()))
        values.append(Value(node, size, first[node], last[node], alias, in_place, offset))
    return replace(plan_memory(values), bytes_unplanned=program.bytes_unplanned)


def _overwritable(program: Program, stored: list[Node], known: Container[Node]) -> dict[Node, list[Node]]:
    """For each value that a kernel computes those `known` on which it may lie. A piece of an array is one only
    where most of the array is overwritten so, as it stays alive."""
    group_of = {node: group for group in program.groups for node in group.outputs}
    found: dict[Node, list[Node]] = {}
    pieces: dict[Node, dict[Node, int]] = {}
    for node in stored:
        if node not in group_of or node in program.parts:
            continue
        group, size = group_of[node], program.nbytes(node)
        if program.launches and len(group.outputs) > 1:
            continue
        read = Counter(program.source(value) for value in group.inputs)  # a view may be read elsewhere
        for value in group.overwritable(node, program.graph.shapes):
            source = program.source(value)
            if len(group.outputs) > 1 and program.graph.dtypes[value] == "bool":
                continue  # they are read where they are used, behind stores too: see `schedule.cpu.codegen`
            if value in known and program.nbytes(value) == size and read[source] == 1:
                found.setdefault(node, []).append(value)
                if program.nbytes(source) != size:
                    pieces.setdefault(source, {})[value] = size
    few = {source for source, own in pieces.items() if 2 * sum(own.values()) < program.nbytes(source)}
    for node, values in found.items():  # pieces first: what is whole serves elsewhere
        chosen = [value for value in values if program.source(value) not in few]
        found[node] = sorted(chosen, key=lambda value: program.source(value) not in pieces)
    return found
