"""Graphs and modules as ONNX models. A primitive whose row says `onnx` is written as that operator of ONNX; the table
below has the others, and those with attributes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..compiler import TypedGraph, analyse, feed_type, unrolled
from ..compiler.base import needed
from ..deploy.network import Imported, traced
from ..devices import cpu
from ..errors import DataError, FeedError, GraphError, ShapeError
from ..graph import OPS, Node, Op, find_topo_sort, is_node, named
from ..nn import Module
from ..ops.elementwise import of_clip
from ..ops.loss import of_log_softmax, of_softmax
from ..ops.state import array_on
from ..ops.types import number_of
from ..serialization import as_path
from .onnx_import import BUFFERS, no_operator_for, onnx_package

OPSET = 18
"""The operator set of the models."""
FORMAT = 10
"""The version of the file's format, which programs of 2024 read."""
SIZES = 211, 223
"""The batches for which a model of any batch is built, to see that it is the same one."""


def to_onnx(
    nodes: Node | Sequence[Node] | Module, path: Any, feed_shapes: Mapping[Any, Any] | None = None
) -> Any:
    """The ONNX model that computes the nodes, or a module's outputs; also written to `path`, unless that is None.

    Args:
        nodes: what to compute. A module is written as it is in evaluation, with batch norm's running statistics and
            without dropout; its parameters and buffers are the model's initial values.
        path: of the file.
        feed_shapes: of nodes, a shape or an array for every variable that is needed; of a module, a shape or an array
            for every argument of `forward`, in order, by the name that the input shall have. Shapes are of float32
            unless the variable declares a dtype. A name in the place of an extent, ("batch", 3, 224, 224), stays open
            in the model. None for the shapes that an imported module states.

    Raises GraphError for operators that ONNX lacks, all at once, and where an extent that stays open decides what is
    computed; DataError for a path that cannot be written; FeedError, ShapeError, DTypeError as `Executor.infer_shape`
    does.
    """
    onnx = onnx_package("to_onnx")
    if not isinstance(feed_shapes, Mapping) and not (feed_shapes is None and isinstance(nodes, Imported)):
        raise FeedError(f"to_onnx: feed_shapes is a dictionary, not {type(feed_shapes).__name__}")
    symbols = {extent for shape in (feed_shapes or {}).values() for extent in _names_in(shape)}
    if len(symbols) > 1:
        raise ShapeError(f"to_onnx: one extent may have a name, the batch, not {', '.join(sorted(symbols))}")
    if symbols:
        (symbol,) = symbols
        model, other = (_model(onnx, nodes, _sized(feed_shapes, size), symbol, size) for size in SIZES)
        _require_equal(model.graph, other.graph, symbol)
    else:
        model = _model(onnx, nodes, feed_shapes)
    onnx.checker.check_model(model)
    if path is not None:
        try:
            onnx.save(model, os.fspath(as_path("to_onnx", path)))
        except OSError as error:
            raise DataError(f"to_onnx: {path} cannot be written: {error.strerror or error}") from None
    return model


def _names_in(shape: Any) -> list[str]:
    """The names in the place of extents."""
    return [extent for extent in shape if isinstance(extent, str)] if isinstance(shape, (tuple, list)) else []


def _sized(feed_shapes: Any, size: int) -> dict[Any, Any]:
    """The shapes with this extent in place of the name."""
    return {
        key: tuple(size if isinstance(n, str) else n for n in shape) if _names_in(shape) else shape
        for key, shape in feed_shapes.items()
    }


def _require_equal(graph: Any, other: Any, symbol: str) -> None:
    """Raises GraphError, which names what differs between the graphs of two batches."""
    parts = [(*each.input, *each.initializer, *each.node, *each.output) for each in (graph, other)]
    for one, another in zip_longest(*parts):
        if one != another:
            name = "the number of nodes" if one is None else one.name
            raise GraphError(f"to_onnx: the extent {symbol} decides what is computed: {name}")


