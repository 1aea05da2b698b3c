"""Networks, and ONNX models, for any batch: a graph is made for some batches, and what differs between them is stated
without the batch. `any_batch` does so for what is imported and for what is frozen, `with_batch` for a model of ONNX.
Shapes have a name in the batch's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..devices import cpu
from ..errors import GraphError, ShapeError
from ..graph import find_topo_sort
from ..ops.inputs import Full
from ..ops.shape import BroadcastShape, Reshape
from ..tensors import shape_of, tensor
from .network import Network

SIZES = 8, 13, 23
"""The batches for which graphs are made: what is computed with one differs between some of them."""
_ANOTHER = "with another batch it is another graph"
_EXTENT = "batch_extent"


def symbol_of(owner: str, shapes: Iterable[Any]) -> str | None:
    """The name that stands for the batch in shapes; None for shapes of numbers alone. Raises ShapeError for several
    names."""
    given = [shape for shape in shapes if isinstance(shape, (tuple, list))]
    names = sorted({extent for shape in given for extent in shape if isinstance(extent, str)})
    if len(names) > 1:
        raise ShapeError(f"{owner}: one extent may have a name, the batch, not {', '.join(names)}")
    return names[0] if names else None


def sized(shape: Any, size: int) -> Any:
    """A shape with this extent in place of a name; an array as it is."""
    if not isinstance(shape, (tuple, list)):
        return shape
    return tuple(size if isinstance(extent, str) else extent for extent in shape)


def any_batch(owner: str, make: Callable[[int], Network], shapes: Sequence[tuple[Any, ...]]) -> Network:
    """The network that `make` gives for a batch, for any. `shapes`: of its inputs, with a name for the batch. Raises
    GraphError, which names the node, where the batch's extent decides what is computed."""
    first = make(SIZES[0])
    order = find_topo_sort(first.outputs)
    inputs = {node: ad.Variable(node.name, None, node.attrs["dtype"]) for node in first.inputs}
    for size in SIZES[1:]:
        joined = _Joined(owner, inputs, list(zip(inputs.values(), shapes, strict=True)), size)
        other = find_topo_sort(make(size).outputs)
        if len(order) != len(other):
            raise GraphError(f"{owner}: {_ANOTHER}")
        twin = dict(zip(order, other, strict=True))
        for node, its in twin.items():
            if node not in inputs:
                if any(twin[a] is not b for a, b in zip(node.inputs, its.inputs, strict=False)):
                    raise joined.depends(node)
                joined.enter(node, its)
    outputs = [joined.now[node] for node in first.outputs]
    fixed = [joined.leaves.get(leaf, leaf) for leaf in first.fixed]
    return Network(list(inputs.values()), outputs, fixed, shapes).eval()


def depends(owner: str, told: str) -> GraphError:
    """The error for what is another one for another batch."""
    return GraphError(f"{owner}: the batch's extent decides what is computed: {told}")


