"""Networks in integers of eight bits: weights for each channel, activations by ranges that batches have shown.

A value x is stored as q = clip(round(x / s) + z, 0, 255), uint8, with the step s and the zero point z of its range;
a weight w of output channel c as round(w / s_c), int8, with s_c = max |w| / 127. A product is then exact in int32,

    y = s s_c (sum_k q w_q - z sum_k w_q) + shift,

and the CPU's dot products of bytes compute it. After Jacob et al., "Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference" (2018), sections 2.1 and 2.4, but that what comes out is scaled in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..compiler import TypedGraph
from ..errors import GraphError
from ..graph import Shape
from ..nn import Module
from ..ops.conv import Conv2d, geometry_of
from ..ops.linalg import MatMul
from ..ops.quantization import most_of_bytes
from ..tensors import tensor
from .freezing import Value, _Freezing, _Product, frozen_graph
from .network import Network, traced

Range = tuple[float, float]
LEVELS, MOST = 255, 127  # steps of a value's range, and the largest weight


def quantize(model: Module, batches: Iterable[Any], feed_shapes: Mapping[str, Any] | None = None) -> Network:
    """The model in evaluation, as `freeze` makes it, whose products with known weights are of bytes.

    Matrix products and convolutions take uint8 activations and int8 weights and add up in int32, exactly; convolutions
    in groups, products of more terms than int32 holds, and all between, stay in float32. The network takes and returns
    float32 as the model does.

    Args:
        model: a Module, or a Network of `from_onnx` or `from_torch`.
        batches: inputs that are typical, each an array of the first batch's shape, or a tuple of as many as the model
            takes: what the ranges of activations are found by. A hundred images are enough.
        feed_shapes: names and shapes of a Module's arguments, see `freeze`; by default "x0", "x1", ... of the first
            batch's shapes.

    Raises GraphError where there is no batch, or one with NaN or infinity; and what `freeze` raises.
    """
    if not isinstance(model, Module):
        raise GraphError(f"quantize: takes a module, not {type(model).__name__}")
    values = [batch if isinstance(batch, (tuple, list)) else (batch,) for batch in batches]
    if not values:
        raise GraphError("quantize: there is no batch to find the ranges of activations by")
    if feed_shapes is None and not isinstance(model, Network):
        feed_shapes = {f"x{i}": np.asarray(value) for i, value in enumerate(values[0])}
    inputs, outputs, names = traced("quantize", model, feed_shapes)
    graph = frozen_graph("quantize", inputs, outputs)
    quantizing = _Quantizing(graph, names, _ranges(graph, inputs, values))
    found = quantizing.outputs()
    return Network(inputs, found, quantizing.named(found)).eval()


def _ranges(graph: TypedGraph, inputs: list[Node], batches: list[Any]) -> dict[Node, Range]:
    """The least and the largest element, and 0, of what products with weights read, over all batches."""
    read = {node.inputs[0]: None for node in graph.nodes if isinstance(node.op, (Conv2d, MatMul))}
    found = {node: (0.0, 0.0) for node in read if graph.dtypes[node] == "float32" and graph.size(node)}
    limits = ad.Executor([extremum(node) for node in found for extremum in (ad.min_op, ad.max_op)])
    for batch in batches:
        if len(batch) != len(inputs):
            raise GraphError(f"quantize: a batch has {len(batch)} arrays, the model takes {len(inputs)}")
        values = iter(limits.run(dict(zip(inputs, batch, strict=True)), True) if found else ())
        for node, (low, high) in found.items():
            least, most = float(next(values)), float(next(values))
            if not np.isfinite([least, most]).all():
                raise GraphError(f"quantize: {node.name} is not finite for a batch")
            found[node] = min(low, least), max(high, most)
    return found


class _Quantizing(_Freezing):
    """One graph on its way to a network of bytes."""

    def __init__(self, graph: TypedGraph, names: Mapping[Node, str], ranges: Mapping[Node, Range]) -> None:
        super().__init__(graph, names, 1.0, channels_last=False)
        self._ranges = ranges
        self._quantized: dict[Node, tuple[Node, float, int]] = {}

    def _made(self, product: _Product, shape: Shape) -> Value:
        conv = product.node
        geometry = geometry_of(conv)
        stride, padding, dilation, groups = geometry
        if groups > 1 or conv.inputs[0] not in self._ranges or not most_of_bytes(product.filters[0].size):
            return super()._made(product, shape)
        images, step, zero = self._bytes_of(conv.inputs[0])
        weights, steps = _weights(product.filters.reshape(len(product.filters), -1))
        if zero and any(padding):  # zeros around images are bytes of their own
            images, padding = ad.pad_op(images, [(0, 0), (0, 0), *((p, p) for p in padding)], zero), (0, 0)
        total = ad.conv2d_op(images, tensor(weights.reshape(product.filters.shape)), stride, padding, dilation)
        shift = 0.0 if product.shift is None else product.shift
        shift = shift - zero * step * steps * weights.sum(1, dtype=np.int64)
        return _scaled(total, step * steps, shift, (-1, 1, 1))

    def _matmul(self, node: Node, b: np.ndarray) -> Node | None:
        if node.inputs[0] not in self._ranges or not most_of_bytes(b.size // self._graph.shapes[node][-1]):
            return super()._matmul(node, b)
        rows, step, zero = self._bytes_of(node.inputs[0])
        weights, steps = _weights(b if node.matmul_attr_trans_B else b.T)
        total = ad.matmul_op(rows, tensor(np.ascontiguousarray(weights.T)))
        return _scaled(total, step * steps, -zero * step * steps * weights.sum(1, dtype=np.int64), (-1,))

    def _bytes_of(self, node: Node) -> tuple[Node, float, int]:
        """The value as bytes, made once, its step and its zero point."""
        if node not in self._quantized:
            low, high = self._ranges[node]
            step = float(np.float32((high - low) / LEVELS)) or 1.0
            zero = round(-low / step)
            self._quantized[node] = ad.quantize_linear_op(self._node(node), step, zero), step, zero
        return self._quantized[node]


def _weights(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows as int8, and the step of each, float64."""
    steps = np.abs(rows).max(1, initial=0).astype("float64") / MOST
    steps[steps == 0] = 1.0
    return np.rint(rows / steps[:, None]).astype("int8"), steps


def _scaled(total: Node, by: np.ndarray, shift: np.ndarray, shape: Shape) -> Node:
    """An int32 sum times a number for each channel plus another, in float32."""
    factor, offset = (tensor(x.astype("float32").reshape(shape)) for x in (by, shift))
    return ad.dequantize_linear_op(total, factor) + offset