def _model(onnx: Any, nodes: Any, feed_shapes: Any, symbol: str = "", size: int = 0) -> Any:
    """The model for known shapes, of which the extents of this size have a name and stay open."""
    names: dict[Node, str] = {}
    if isinstance(nodes, Module):
        inputs, nodes, names = traced("to_onnx", nodes, feed_shapes)
        feed_shapes = {node: node.attrs["shape"] for node in inputs}
    roots = [nodes] if is_node(nodes) or not isinstance(nodes, Sequence) else list(nodes)
    for node in roots:
        if not is_node(node):
            raise GraphError(f"to_onnx: takes nodes or a module, not {type(node).__name__}")
    roots = named(roots)
    order = find_topo_sort(roots)
    known = set(order)
    fed = {node: feed_type(node, value) for node, value in named(dict(feed_shapes)).items() if node in known}
    graph = unrolled(analyse(order, roots, fed, stays=lambda node: node.attrs.get("rule") in _STATED))
    return _Writing(onnx, [graph.leaf_of(node) for node in fed], names, symbol, size).model(graph)


class _Writing:
    """A model that is being written: the nodes and initial values so far, and the names of the values."""

    def __init__(
        self, onnx: Any, feeds: Sequence[Node], names: Mapping[Node, str], symbol: str, size: int
    ) -> None:
        """`names`: of leaves, in place of their own; `symbol`, `size`: see `_model`."""
        self._helper, self._to_tensor = onnx.helper, onnx.numpy_helper.from_array
        self._feeds, self._leaf_names, self._symbol, self._size = feeds, names, symbol, size
        self._nodes: list[Any] = []
        self._initial: list[Any] = []
        self._fixed: list[str] = []  # initial values that are not trained
        self._names: dict[Node, str] = {}
        self._taken: set[str] = set()
        self._part = ""
        self._inputs = [self._info(self._name(node), node) for node in feeds]

    def model(self, graph: TypedGraph) -> Any:
        """The model of the whole graph."""
        read = needed(graph.nodes, graph.roots, inputs=_read)
        writers = {node: _WRITERS.get(node.op) or node.op.onnx for node in graph.nodes if node in read}
        if text := no_operator_for((node.op.name, node.name) for node, write in writers.items() if not write):
            raise GraphError(f"to_onnx: {text}")
        for node, write in writers.items():
            # of "encoder.ff: Linear(8, 32)" the path, of "Linear(8, 32)" the class
            self._part = "" if node.part is None else f"{node.part.partition(': ')[0].partition('(')[0]}/"
            self._names[node] = write(self, node) if callable(write) else _plain(self, node)
        outputs = []
        for root in graph.outputs:
            if root is None:
                raise GraphError("to_onnx: a group of updates has no value")
            outputs.append(self._info(self.emit("Identity", [self.of(root)], name="output"), root))
        model = self._helper.make_model(
            self._helper.make_graph(self._nodes, "dlsys", self._inputs, outputs, self._initial),
            opset_imports=[self._helper.make_opsetid("", OPSET)], ir_version=FORMAT, producer_name="dlsys",
        )  # fmt: skip
        self._helper.set_model_props(model, {BUFFERS: "\n".join(self._fixed)})
        return model

    def of(self, node: Node) -> str:
        """The name of a node's value; of a leaf the first time its array becomes an initial value."""
        if node.op.immediate:
            number = number_of(node)
            return self.constant(number, str(number.dtype))
        if node not in self._names:
            name = self._name(node)
            if not node.tracks:
                self._fixed.append(name)
            self._initial.append(self._to_tensor(np.asarray(array_on(node, cpu())), name))
        return self._names[node]

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """The name of a constant."""
        name = self._free("constant")
        self._initial.append(self._to_tensor(np.asarray(value, dtype), name))
        return name

    def emit(self, kind: str, inputs: Sequence[str], name: str = "", unread: int = 0, **attributes: Any) -> str:
        """The name of an output of a new node of ONNX: of the first behind those `unread`."""
        before = [self._free("unread") for _ in range(unread)]
        output = self._free(name or kind.lower())
        label = f"{self._part}{output}"
        self._nodes.append(self._helper.make_node(kind, list(inputs), [*before, output], label, **attributes))
        return output

    def apply(self, node: Node, kind: str, *more: str, **attributes: Any) -> str:
        """The name of the result of ONNX's operator, of the node's inputs and then these."""
        return self.emit(kind, [*map(self.of, node.inputs), *more], **attributes)

    def cast(self, value: str, dtype: str) -> str:
        """A value in another dtype."""
        return self.emit("Cast", [value], to=self._code(dtype))

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """A value in another shape; the one extent that is of the batch is what remains."""
        of_batch = [axis for axis, extent in enumerate(shape) if self._size and extent and extent % self._size == 0]
        if len(of_batch) == 1 and 0 not in shape:
            shape = [-1 if axis in of_batch else extent for axis, extent in enumerate(shape)]
        return self.emit("Reshape", [value, self.constant(shape)], allowzero=1)

    def shape(self, extents: Sequence[int]) -> str:
        """The name of a shape, of which the batch's extent is that of an input."""
        if not self._size or self._size not in extents:
            return self.constant(extents)
        feed = next(node for node in self._feeds if self._size in node.shape)
        axis = feed.shape.index(self._size)
        batch = self.emit("Shape", [self.of(feed)], start=axis, end=axis + 1)
        parts = [batch if extent == self._size else self.constant([extent]) for extent in extents]
        return self.emit("Concat", parts, axis=0)

    def _code(self, dtype: str) -> int:
        """ONNX's number of a dtype."""
        return self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def _info(self, name: str, node: Node) -> Any:
        shape: list[Any] = list(node.shape)
        if self._size:
            shape = [n if n == 0 or n % self._size else self._symbol if n == self._size else None for n in shape]
        return self._helper.make_tensor_value_info(name, self._code(node.dtype), shape)

    def _name(self, node: Node) -> str:
        """A new name for the value of a leaf: the user's, or the operator's."""
        name = self._leaf_names.get(node) or node.name.removesuffix(f"_{node.id}")
        self._names[node] = self._free(name)
        return self._names[node]

    def _free(self, name: str) -> str:
        """A name that no other value has, taken from now on: `name`, or `name_1`, `name_2`, ..."""
        free, count = name, 0
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        self._taken.add(free)
        return free


