"""Messages: how a plan exchanges values with the other processes while its kernels run.

An exchange takes two rows of the runner's table, "start" and "wait", which are calls like a kernel's, of functions of
`distributed.Exchange`. So they are two nodes of the graph, `start(x)` and `wait(start, x)`, and two groups of the
program, and need no mechanism of their own. The value of `wait` lies in that of `start`, and that of an all-reduce in x
(`Aliases`); x is alive until `wait` reads it (the planner); what reads the sum depends on `wait`. All-reduces that do
not depend on each other share a *bucket*: a concat of their values, whose parts are computed in place, so that nothing
is copied, and slices of its sum, which are views. So do a sharded optimizer's exchanges: a reduce-scatter sends a row
for each rank, its shares of all gradients, which one kernel writes, so large gradients travel alone; an all-gather's
parts are computed in place.

Three rules order the groups: a start comes as soon as its values are there, behind the one before, as all ranks must
start alike, and kernels that it needs come before others; a wait comes as late as it can, behind the kernels that need
none; what needs it comes before the next wait. Behind each kernel between, the requests are tested, which lets MPI make
progress. A graph without an exchange is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .. import distributed
from ..graph import DTYPES, Node, Op, Shape
from ..ops import concatenate_op, copy_op, pad_op, reshape_op, slice_op
from ..ops.collective import AllReduce, Collective, ReduceScatter, share_size
from ..ops.slicing import Slice
from .aliases import nbytes_of
from .base import Change, TypedGraph, rewrite, value_inputs
from .buckets import CALL, COPY, SPEED, cuts
from .groups import Group

ALL_REDUCE, REDUCE_SCATTER = AllReduce.exchange, ReduceScatter.exchange


class _Row(Op):
    """The start or the end of an exchange: `attrs` has its number, kind, operation, and the shape of its result."""

    kind = "communication"
    dtypes = DTYPES
    never = "the plan's table calls a function for it"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return node.attrs["shape"]

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 0


class _Start(_Row):
    name = "start"


class _Wait(_Row):
    name = "wait"


START, WAIT = _Start(), _Wait()


def with_messages(graph: TypedGraph) -> TypedGraph:
    """The graph with a start and a wait in the place of each exchange, those of independent all-reduces in buckets."""
    found = [node for node in graph.nodes if isinstance(node.op, Collective)]
    return _Exchanges(graph, found).graph() if found else graph


class _Exchanges:
    """The exchanges of a graph while they are replaced."""

    def __init__(self, graph: TypedGraph, found: Sequence[Node]) -> None:
        self.old, self.found = graph, found
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self.roots = set(graph.roots)
        self.why: dict[Node, str] = {}
        self.awaited: dict[Node, Node] = {}  # of each exchange that has been met what its bucket waits for
        self.begins: dict[Node, int] = {}  # and the first of its elements there

    def graph(self) -> TypedGraph:
        """The graph in which a bucket comes behind all that waits for no exchange of its generation."""
        generation, buckets = self._generations(), dict[Node, list[Node]]()
        nodes, origins = list[Node](), dict[Node, Node]()
        for number in range(max(generation.values()) + 1):
            alike = (node for node in self.old.nodes if generation[node] == number)
            nodes += [node for node in alike if not isinstance(node.op, Collective)]
            for bucket in self._buckets([node for node in self.found if generation[node] == number + 1]):
                buckets.update(dict.fromkeys(bucket, bucket))
                nodes += bucket

        def rule(node: Node, typed: TypedGraph) -> Change | None:
            if not isinstance(node.op, Collective):
                return None
            old = origins.get(node, node)
            if old not in self.awaited:
                self._exchange(buckets[old], len(set(self.awaited.values())), typed.current)
            return self._received(old, len(buckets[old]) == 1), self.why[old]

        return rewrite(replace(self.old, nodes=tuple(nodes)), rule, origins, name="messages")

    def _generations(self) -> dict[Node, int]:
        """Of each node the most exchanges on a path to it, itself with them."""
        found: dict[Node, int] = {}
        for node in self.old.nodes:
            before = max((found.get(value, 0) for value in node.inputs), default=0)
            found[node] = before + isinstance(node.op, Collective)
        return found

    def _buckets(self, found: Sequence[Node]) -> list[list[Node]]:
        """The exchanges of one generation, those of each bucket together, in an order that is the same on all ranks."""
        alike: dict[Any, list[Node]] = {}
        for node in sorted(found, key=lambda node: (node.attrs.get("order", -1), self.index[node])):
            together = isinstance(node.op, AllReduce) or (in_shares(node) and not self._costs_more_joined(node))
            assert isinstance(node.op, Collective)
            key = (node.op.exchange, node.attrs.get("operation"), self.old.dtypes[node]) if together else node
            alike.setdefault(key, []).append(node)
        buckets = []
        for nodes in alike.values():
            buckets += [nodes[first:end] for first, end in pairwise((0, *self._cuts(nodes)))]
        return sorted(buckets, key=lambda nodes: nodes[-1].attrs.get("order", -1))

    def _costs_more_joined(self, node: Node) -> bool:
        """Whether joining what a reduce-scatter sends to others, which copies it, takes longer than a message does.
        What is gathered then travels alone, too: it fits where the gradient was."""
        group, size = distributed.group(), max(nbytes_of(value, self.old) for value in (node, node.inputs[0]))
        return group.bucket_bytes is None and size / COPY > group.communicator.link.latency + CALL

    def _cuts(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """Behind how many of the nodes each bucket ends. Ranks whose batches have other shapes would find others: rank
        0 decides for all, when they see these nodes first."""
        group, op = distributed.group(), nodes[0].op
        assert isinstance(op, Collective)
        link = group.communicator.link
        sizes = [max(nbytes_of(value, self.old) for value in (node, node.inputs[0])) for node in nodes]
        left = self._left(nodes)
        key = tuple((node.op.name, self.old.shapes[node], self.old.dtypes[node], repr(node.attrs)) for node in nodes)
        if key not in group.agreed:
            ends = np.zeros(len(sizes), np.int64)
            own = cuts(sizes, left, link, group.bucket_bytes, op.exchange)
            ends[: len(own)] = own
            group.agreed[key] = tuple(end for end in distributed.broadcast(ends).tolist() if end)
        for first, end in pairwise((0, *group.agreed[key])):
            nbytes = sum(sizes[first:end])
            on_link, then = _time(link.seconds(nbytes, op.exchange) + CALL), _time(left[end - 1])
            why = f"a bucket of {nbytes} bytes, {on_link} on the link; kernels of {then} are left when it starts"
            self.why.update(dict.fromkeys(nodes[first:end], why))
        return group.agreed[key]

    def _left(self, nodes: Sequence[Node]) -> list[float]:
        """Of each node the seconds of the products that the later ones need besides, about."""
        shapes, seen, own = self.old.shapes, set[Node](), list[float]()
        for node in nodes:
            own.append(0.0)
            stack = [node]
            while stack:
                new = [value for value in stack.pop().inputs if value in self.index and value not in seen]
                seen.update(new)
                stack += new
                for value in new:
                    if value.op.kind == "contraction":
                        own[-1] += value.op.flop(value, [shapes[x] for x in value.inputs], shapes[value]) / SPEED
        until = list(accumulate(own))
        return [until[-1] - seconds for seconds in until]

    def _exchange(self, bucket: Sequence[Node], number: int, now: Mapping[Node, Node]) -> None:
        """Start and wait of one exchange, or of several in one message. `now`: what stands for other nodes."""
        first, ranks, size = bucket[0], distributed.size(), self.old.size
        assert isinstance(first.op, Collective)
        kind, shares = first.op.exchange, in_shares(first)
        counts = [size(node) if kind == REDUCE_SCATTER else size(node.inputs[0]) for node in bucket]
        if shares and kind == REDUCE_SCATTER:
            sent = _joined([self._row_for_each_rank(node, now, len(bucket) == 1) for node in bucket], 1)
        elif shares or len(bucket) > 1:
            sent = _joined([reshape_op(self._own(node, now), (-1,)) for node in bucket], 0)
        else:
            sent = self._own(first, now)
        shape = self.old.shapes[first]
        if shares or len(bucket) > 1:
            shape = (sum(counts),) if kind in (ALL_REDUCE, REDUCE_SCATTER) else (ranks, sum(counts))
        attrs = {
            "number": number, "exchange": kind, "operation": first.attrs.get("operation", "sum"), "shape": shape,
            "carries": tuple(node.inputs[0].name for node in bucket),
        }  # fmt: skip
        start = Node(START, [sent], attrs, f"bucket_{number}")
        wait = Node(WAIT, [start, sent], attrs, f"bucket_{number}_{kind}")
        self.awaited.update(dict.fromkeys(bucket, wait))
        self.begins.update(zip(bucket, accumulate(counts, initial=0), strict=False))

    def _received(self, node: Node, alone: bool) -> Node:
        """The exchange's part of what its bucket waits for."""
        wait, begin, size = self.awaited[node], self.begins[node], self.old.size(node)
        shares, gathers = in_shares(node), len(wait.attrs["shape"]) > 1
        if alone and not shares:
            return wait
        count = share_size(self.old.shapes[node]) if shares and gathers else size
        part = slice_op(wait, (..., slice(begin, begin + count)))
        if gathers:  # the shares of all ranks, and zeros
            part = slice_op(reshape_op(part, (-1,)), slice(0, size))
        return reshape_op(part, self.old.shapes[node])

    def _row_for_each_rank(self, node: Node, now: Mapping[Node, Node], alone: bool) -> Node:
        """The elements of what is sent, and zeros, in as many rows as there are ranks; with `alone` they are sent from
        where they are."""
        (x,), ranks = node.inputs, distributed.size()
        lacks = ranks * self.old.size(node) - self.old.size(x)
        x = self._own(node, now) if alone and not lacks else now.get(x, x)
        if lacks:
            x = pad_op(reshape_op(x, (-1,)), ((0, lacks),))
        return reshape_op(x, (ranks, -1))

    def _own(self, node: Node, now: Mapping[Node, Node]) -> Node:
        """The value that an exchange sends; a copy of it, unless it lies in the arena where nothing else reads or
        shares it."""
        (x,) = node.inputs
        inner, alone = x, True
        while inner in self.index:
            alone = alone and self.old.uses[inner] == 1 and inner not in self.roots
            if inner.op.kind != "view":
                break
            (inner, *_) = value_inputs(inner)
        shared = isinstance(inner.op, (Slice, Collective)) or inner.op.kind in ("join", "loop") or inner.op.constant
        found = now.get(x, x)
        return found if alone and inner in self.index and not shared else copy_op(found)


