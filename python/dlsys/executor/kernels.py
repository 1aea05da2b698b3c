"""From a group of nodes to the kernel that `tvm_op` builds for it."""

from __future__ import annotations

from typing import Any

from .. import compute, tvm_op
from ..graph import Node
from ..passes import Group, TypedGraph


def kernel_spec(group: Group, graph: TypedGraph, in_place: bool) -> tvm_op.KernelSpec:
    """What `tvm_op.build` must know to make the group's kernel, the same for all groups that compute the same.

    The kernel takes `group.inputs`, then `group.outputs`; `in_place`: see `KernelSpec`.
    """
    shapes, dtypes = graph.shapes, graph.dtypes
    number = {value: i for i, value in enumerate([*group.inputs, *group.nodes])}
    # What each node reads: the number of an input or node, or the shape that alone is read.
    reads = [
        tuple(
            (shapes[value], dtypes[value]) if i in node.op.shape_only else number[value]
            for i, value in enumerate(node.inputs)
        )
        for node in group.nodes
    ]
    key = tuple(
        (node.op.name, _attributes(node), read, shapes[node], dtypes[node])
        for node, read in zip(group.nodes, reads, strict=True)
    )
    outputs = tuple(number[node] for node in group.outputs)

    def te(*parameters: compute.Tensor) -> Any:
        values = list(parameters)
        for node, read in zip(group.nodes, reads, strict=True):
            inputs = [values[r] if isinstance(r, int) else compute.placeholder(*r, "shape") for r in read]
            values.append(node.op.te(node, inputs, shapes[node], dtypes[node]))
        return tuple(values[i] for i in outputs)

    return tvm_op.KernelSpec(
        name=group.name,
        key=(key, outputs),
        inputs=tuple((shapes[value], dtypes[value]) for value in group.inputs),
        te=te,
        in_place=in_place,
        outputs=tuple((shapes[node], dtypes[node]) for node in group.outputs),
    )


def _attributes(node: Node) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, repr(value)) for key, value in node.attrs.items()))