Writer = Callable[[_Writing, Node], str]


def _plain(to: _Writing, node: Node) -> str:
    """Write a node as the operator `Op.onnx`. Bitwise operators of booleans have other names in ONNX."""
    return to.apply(node, node.op.onnx.removeprefix("Bitwise") if node.dtype == "bool" else node.op.onnx)


def _along_axis(kind: str) -> Writer:
    """Writes what ONNX has as an operator along one axis."""
    return lambda to, node: to.emit(kind, [to.of(node.inputs[1])], axis=node.attrs["axes"][0])


def _clip(to: _Writing, node: Node) -> str:
    """Write a Clip; a bound that is left out has the empty name."""
    bounds = (node.attrs["low"], node.attrs["high"])
    names = ["" if bound is None else to.constant(bound, node.dtype) for bound in bounds]
    return to.emit("Clip", [to.of(node.inputs[1]), *names])


_STATED = {of_softmax: _along_axis("Softmax"), of_log_softmax: _along_axis("LogSoftmax"), of_clip: _clip}
"""Writers of compositions that ONNX has as an operator, by the gradients that they state."""


def _read(node: Node) -> Sequence[Node]:
    """The nodes from which a node is written: of a composition that is one ONNX operator its inputs, not its steps."""
    return node.inputs[1:] if node.attrs.get("rule") in _STATED else node.inputs


def _full(to: _Writing, node: Node) -> str:
    return to.emit("Expand", [to.constant(node.attrs["value"], node.dtype), to.shape(node.shape)])


def _require_one_dtype(node: Node) -> None:
    """Raises GraphError for a product of bytes, whose sum is int32."""
    if node.dtype != node.inputs[0].dtype:
        raise GraphError(f"to_onnx: {node.name} is a product of bytes, which is not written")


