"""What one run computes: shapes, dtypes and the nodes in order, for one signature of feeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import DTypeError, FeedError
from ..graph import Node, Shape, error_at, shape_error
from ..ops import reshape_op
from ..planner import MemoryPlan, Value, plan_memory

_IDENTITY_AT_EQUAL_SHAPES = ("sum_to_like", "broadcastto")


@dataclass(frozen=True)
class Program:
    """The part of a graph that some feeds leave to be computed.

    Attributes:
        fed: the nodes whose values are given, variables or not.
        shapes, dtypes: of every node whose shape is needed, also where its value is not.
        steps: the nodes to compute, inputs first. What is only read for its shape is not among them.
        results: the evaluated nodes; one that was fed is replaced by a copying step.
        viewed: the nodes that are no computation but another node's memory, by node.
    """

    fed: frozenset[Node]
    shapes: dict[Node, Shape]
    dtypes: dict[Node, str]
    steps: list[Node]
    results: list[Node]
    viewed: dict[Node, Node]

    def nbytes(self, node: Node) -> int:
        """The size of a node's value."""
        return math.prod(self.shapes[node]) * np.dtype(self.dtypes[node]).itemsize

    def source(self, node: Node) -> Node:
        """The node whose memory this one is, itself if it is no view."""
        while node in self.viewed:
            node = self.viewed[node]
        return node

    def plan(self) -> MemoryPlan:
        """Liveness and offsets of every step's value; feeds, and views of them, are not in the arena."""
        last = {node: step for step, node in enumerate(self.steps)}
        for step, node in enumerate(self.steps):
            for value in value_inputs(node):
                last[value] = step
        last.update(dict.fromkeys(self.results, len(self.steps)))
        values = []
        inside: set[Node] = set()
        for step, node in enumerate(self.steps):
            if self.source(node) in self.fed:
                continue
            inside.add(node)
            in_place = tuple(
                value
                for value in value_inputs(node)
                if node.op.elementwise and value in inside and self._same(value, node)
            )
            alias = self.viewed.get(node)
            values.append(Value(node, self.nbytes(node), step, last[node], alias, in_place))
        return plan_memory(values)

    def _same(self, a: Node, b: Node) -> bool:
        return self.shapes[a] == self.shapes[b] and self.dtypes[a] == self.dtypes[b]


def value_inputs(node: Node) -> list[Node]:
    """The inputs that are read for their values, each once, in order."""
    shape_only = node.op.shape_only
    return list(dict.fromkeys(value for i, value in enumerate(node.inputs) if i not in shape_only))


def analyse(
    order: Sequence[Node], evaluated: Sequence[Node], fed: Mapping[Node, tuple[Shape, str]]
) -> Program:
    """Infer shapes and dtypes, and find what must be computed.

    `order` is the graph's topological order, `fed` holds the shape and dtype of each feed. Raises FeedError
    for a variable that is needed and was not fed, ShapeError and DTypeError from the operators' rules.
    """
    needed = set(evaluated)
    known = set(evaluated)  # those whose shape is needed
    for node in reversed(order):
        if node in known and node not in fed:
            known.update(node.inputs)
            if node in needed:
                needed.update(value_inputs(node))

    shapes: dict[Node, Shape] = {}
    dtypes: dict[Node, str] = {}
    for node in order:
        if node in fed:
            shapes[node], dtypes[node] = fed[node]
            _check_declaration(node, *fed[node])
        elif node in known:
            if node.op.name == "placeholder" and (node in needed or None in node.attrs.values()):
                raise FeedError(
                    f"placeholder {node.name} was not fed [node {node.name}, made at {node.location}]"
                )
            shapes[node] = node.op.infer_shape(node, [shapes[value] for value in node.inputs])
            dtypes[node] = node.op.infer_dtype(node, [dtypes[value] for value in node.inputs])

    steps = [node for node in order if node in needed and node not in fed]
    copies: dict[Node, Node] = {}
    for node in evaluated:
        if node in fed and node not in copies:
            copies[node] = copy = reshape_op(node, shapes[node])
            shapes[copy], dtypes[copy] = shapes[node], dtypes[node]
            steps.append(copy)
    results = [copies.get(node, node) for node in evaluated]

    viewed: dict[Node, Node] = {}
    borrowed = set(fed)  # feeds and views of them
    finals = set(results)
    for node in steps:
        if not _is_view(node, shapes):
            continue
        source = node.inputs[0]
        if source in borrowed and node in finals:
            continue  # a result must not change with the user's array: it is copied
        viewed[node] = source
        if source in borrowed:
            borrowed.add(node)
    return Program(frozenset(fed), shapes, dtypes, steps, results, viewed)


def _is_view(node: Node, shapes: Mapping[Node, Shape]) -> bool:
    if node.op.is_view:
        return True
    return node.op.name in _IDENTITY_AT_EQUAL_SHAPES and shapes[node.inputs[0]] == shapes[node]


def _check_declaration(node: Node, shape: Shape, dtype: str) -> None:
    if node.op.name != "placeholder":
        return
    declared, declared_dtype = node.attrs.get("shape"), node.attrs.get("dtype")
    if declared is not None and declared != shape:
        raise shape_error(node, f"{node.name} is declared with shape {declared}, but fed with {shape}")
    if declared_dtype is not None and declared_dtype != dtype:
        raise error_at(node, DTypeError, f"{node.name} is declared as {declared_dtype}, but fed with {dtype}")