def _joined(values: Sequence[Node], axis: int) -> Node:
    """The values one behind another along an axis."""
    return values[0] if len(values) == 1 else concatenate_op(values, axis)


def in_shares(node: Node) -> bool:
    """Whether an exchange cuts a value of any shape into the ranks' shares, or makes it of them."""
    return bool(node.attrs.get("flat")) or node.attrs.get("shape") is not None


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def is_message(group: Group, ends: bool = False) -> bool:
    """Whether a group is a start or a wait; with `ends` whether it is a wait."""
    return group.kind == "communication" and (not ends or group.nodes[0].op is WAIT)


def in_turn(groups: Sequence[Group], before: Callable[[Group], Iterable[Group]]) -> list[Group]:
    """The groups, which are in an order of running, in one that follows the three rules above."""
    messages = [group for group in groups if is_message(group)]
    if not messages:
        return list(groups)
    number = {id(group): group.nodes[0].attrs["number"] for group in messages}
    starts = sorted((g for g in messages if not is_message(g, ends=True)), key=lambda g: number[id(g)])
    waits = {number[id(g)]: g for g in messages if is_message(g, ends=True)}
    level: dict[int, int] = {}  # the number of the last message that a group needs
    latest = -1
    for group in groups:
        own = max((level[id(other)] for other in before(group)), default=-1)
        level[id(group)] = max(own, number[id(group)]) if is_message(group, ends=True) else own
    for group in starts:
        latest = level[id(group)] = max(latest, level[id(group)])
    needed: dict[int, int] = {}  # the place among the starts of the first that needs a group
    for place, group in enumerate(starts):
        stack = [group]
        while stack:
            for other in before(stack.pop()):
                if id(other) not in needed:
                    needed[id(other)] = place
                    stack.append(other)
    found: list[Group] = []
    done: set[int] = set()
    left = list(starts)

    def add(group: Group) -> None:
        found.append(group)
        done.add(id(group))
        while left and level[id(left[0])] <= at and all(id(other) in done for other in before(left[0])):
            done.add(id(left[0]))
            found.append(left.pop(0))

    for at in range(-1, len(starts)):
        if at in waits:
            add(waits[at])
        others = [group for group in groups if id(group) not in number and level[id(group)] == at]
        for group in sorted(others, key=lambda group: needed.get(id(group), len(starts))):
            add(group)
    return found