def _matmul(to: _Writing, node: Node) -> str:
    """Write a product: Gemm for two matrices of which one is transposed, else MatMul behind Transposes."""
    _require_one_dtype(node)
    ranks = [len(value.shape) for value in node.inputs]
    stated = (node.matmul_attr_trans_A, node.matmul_attr_trans_B)
    swapped = [swap and rank > 1 for swap, rank in zip(stated, ranks, strict=True)]
    if ranks == [2, 2] and any(swapped):
        return to.apply(node, "Gemm", transA=int(swapped[0]), transB=int(swapped[1]))
    values, with_vector = [to.of(value) for value in node.inputs], 1 in ranks and any(swapped)
    if with_vector:  # as a matrix: onnxruntime 1.32 mistakes the product of a transposed matrix with a vector
        at = ranks.index(1)
        values[at] = to.emit("Unsqueeze", [values[at], to.constant([at])])
    for at, swap in enumerate(swapped):
        if swap:
            order = [*range(ranks[at] - 2), ranks[at] - 1, ranks[at] - 2]
            values[at] = to.emit("Transpose", [values[at]], perm=order)
    product = to.emit("MatMul", values)
    return to.reshaped(product, node.shape) if with_vector else product


def _geometry(node: Node) -> dict[str, Any]:
    """ONNX's attributes of a convolution, or a pooling, padded by as much at both ends."""
    named = {"strides": "stride", "dilations": "dilation", "group": "groups", "kernel_shape": "kernel"}
    stated = {name: node.attrs[attribute] for name, attribute in named.items() if attribute in node.attrs}
    return {**stated, "pads": node.attrs["padding"] * 2}


def _conv(to: _Writing, node: Node) -> str:
    _require_one_dtype(node)
    return to.apply(node, "Conv", kernel_shape=node.inputs[1].shape[2:], **_geometry(node))


def _conv_transposed(to: _Writing, node: Node) -> str:
    """Write the gradient with respect to images as a ConvTranspose, with the `output_padding` that gives their
    extents."""
    filters, output = node.inputs
    space = zip(
        node.shape[2:], output.shape[2:], filters.shape[2:],
        *(node.attrs[name] for name in ("stride", "padding", "dilation")), strict=True,
    )  # fmt: skip
    more = [wide - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for wide, n, k, s, p, d in space]
    values = [to.of(output), to.of(filters)]
    return to.emit("ConvTranspose", values, output_padding=more, **_geometry(node))


def _reduction(to: _Writing, node: Node) -> str:
    """Write a reduction over axes, which ONNX takes as an input."""
    axes, keep = to.constant(node.attrs["axes"]), int(node.attrs["keepdims"])
    return to.apply(node, node.op.onnx, axes, keepdims=keep, noop_with_empty_axes=1)


def _argmax(to: _Writing, node: Node) -> str:
    """Write an ArgMax along one axis; over all elements it is that of the flat tensor."""
    if len(axes := node.attrs["axes"]) == 1:
        return to.apply(node, "ArgMax", axis=axes[0], keepdims=int(node.attrs["keepdims"]))
    (value,) = node.inputs
    flat = to.reshaped(to.of(value), (math.prod(value.shape),))
    return to.reshaped(to.emit("ArgMax", [flat], axis=0, keepdims=0), node.shape)


def _argsort(to: _Writing, node: Node) -> str:
    """Write a TopK of all elements along the axis, of which only the places are read."""
    axis, (value,) = node.attrs["axis"], node.inputs
    name = to.cast(to.of(value), "uint8") if value.dtype == "bool" else to.of(value)
    count = to.constant([node.shape[axis]])
    return to.emit("TopK", [name, count], unread=1, axis=axis, largest=int(node.attrs["descending"]))


def _cumsum(to: _Writing, node: Node) -> str:
    """Write a CumSum; of small integers by way of int32: ONNX's has none."""
    value, small = to.of(node.inputs[0]), node.dtype == "uint8"
    flags: dict[str, Any] = {name: int(node.attrs[name]) for name in ("exclusive", "reverse")}
    value = to.cast(value, "int32") if small else value
    sums = to.emit("CumSum", [value, to.constant(node.attrs["axis"])], **flags)
    return to.cast(sums, node.dtype) if small else sums