class _Joined:
    """One graph for any batch on its way.

    Attributes:
        now: by the nodes of the first graph their nodes in it.
        leaves: by leaves of the first graph those that took their place.
    """

    def __init__(
        self, owner: str, inputs: Mapping[Node, Node], shaped: Sequence[tuple[Node, tuple[Any, ...]]], size: int
    ) -> None:
        """`shaped`: the inputs and their shapes; `size`: the batch of the second graph."""
        self.now: dict[Node, Node] = dict(inputs)
        self.leaves: dict[Node, Node] = {}
        self._owner, self._shaped, self._sizes = owner, shaped, (SIZES[0], size)

    def depends(self, node: Node) -> GraphError:
        """The error for a node that is another one for another batch."""
        return depends(self._owner, f"{node.op.name} {node.name}, made at {node.location}")

    def enter(self, node: Node, other: Node) -> None:
        """Enter a node, which is `other` in the second graph."""
        if node.op is not other.op or len(node.inputs) != len(other.inputs):
            raise self.depends(node)
        if node.cell is not None:
            self.now[node] = self._leaf(node, *(np.asarray(leaf.cell.on(cpu())) for leaf in (node, other)))
            return
        inputs = [self.now[value] for value in node.inputs]
        if _equal(node.attrs, other.attrs):
            kept = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            self.now[node] = node if kept else node.op.make(inputs, node.attrs)
            return
        rest = [{key: value for key, value in each.attrs.items() if key != "shape"} for each in (node, other)]
        if not _equal(*rest) or not isinstance(node.op, (Reshape, BroadcastShape, Full)):
            raise self.depends(node)
        shape, its = shape_of(node), shape_of(other)
        axis = self._axis(node, shape, its)
        if isinstance(node.op, Reshape):
            self.now[node] = ad.reshape_op(inputs[0], (*shape[:axis], -1, *shape[axis + 1 :]))
        else:
            value = inputs[0] if inputs else ad.full_op((), node.attrs["value"], node.attrs["dtype"])
            self.now[node] = self._repeated(node, value, shape, axis, its[axis])

    def _axis(self, node: Node, shape: Sequence[int], its: Sequence[int]) -> int:
        """The one axis in which two shapes differ."""
        differs = [axis for axis, (a, b) in enumerate(zip(shape, its, strict=False)) if a != b]
        if len(shape) != len(its) or len(differs) != 1:
            raise self.depends(node)
        return differs[0]

    def _leaf(self, node: Node, value: np.ndarray, its: np.ndarray) -> Node:
        """The leaf of a value that is the same for any batch; of one that repeats its first row a leaf of that,
        repeated."""
        equal_nan = value.dtype.kind == "f"
        if np.array_equal(value, its, equal_nan):
            return node
        axis = self._axis(node, value.shape, its.shape)
        row = np.ascontiguousarray(value.take([0], axis))
        if not all(np.array_equal(whole, np.broadcast_to(row, whole.shape), equal_nan) for whole in (value, its)):
            raise self.depends(node)
        leaf = self.leaves[node] = tensor(row, name=node.name)
        return self._repeated(node, leaf, value.shape, axis, its.shape[axis])

    def _repeated(self, node: Node, value: Node, shape: Sequence[int], axis: int, its: int) -> Node:
        """The value broadcast to a shape with the batch's extent along an axis."""
        if (shape[axis], its) != self._sizes:
            raise self.depends(node)
        return ad.broadcastto_op(value, self._of_batch(shape, axis))

    def _of_batch(self, shape: Sequence[int], axis: int) -> Node:
        """A node of a shape, with the batch's extent along an axis, whose values are not read."""
        for node, extents in self._shaped:
            for at, extent in enumerate(extents):
                if isinstance(extent, str):
                    key = tuple(slice(None) if place == at else 0 for place in range(len(extents)))
                    column = ad.reshape_op(node[key], (-1, *(1,) * (len(shape) - axis - 1)))
                    whole = tuple(1 if place == axis else extent for place, extent in enumerate(shape))
                    return ad.cast_op(column, "float32") + ad.full_op(whole, 0.0)
        raise AssertionError("no shape has a name")


def _equal(a: Any, b: Any) -> bool:
    """Whether attributes are the same; nodes among them by identity."""
    if isinstance(a, Node) or isinstance(b, Node):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and (a is b or bool(a == b) or (a != a and b != b))


