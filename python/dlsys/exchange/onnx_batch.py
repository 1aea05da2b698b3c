"""ONNX models for any batch, of models for several: a number that grows with the batch is computed from its extent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import GraphError

BATCHES = 8, 13, 23
"""The batches for which a model is written: by two a linear function is found, the third one proves it."""
_EXTENT = "batch_extent"


def with_batch(onnx: Any, models: Sequence[Any], name: str) -> Any:
    """The first of models for each of `BATCHES`, with a named extent in its inputs and outputs.

    Initial values of integers that are a + b * extent are computed by the model. Raises GraphError, which names the
    node, for a model that differs otherwise.
    """
    first = models[0]
    graphs = [model.graph for model in models]
    for nodes in zip(*(graph.node for graph in graphs), strict=False):
        same = [(n.op_type, len(n.input), [item.SerializeToString() for item in n.attribute]) for n in nodes]
        if any(other != same[0] for other in same):
            raise _depends(f"{nodes[0].op_type} {nodes[0].name}")
    if len({(len(graph.node), len(graph.initializer)) for graph in graphs}) > 1:
        raise GraphError("to_onnx: with another batch it is another graph")
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
                    is_batch = tuple(dim.dim_value for dim in own) == BATCHES
                    own[0].ClearField("dim_value")
                    if is_batch:
                        own[0].dim_param = name
    return first


def _depends(told: str) -> GraphError:
    return GraphError(f"to_onnx: the batch's extent decides what is computed: {told}")


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
        """Compute a value of the batch's extent, which is `arrays` for each of `BATCHES`."""
        first, second, _ = BATCHES
        shapes = {(array.shape, str(array.dtype)) for array in arrays}
        if len(shapes) > 1 or arrays[0].dtype != np.int64:
            raise _depends(f"the value {name}")
        by = (arrays[1] - arrays[0]) // (second - first)
        start = arrays[0] - by * first
        if any((start + by * extent != array).any() for extent, array in zip(BATCHES, arrays, strict=True)):
            raise _depends(f"the value {name}")
        factor, offset = (self._constant(value) for value in (by, start))
        product = self._free("batch_product")
        self.nodes.append(self._onnx.helper.make_node("Mul", [self._extent(), factor], [product], product))
        self.nodes.append(self._onnx.helper.make_node("Add", [product, offset], [name], f"{name}_of_batch"))

    def _extent(self) -> str:
        """The name of the batch's extent, a number."""
        if not self.nodes:
            for info in self._model.graph.input:
                dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
                if BATCHES[0] in dims:
                    axis = dims.index(BATCHES[0])
                    break
            self._name = self._free(_EXTENT)
            whole = self._free(f"{_EXTENT}_as_row")
            make = self._onnx.helper.make_node
            self.nodes.append(make("Shape", [info.name], [whole], whole, start=axis, end=axis + 1))
            self.nodes.append(make("Squeeze", [whole], [self._name], self._name))
        return self._name

    def _constant(self, value: np.ndarray) -> str:
        name = self._free("batch_constant")
        self.initial.append(self._onnx.numpy_helper.from_array(value, name))
        return name

    def _free(self, name: str) -> str:
        """A name that no other value has: `name`, or `name_1`, `name_2`, ..."""
        found, count = name, 0
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found