def _slice(to: _Writing, node: Node) -> str:
    """Write a Slice with the starts, ends and steps of the axes that are cut."""
    extents, attrs = node.inputs[0].shape, node.attrs
    each = zip(range(len(extents)), extents, attrs["counts"], attrs["starts"], attrs["steps"], strict=True)
    least = np.iinfo("int64").min  # "before the first", where -1 would be the last
    cuts = [
        (start, least if (end := start + count * step) < 0 else end, axis, step)
        for axis, extent, count, start, step in each
        if (count, start, step) != (extent, 0, 1)
    ]
    return to.apply(node, "Slice", *map(to.constant, zip(*cuts, strict=True)))


def _pad(to: _Writing, node: Node) -> str:
    """Write a Pad with a constant. Raises GraphError for elements that are put apart or in reverse order."""
    attrs = node.attrs
    if any(step != 1 for step in attrs["steps"]):
        raise GraphError(f"to_onnx: no operator for {node.name}, which puts elements apart")
    each = zip(attrs["shape"], attrs["starts"], node.inputs[0].shape, strict=True)
    widths = [*attrs["starts"], *(extent - start - count for extent, start, count in each)]
    return to.apply(node, "Pad", to.constant(widths), to.constant(attrs["value"], node.dtype))


def _take(to: _Writing, node: Node) -> str:
    """Write a Gather or GatherElements, with indices as int64."""
    value, indices = map(to.of, node.inputs)
    if node.inputs[1].dtype not in ("int32", "int64"):
        indices = to.cast(indices, "int64")
    return to.emit(node.op.onnx, [value, indices], axis=node.attrs["axis"])


def _in_range(to: _Writing, node: Node) -> str:
    """Write indices as int64 within [0, extent): negative ones count from the end, others are clamped."""
    extent = max(node.attrs["extent"], 1)
    indices = to.cast(to.of(node.inputs[0]), "int64")
    zero, last = to.constant(0), to.constant(extent - 1)
    from_end = to.emit("Add", [indices, to.constant(extent)])
    counted = to.emit("Where", [to.emit("Less", [indices, zero]), from_end, indices])
    return to.emit("Min", [to.emit("Max", [counted, zero]), last])


def _one_hot(to: _Writing, node: Node) -> str:
    """Write a comparison: ONNX's operator takes negative indices for others."""
    indices = to.cast(to.of(node.inputs[0]), "int64")
    wide = to.emit("Unsqueeze", [indices, to.constant([len(node.shape) - 1])])
    return to.cast(to.emit("Equal", [wide, to.constant(range(node.attrs["classes"]))]), node.dtype)


_WRITERS: dict[Op, Writer] = {
    OPS["with_gradient"]: lambda to, node: _STATED[node.attrs["rule"]](to, node),
    OPS["full"]: _full,
    OPS["cast"]: lambda to, node: to.cast(to.of(node.inputs[0]), node.dtype),
    OPS["fmod"]: lambda to, node: to.apply(node, "Mod", fmod=1),
    OPS["reducesum"]: _reduction,
    OPS["reducemax"]: _reduction,
    OPS["argmax"]: _argmax,
    OPS["argsort"]: _argsort,
    OPS["cumsum"]: _cumsum,
    OPS["reshape"]: lambda to, node: to.reshaped(to.of(node.inputs[0]), node.shape),
    OPS["transpose"]: lambda to, node: to.apply(node, "Transpose", perm=node.attrs["axes"]),
    OPS["broadcast_shape"]: lambda to, node: to.apply(node, "Expand", to.shape(node.shape)),
    OPS["concatenate"]: lambda to, node: to.apply(node, "Concat", axis=node.attrs["axis"]),
    OPS["slice"]: _slice,
    OPS["place"]: _pad,
    OPS["take"]: _take,
    OPS["take_along_axis"]: _take,
    OPS["in_range"]: _in_range,
    OPS["one_hot"]: _one_hot,
    OPS["matmul"]: _matmul,
    OPS["conv2d"]: _conv,
    OPS["conv2d_input_gradient"]: _conv_transposed,
    OPS["max_pool2d"]: lambda to, node: to.apply(node, "MaxPool", **_geometry(node)),
    OPS["avg_pool2d"]: lambda to, node: to.apply(node, "AveragePool", count_include_pad=1, **_geometry(node)),
}
"""By primitive what emits ONNX's operators for a node, and returns the result's name."""
