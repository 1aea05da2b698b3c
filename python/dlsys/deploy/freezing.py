"""Networks for inference alone: what depends on parameters only is computed once, and lies as the kernels read it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..compiler import TypedGraph, analyse, unrolled, value_inputs
from ..devices import cpu
from ..errors import GraphError
from ..graph import OPS, Node, Shape, find_topo_sort, is_node
from ..nn import Module
from ..ops.conv import geometry_of
from ..ops.state import array_on
from ..ops.types import number_of
from ..tensors import tensor
from . import channels_last
from .channels_last import Last
from .network import Network, traced
from .operators import FIRST
from .panels import product


def freeze(model: Module, feed_shapes: Mapping[str, Any] | None = None) -> Network:
    """The model in evaluation, as a network without parameters.

    Batch norm becomes part of the convolution before it, dropout is gone, and other values that depend on parameters
    alone are computed once. Images are stored with channels last, (N, H, W, C), from one convolution to the next;
    matrices and filters are stored in the panels that this CPU's kernels read. Convolutions of 3 x 3 use Winograd's
    method where it is faster: an infinity or NaN in an image then reaches the 4 x 4 results around it.
    Later changes of the model's parameters do not change the network. Its values are buffers, and so in `state_dict`,
    under the names of the parameters that they were computed from.

    Args:
        model: a Module.
        feed_shapes: a shape or an array for each argument of `forward`, in order; the keys become the inputs' names.
            None for those that an imported model states.

    Raises GraphError for a network that changes state; FeedError, ShapeError, DTypeError as `to_onnx` does.
    """
    inputs, outputs, names = traced("freeze", model, feed_shapes)
    given = {node: (node.attrs["shape"], node.attrs["dtype"]) for node in inputs}
    graph = unrolled(analyse(find_topo_sort(outputs), outputs, given))  # panels of a loop's constants are made now, too
    if graph.updates:
        raise GraphError(f"freeze: the network assigns {graph.updates[0][0].name}")
    freezing = _Freezing(graph, names, channels_last=True)
    found = freezing.outputs()
    if not freezing.gains():
        freezing = _Freezing(graph, names, channels_last=False)
        found = freezing.outputs()
    return Network(inputs, found, freezing.named(found)).eval()


_CHANGES = {
    OPS["add"]: ("shift", np.positive), OPS["sub"]: ("shift", np.negative),
    OPS["mul"]: ("scale", np.positive), OPS["div"]: ("scale", np.reciprocal),
}  # fmt: skip
"""The operators of a product and a known operand b that change its filters: how, and by which function of b."""


class _Product:
    """A convolution and what is added to its channels, which are known numbers; made a node when somebody reads it."""

    def __init__(self, node: Node, filters: np.ndarray, shift: np.ndarray | None = None) -> None:
        self.node, self.filters, self.shift = node, filters, shift

    def scaled(self, by: np.ndarray) -> _Product:
        """The product times a number for each channel."""
        filters = self.filters * by.reshape(-1, 1, 1, 1)
        return _Product(self.node, filters, None if self.shift is None else self.shift * by)

    def shifted(self, by: np.ndarray) -> _Product:
        """The product plus a number for each channel."""
        return _Product(self.node, self.filters, by if self.shift is None else self.shift + by)


Value = Any
"""An `np.ndarray` that is known, a `_Product`, images `Last`, or a node."""


class _Freezing:
    """One graph on its way to a frozen one."""

    def __init__(self, graph: TypedGraph, names: Mapping[Node, str], channels_last: bool) -> None:
        """`names`: of parameters and buffers."""
        self._graph, self._takes_last = graph, channels_last
        self._saved, self._moved = 0.0, 0  # operations that images NHWC save, and bytes that this order has moved
        self._users = Counter(value for node in graph.nodes for value in value_inputs(node))
        self._users.update(node for node in graph.outputs if node is not None)
        self._now: dict[Node, Value] = {}
        self._leaves: dict[Node, Node] = {}
        self._turned: dict[Node, Node] = {}
        self._names = dict(names)  # of what is known that of the first parameter from which it is computed

    def outputs(self) -> list[Node]:
        """The outputs of the frozen graph."""
        for node in self._graph.nodes:
            inputs = [number_of(x) if x.op.immediate else self._value(x) for x in node.inputs]
            known = [value for value in inputs if isinstance(value, np.ndarray)]
            if len(known) == len(inputs):
                if name := next((self._names[x] for x in node.inputs if x in self._names), None):
                    self._names[node] = name
                self._now[node] = node.op.numpy(node, known)
            else:
                found = self._product(node, inputs)
                found = self._in_last(node) if found is None else found
                self._now[node] = self._plain(node) if found is None else found
        return [self._node(node) for node in self._graph.outputs if node is not None]

    def named(self, outputs: list[Node]) -> list[Node]:
        """The leaves of the frozen graph that are values of the model, by their names."""
        own = {name for weight in self._names.values() for name in (weight, _bias(weight))}
        return [node for node in find_topo_sort(outputs) if node.op.leaf and node.name in own]

    def _value(self, node: Node) -> Value:
        if node not in self._now:
            self._now[node] = np.asarray(array_on(node, cpu())) if node.op.leaf else node
        return self._now[node]

    def _settled(self, node: Node) -> Value:
        """The value, of a product what is made of it."""
        value = self._value(node)
        if isinstance(value, _Product):
            value = self._now[node] = self._made(value, node.shape)
        return value

    def _made(self, product: _Product, shape: Shape) -> Value:
        """The node of a product: a convolution NHWC where that is faster, else NCHW, plus what is added to its
        channels."""
        conv, filters, shift = product.node, product.filters, product.shift
        images = conv.inputs[0].shape
        name = self._names.get(conv.inputs[1])
        bias = None if name is None else _bias(name)
        given = conv, filters, images, shape, name
        of_last = channels_last.convolution(*given) if self._takes_last else None
        if of_last is not None:
            self._saved += of_last.saved
            found = of_last.of(self._last(conv.inputs[0]))
            return Last(found if shift is None else found + tensor(shift, name=bias))
        found = ad.conv2d_op(self._node(conv.inputs[0]), tensor(filters, name=name), *geometry_of(conv))
        return found if shift is None else found + tensor(shift.reshape(-1, 1, 1), name=bias)

    def _node(self, node: Node) -> Node:
        """The value as a node: of what is known a leaf, of images NHWC those NCHW, each made once."""
        value = self._settled(node)
        if is_node(value):
            return value
        if node not in self._leaves:
            known = isinstance(value, np.ndarray)
            name = self._names.get(node)
            self._leaves[node] = tensor(value, name=name) if known else ad.transpose_op(value.node, FIRST)
            self._moved += 0 if known else self._bytes(node)
        return self._leaves[node]

    def _last(self, node: Node) -> Node:
        """The value, images or what is broadcast to them, in the order NHWC."""
        value = self._settled(node)
        if isinstance(value, Last) or node.op.immediate:
            return value.node if isinstance(value, Last) else node
        if node not in self._turned:
            self._turned[node] = channels_last.turned(value, node.shape, self._names.get(node))
            self._moved += 0 if isinstance(value, np.ndarray) else self._bytes(node)
        return self._turned[node]

    def _in_last(self, node: Node) -> Value | None:
        """The node computed of images NHWC, where one of its inputs are such."""
        if not any(isinstance(self._settled(x), Last) for x in node.inputs if len(x.shape) == 4):
            return None
        if node.op.kind == "join" and not all(isinstance(self._settled(x), Last) for x in node.inputs):
            return None
        make = channels_last.followed(node, node.shape)
        if make is None:
            return None
        self._moved += self._bytes(node) if node.op.kind == "join" else 0  # channels NCHW lie one behind another
        return make([self._last(x) for x in node.inputs])

    def _bytes(self, node: Node) -> int:
        return math.prod(node.shape) * np.dtype(node.dtype).itemsize

    def gains(self) -> bool:
        """Whether the order NHWC saves convolutions more time than transposes and joins cost, or nothing has it."""
        return self._saved >= self._moved * channels_last.BYTE

    def _plain(self, node: Node) -> Node:
        """The node applied to what its inputs have become; itself where they stayed."""
        inputs = [self._node(value) for value in node.inputs]
        if not inputs or all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            return node
        return node.op(*inputs, **node.attrs)

    def _product(self, node: Node, inputs: list[Value]) -> Value | None:
        """The node as a product whose other operand is known, or as a change of one; None for others."""
        if node.op is OPS["conv2d"] and isinstance(inputs[1], np.ndarray):
            return _Product(node, inputs[1])
        if node.op is OPS["matmul"] and isinstance(inputs[1], np.ndarray):
            shape, is_plain = node.shape, inputs[1].ndim == 2 and not node.matmul_attr_trans_A
            return self._matmul(node, inputs[1]) if is_plain and len(shape) > 1 and 0 not in shape else None
        change = _CHANGES.get(node.op)
        if change is None or not any(isinstance(value, _Product) for value in inputs):
            return None
        at = next(i for i, value in enumerate(inputs) if isinstance(value, _Product))
        if self._users[node.inputs[at]] > 1 or inputs[at].filters.dtype.kind != "f":
            return None
        channels = len(inputs[at].filters)
        other = inputs[1 - at]
        if not isinstance(other, np.ndarray) or (at == 1 and not node.op.commutative):
            return None
        with np.errstate(divide="ignore"):
            by = change[1](other)
        if not (np.isfinite(other).all() and np.isfinite(by).all()):
            return None  # times a zero among the filters it would make another number
        per_channel = other.size == 1 or (other.shape[-3:] == (channels, 1, 1) and other.size == channels)
        if not per_channel:
            return None
        each = np.broadcast_to(by.reshape(-1), (channels,))
        return inputs[at].shifted(each) if change[0] == "shift" else inputs[at].scaled(each)

    def _matmul(self, node: Node, b: np.ndarray) -> Node | None:
        """The product of rows with a known matrix, from panels where kernels would pack it."""
        if b.dtype != np.float32:
            return None
        matrix = b.T if node.matmul_attr_trans_B else b
        rows = math.prod(node.shape[:-1])
        return product(self._node(node.inputs[0]), matrix, rows, self._names.get(node.inputs[1]))


def _bias(weight: str) -> str:
    """The name of a bias beside a weight."""
    return f"{weight.rpartition('.')[0]}.bias".lstrip(".")
