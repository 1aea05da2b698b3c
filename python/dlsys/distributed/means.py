"""Means over the ranks as nodes of a graph: of each gradient of an optimizer, and of losses and metrics.

An optimizer asks `optim.averages` for the means of its gradients: this module is registered there. A pass, registered
in the compiler, joins the values of independent means to *buckets*, each of which travels as one message: a concat of
them is exchanged, and the means are slices of the result. Each bucket reads the one before, so all ranks exchange them
in the same order, whatever order their kernels have.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..compiler import extend
from ..compiler.base import Change, TypedGraph, nbytes_of, rewrite, size_of
from ..errors import CommunicationError
from ..graph import FLOATS, Node, Op, register
from ..ops import concatenate_op, copy_op, reshape_op, slice_op
from ..ops.state import array_on
from ..optim import Optimizer, averages
from ..scopes import scopes
from ..tensors.backward import set_gradient
from ..tensors.evaluate import evaluate
from .communicators import Alone
from .group import all_gather, all_reduce, broadcast, group, size, using

_numbers = itertools.count()


class _Mean(Op):
    """The mean over the ranks of the first input; another one is read so that it is exchanged before."""

    dtypes = FLOATS
    apart: ClassVar[Mapping[int, tuple[str, ...]]] = {1: FLOATS}
    by_numpy = True

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        total = all_reduce(np.asarray(inputs[0]))
        return np.divide(total, size(), dtype=total.dtype)


class MeanOverRanks(_Mean):
    """y = the mean over the ranks r of x_r: (S) -> (S). Its gradient is the mean of theirs."""

    name = "mean_over_ranks"
    never = "processes exchange its values: only a plan on the CPU does so"

    def replacement(self, node: Node) -> Node | None:
        return node.inputs[0] if size() == 1 else None

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mean_over_ranks(output_grad)]


class _Bucket(_Mean):
    name = "bucket"


MEAN_OVER_RANKS, BUCKET = register(MeanOverRanks()), _Bucket()


def mean_over_ranks(x: Node) -> Node:
    """The mean of x over all ranks, which all get, with the same bits. All ranks must evaluate the same nodes, made in
    the same order."""
    numbers = _numbers if scopes.recording is None else scopes.recording.numbers
    return MEAN_OVER_RANKS(x, order=next(numbers))


def in_buckets(graph: TypedGraph) -> TypedGraph:
    """The graph with a bucket, and slices of it, in the place of means that do not depend on each other."""
    if not any(isinstance(node.op, MeanOverRanks) for node in graph.nodes):
        return graph
    depth: dict[Node, int] = {}  # of each node the means on the longest path to it, itself with them
    for node in graph.nodes:
        before = max((depth.get(value, 0) for value in node.inputs), default=0)
        depth[node] = before + isinstance(node.op, MeanOverRanks)
    nodes, bucket_of = list[Node](), dict[Node, list[Node]]()
    for level in range(max(depth.values()) + 1):
        nodes += [node for node in graph.nodes if depth[node] == level and not isinstance(node.op, MeanOverRanks)]
        found = (node for node in graph.nodes if depth[node] == level + 1 and isinstance(node.op, MeanOverRanks))
        for bucket in _cut(found):
            bucket_of.update(dict.fromkeys(bucket, bucket))
            nodes += bucket
    origins, parts, latest = dict[Node, Node](), dict[Node, Node](), list[Node]()

    def rule(node: Node, typed: TypedGraph) -> Change | None:
        if not isinstance(node.op, MeanOverRanks):
            return None
        old = origins.get(node, node)
        if old not in parts:
            sent = [typed.current.get(member.inputs[0], member.inputs[0]) for member in bucket_of[old]]
            alone = len(sent) == 1
            if alone:
                joined = copy_op(sent[0]) if sent[0].op.constant else sent[0]
            else:
                joined = concatenate_op([reshape_op(x, (-1,)) for x in sent], 0)
            bucket, begin = Node(BUCKET, [joined, *latest], {}, f"bucket_{len(set(parts.values()))}"), 0
            latest[:] = [bucket]
            for member in bucket_of[old]:
                end = begin + size_of(member)
                part = bucket if alone else slice_op(bucket, slice(begin, end))
                parts[member], begin = reshape_op(part, member.shape), end
        return parts[old], f"in a bucket of {len(bucket_of[old])}"

    return rewrite(replace(graph, nodes=tuple(nodes)), rule, origins, name="buckets")


def _cut(found: Iterable[Node]) -> list[list[Node]]:
    """The means in buckets of one dtype, each of the group's size or a little more, in the order of their making."""
    buckets, full = list[list[Node]](), group().bucket_bytes
    for node in sorted(found, key=lambda node: (node.dtype, node.attrs["order"])):
        last = buckets[-1] if buckets else []
        alike = last and last[0].dtype == node.dtype
        if alike and sum(nbytes_of(member) for member in last) < full:
            last.append(node)
        else:
            buckets.append([node])
    return buckets


_known: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # that all ranks have begun with rank 0's parameters and state


def mean_of_gradients(optimizer: Optimizer, gradients: Sequence[Node]) -> list[Node]:
    """The gradients' means over the ranks. The first time all ranks get rank 0's parameters and state."""
    if size() == 1:
        return list(gradients)
    if optimizer not in _known:
        synchronize(optimizer.parameters, optimizer)
    return [mean_over_ranks(gradient) for gradient in gradients]


@contextlib.contextmanager
def averaged(optimizer: Optimizer) -> Iterator[None]:
    """Leaves the means over the ranks in the `grad` of the optimizer's parameters; inside, `clip_grad_norm_` and the
    optimizer's `step` take them as they are."""
    if size() > 1:
        gradients: dict[Any, Any] = {p: p.grad for p in optimizer.parameters if p.grad is not None}
        means = mean_of_gradients(optimizer, [*gradients.values()])
        for parameter, mean in zip(gradients, means, strict=True):
            set_gradient(parameter, mean)
        if scopes.recording is None:
            evaluate(means)  # now, as long as there are other ranks
    with using(Alone()) if size() > 1 else contextlib.nullcontext():
        yield


def synchronize(values: Iterable[Any], optimizer: Optimizer | None = None) -> None:
    """Give all ranks rank 0's values of parameters and buffers, and of an optimizer's state. Raises CommunicationError,
    on all ranks, where they differ in number, shape or dtype."""
    found = [*values]
    if optimizer is not None:
        _known.add(optimizer)
        found += [value for state in optimizer.state.values() for value in state.values()]
    if size() == 1 or not (found := list(dict.fromkeys(found))):
        return
    types = "\n".join(f"{value.dtype} {list(value.shape)}" for value in found)
    own = np.frombuffer(hashlib.sha256(types.encode()).digest()[:8], np.int64)
    for rank, other in enumerate(all_gather(own) != broadcast(own)):
        if other:
            raise CommunicationError(f"rank {rank} of {size()} has parameters of other shapes than rank 0")
    for value in found:
        ctx = value.device
        value.value = broadcast(np.asarray(value))
        array_on(value.node, ctx)


extend(in_buckets)
averages.mean, averages.count = mean_of_gradients, size
