"""From a group of nodes to what its kernel is to compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import compute
from ..graph import Node, Shape
from ..kernels import KernelSpec
from ..ops.slicing import region_of
from .base import TypedGraph
from .fuse import Group


def kernel_spec(group: Group, graph: TypedGraph, in_place: bool, flat: bool = False) -> KernelSpec:
    """The specification by which `kernels.get` makes the group's kernel, the same for all groups that compute the same.

    The kernel takes `group.inputs`, then `group.outputs`; `in_place`: see `KernelSpec`. With `flat` it may take them
    with one axis in place of all, where it computes each element from those of its own index: then groups of other
    shapes have the same kernel, and its loop has no index to take apart, which TVM cannot always put together again. Of
    a slice it may take the input from the first element that is read, see `read_from`: `x[:, 0]` and `x[:, 1]` are one
    kernel.
    """
    dtypes = graph.dtypes
    if flat and (found := _strides(group, graph)) is not None:
        return _strided_spec(group, graph, found[1])
    shapes = (_flat_shapes(group, graph) if flat else None) or graph.shapes
    number = {value: i for i, value in enumerate([*group.inputs, *group.nodes])}
    # What each node reads: the number of an input or node, or the shape that alone is read.
    reads = [
        tuple(
            (graph.shapes[value], dtypes[value]) if i in node.op.shape_only else number[value]
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
            if node.op.name == "full":
                values.append(compute.full(shapes[node], node.attrs["value"], dtypes[node]))
                continue
            inputs = [values[r] if isinstance(r, int) else compute.placeholder(*r, "shape") for r in read]
            values.append(node.op.te(node, inputs, shapes[node], dtypes[node]))
        return tuple(values[i] for i in outputs)

    return KernelSpec(
        name=group.name,
        key=(key, outputs),
        inputs=tuple((shapes[value], dtypes[value]) for value in group.inputs),
        te=te,
        in_place=in_place,
        outputs=tuple((shapes[node], dtypes[node]) for node in group.outputs),
        flat=shapes is not graph.shapes,
    )


def read_from(group: Group, graph: TypedGraph) -> int:
    """The byte of its first input from which a group's flat kernel takes it."""
    found = _strides(group, graph)
    return 0 if found is None else found[0] * np.dtype(graph.dtypes[group.inputs[0]]).itemsize


def _strides(group: Group, graph: TypedGraph) -> tuple[int, tuple[int, ...]] | None:
    """Of a group that is a slice with no step backwards: the number of the first element read, and how many are stepped
    over along each axis of the result."""
    node = group.nodes[0]
    if node.op.name != "slice" or len(group.nodes) > 1:
        return None
    shape = graph.shapes[node.inputs[0]]
    region = region_of(node, shape)
    if any(step < 1 for step in region.steps):
        return None
    rows = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(start * row for start, row in zip(region.starts, rows, strict=True))
    return first, tuple(0 if axis is None else region.steps[axis] * rows[axis] for axis in region.axes)


def _strided_spec(group: Group, graph: TypedGraph, strides: tuple[int, ...]) -> KernelSpec:
    """The kernel of a slice with steps: its input as one axis, read by strides."""
    (value,), (node,) = group.inputs, group.nodes
    shape, dtype = graph.shapes[node], graph.dtypes[node]
    read = 1 + sum(stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True))
    return KernelSpec(
        name=group.name,
        key=("strided", strides, shape),
        inputs=(((read,), graph.dtypes[value]),),
        te=lambda x: compute.strided(x, strides, shape),
        outputs=((shape, dtype),),
    )


def _flat_shapes(group: Group, graph: TypedGraph) -> dict[Node, Shape] | None:
    """The shapes of a group's values with one axis each, if all have as many elements or one alone; else None."""
    shape = graph.shapes[group.outputs[0]]
    values = dict.fromkeys([*group.inputs, *group.nodes])
    if group.kind != "elementwise" or len(shape) < 2:
        return None
    if any(graph.shapes[value] != shape and graph.size(value) != 1 for value in values if value.op.name != "full"):
        return None
    size = math.prod(shape)
    return {value: (size if graph.shapes[value] == shape else 1,) for value in values}


def _attributes(node: Node) -> tuple[tuple[str, str], ...]:
    given = {"value": node.attrs["value"]} if node.op.name == "full" else node.attrs
    return tuple(sorted((key, repr(value)) for key, value in given.items()))