def with_batch(onnx: Any, models: Sequence[Any], name: str) -> Any:
    """The first of models for each of `SIZES`, with a named extent in its inputs and outputs: by two a linear
    function is found, the third one proves it.

    Initial values of integers that are a + b * extent are computed by the model. Raises GraphError, which names the
    node, for a model that differs otherwise.
    """
    first = models[0]
    graphs = [model.graph for model in models]
    for nodes in zip(*(graph.node for graph in graphs), strict=False):
        same = [(n.op_type, len(n.input), [item.SerializeToString() for item in n.attribute]) for n in nodes]
        if any(other != same[0] for other in same):
            raise depends("to_onnx", f"{nodes[0].op_type} {nodes[0].name}")
    if len({(len(graph.node), len(graph.initializer)) for graph in graphs}) > 1:
        raise GraphError(f"to_onnx: {_ANOTHER}")
    taken = {value.name for value in [*graphs[0].initializer, *graphs[0].input]}
    taken.update(output for node in graphs[0].node for output in node.output)
    writing = _Writing(onnx, first, taken)
    kept = []
    for values in zip(*(graph.initializer for graph in graphs), strict=True):
        arrays = [onnx.numpy_helper.to_array(value) for value in values]
        if len({(str(array.dtype), array.shape, array.tobytes()) for array in arrays}) == 1:
            kept.append(values[0])
        else:
            writing.linear(values[0].name, arrays)
    every = [*writing.nodes, *graphs[0].node]
    del first.graph.node[:], first.graph.initializer[:]
    first.graph.node.extend(every)
    first.graph.initializer.extend([*kept, *writing.initial])
    for kind in ("input", "output"):
        for infos in zip(*(getattr(graph, kind) for graph in graphs), strict=True):
            extents = zip(*(info.type.tensor_type.shape.dim for info in infos), strict=True)
            for own in extents:
                if len({dim.dim_value for dim in own}) > 1:
                    is_batch = tuple(dim.dim_value for dim in own) == SIZES
                    own[0].ClearField("dim_value")
                    if is_batch:
                        own[0].dim_param = name
    return first


def free_name(taken: set[str], name: str) -> str:
    """A name that no other value has, taken from now on: `name`, or `name_1`, `name_2`, ..."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    taken.add(found)
    return found


class _Writing:
    """The nodes that compute numbers from the batch's extent.

    Attributes:
        nodes, initial: those nodes, and the constants that they read.
    """

    def __init__(self, onnx: Any, model: Any, taken: set[str]) -> None:
        self.nodes: list[Any] = []
        self.initial: list[Any] = []
        self._onnx, self._model, self._taken = onnx, model, taken

    def linear(self, name: str, arrays: Sequence[np.ndarray]) -> None:
        """Compute a value of the batch's extent, which is `arrays` for each of `SIZES`."""
        first, second, _ = SIZES
        shapes = {(array.shape, str(array.dtype)) for array in arrays}
        if len(shapes) > 1 or arrays[0].dtype != np.int64:
            raise depends("to_onnx", f"the value {name}")
        by = (arrays[1] - arrays[0]) // (second - first)
        start = arrays[0] - by * first
        if any((start + by * extent != array).any() for extent, array in zip(SIZES, arrays, strict=True)):
            raise depends("to_onnx", f"the value {name}")
        factor, offset = (self._constant(value) for value in (by, start))
        product = free_name(self._taken, "batch_product")
        self.nodes.append(self._onnx.helper.make_node("Mul", [self._extent(), factor], [product], product))
        self.nodes.append(self._onnx.helper.make_node("Add", [product, offset], [name], f"{name}_of_batch"))

    def _extent(self) -> str:
        """The name of the batch's extent, a number."""
        if not self.nodes:
            for info in self._model.graph.input:
                dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
                if SIZES[0] in dims:
                    axis = dims.index(SIZES[0])
                    break
            self._name = free_name(self._taken, _EXTENT)
            whole = free_name(self._taken, f"{_EXTENT}_as_row")
            make = self._onnx.helper.make_node
            self.nodes.append(make("Shape", [info.name], [whole], whole, start=axis, end=axis + 1))
            self.nodes.append(make("Squeeze", [whole], [self._name], self._name))
        return self._name

    def _constant(self, value: np.ndarray) -> str:
        name = free_name(self._taken, "batch_constant")
        self.initial.append(self._onnx.numpy_helper.from_array(value, name))
        return name
