"""Graphs and modules as ONNX models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..autodiff import Node
from ..compiler import TypedGraph, analyse, feed_type, unrolled
from ..compiler.base import needed
from ..deploy.network import Imported, require_known, traced
from ..devices import cpu
from ..errors import DataError, FeedError, GraphError, ShapeError
from ..graph import OPS, Op, find_topo_sort
from ..nn import Module
from ..ops.softmax import of_log_softmax, of_softmax
from ..ops.types import number_of
from ..serialization import as_path
from ..tensors import Tensor
from .onnx_import import BUFFERS, onnx_package

OPSET = 18
"""The operator set of the models."""
FORMAT = 10
"""The version of the file's format, which programs of 2024 read."""
SIZES = 211, 223
"""The batches for which a model of any batch is made, to see that it is the same one."""


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

    Raises GraphError for operators that ONNX has not, all at once, and where an extent that stays open decides what is
    computed; DataError for a path that cannot be written; FeedError, ShapeError, DTypeError as `Executor.infer_shape`
    does.
    """
    onnx = onnx_package("to_onnx")
    if not isinstance(feed_shapes, Mapping) and not (feed_shapes is None and isinstance(nodes, Imported)):
        raise FeedError(f"to_onnx: feed_shapes is a dictionary, not {type(feed_shapes).__name__}")
    if (symbol := _symbol_of(feed_shapes or {})) is None:
        model = _model(onnx, nodes, feed_shapes)
    else:
        model, other = (_model(onnx, nodes, _sized(feed_shapes, size), (symbol, size)) for size in SIZES)
        _require_equal(model, other, symbol)
    onnx.checker.check_model(model)
    if path is not None:
        try:
            onnx.save(model, os.fspath(as_path("to_onnx", path)))
        except OSError as error:
            raise DataError(f"to_onnx: {path} cannot be written: {error.strerror or error}") from None
    return model


def _symbol_of(feed_shapes: Mapping[Any, Any]) -> str | None:
    """The name that stands for an extent in shapes, or None. Raises ShapeError for several."""
    given = [shape for shape in feed_shapes.values() if isinstance(shape, (tuple, list))]
    names = sorted({extent for shape in given for extent in shape if isinstance(extent, str)})
    if len(names) > 1:
        raise ShapeError(f"to_onnx: one extent may have a name, the batch, not {', '.join(names)}")
    return names[0] if names else None


def _sized(feed_shapes: Any, size: int) -> dict[Any, Any]:
    """The shapes with this extent in place of the name."""
    return {
        key: tuple(size if isinstance(n, str) else n for n in shape) if isinstance(shape, (tuple, list)) else shape
        for key, shape in feed_shapes.items()
    }


def _require_equal(model: Any, other: Any, symbol: str) -> None:
    """Raises GraphError, which names what differs between models of two batches but for the names of values."""
    forms = []
    for graph in (model.graph, other.graph):
        place: dict[str, int] = {}
        form: list[tuple[str, Any]] = []
        for given in graph.input:
            place[given.name] = len(place)
            form.append((given.name, given.type.SerializeToString()))
        for value in graph.initializer:
            place[value.name] = len(place)
            form.append((value.name, (value.data_type, list(value.dims), value.raw_data)))
        for node in graph.node:
            read = [place.get(name) for name in node.input]
            place.update((name, len(place) + at) for at, name in enumerate(node.output))
            form.append((node.name, (node.op_type, read, [item.SerializeToString() for item in node.attribute])))
        form += [(given.name, given.type.SerializeToString()) for given in graph.output]
        forms.append(form)
    for (name, one), (_, another) in zip_longest(*forms, fillvalue=("", None)):
        if one != another:
            raise GraphError(f"to_onnx: the extent {symbol} decides what is computed: {name or 'the number of nodes'}")


def _model(onnx: Any, nodes: Any, feed_shapes: Any, batch: tuple[str, int] | None = None) -> Any:
    """The model for known shapes. `batch`: the name and the size of the extent that stays open."""
    names: dict[Node, str] = {}
    if isinstance(nodes, Module):
        inputs, nodes, names = traced("to_onnx", nodes, feed_shapes)
        feed_shapes = {node: node.attrs["shape"] for node in inputs}
    roots = [nodes] if isinstance(nodes, Node) or not isinstance(nodes, Sequence) else list(nodes)
    for node in roots:
        if not isinstance(node, Node):
            raise GraphError(f"to_onnx: takes nodes or a module, not {type(node).__name__}")
    order = find_topo_sort(roots)
    known = set(order)
    fed = {node: feed_type(node, value) for node, value in feed_shapes.items() if node in known}
    graph = unrolled(analyse(order, roots, fed, stays=lambda node: node.attrs.get("rule") in _STATED))
    return _Writing(onnx, graph, [graph.leaf_of(node) for node in fed], names, batch).model()


def free_name(taken: set[str], name: str) -> str:
    """A name that no other value has, taken from now on: `name`, or `name_1`, `name_2`, ..."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    taken.add(found)
    return found


class _Writing:
    """One graph on its way to a model."""

    def __init__(
        self,
        onnx: Any,
        graph: TypedGraph,
        feeds: Sequence[Node],
        names: Mapping[Node, str],
        batch: tuple[str, int] | None,
    ) -> None:
        """`names`: of leaves, in place of their own; `batch`: see `_model`."""
        self._symbol, self._size = batch or ("", 0)
        self._feeds = feeds
        self._helper, self._arrays, self.graph = onnx.helper, onnx.numpy_helper, graph
        self._nodes: list[Any] = []
        self._initial: list[Any] = []
        self._names: dict[Node, str] = {}
        self._own = names
        self._fixed: list[str] = []
        self._taken: set[str] = set()
        self._inputs = [self._info(self._name(node), node) for node in feeds]
        self._part = ""

    def model(self) -> Any:
        """The model of the whole graph."""
        read = needed(self.graph.nodes, self.graph.roots, inputs=_read)
        writers: dict[Node, Any] = {
            node: _WRITERS.get(node.op) or (_plain if node.op.onnx else None)
            for node in self.graph.nodes
            if node in read
        }
        require_known("to_onnx", ((node.op.name, node.name, write) for node, write in writers.items()))
        for node, write in writers.items():
            # of "encoder.ff: Linear(8, 32)" the path, of "Linear(8, 32)" the class
            self._part = "" if node.part is None else f"{node.part.partition(': ')[0].partition('(')[0]}/"
            self._names[node] = write(self, node)
        outputs = []
        for root in self.graph.outputs:
            if root is None:
                raise GraphError("to_onnx: a group of updates has no value")
            outputs.append(self._info(self.emit("Identity", [self.of(root)], name="output"), root))
        made = self._helper.make_graph(self._nodes, "dlsys", self._inputs, outputs, self._initial)
        opset = [self._helper.make_opsetid("", OPSET)]
        model = self._helper.make_model(made, opset_imports=opset, ir_version=FORMAT, producer_name="dlsys")
        self._helper.set_model_props(model, {BUFFERS: "\n".join(self._fixed)})
        return model

    def of(self, node: Node) -> str:
        """The name of a node's value; of a leaf the first time the value is put into the model."""
        if node not in self._names:
            name = self._name(node)
            if not (isinstance(node, Tensor) and node.wants_grad):
                self._fixed.append(name)
            self._initial.append(self._arrays.from_array(np.asarray(node.cell.on(cpu())), name))
        return self._names[node]

    def inputs(self, node: Node) -> list[str]:
        """The names of a node's inputs."""
        numbers = {x: number_of(x) for x in node.inputs if x.op.immediate}
        return [self.constant(numbers[x], str(numbers[x].dtype)) if x in numbers else self.of(x) for x in node.inputs]

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """The name of a constant."""
        name = free_name(self._taken, "constant")
        self._initial.append(self._arrays.from_array(np.asarray(value, dtype), name))
        return name

    def emit(self, kind: str, inputs: Sequence[str], name: str = "", unread: int = 0, **attributes: Any) -> str:
        """The name of an output of a new ONNX node: of the first behind those `unread`."""
        before = [free_name(self._taken, "unread") for _ in range(unread)]
        output = free_name(self._taken, name or kind.lower())
        label = f"{self._part}{output}"
        self._nodes.append(self._helper.make_node(kind, list(inputs), [*before, output], label, **attributes))
        return output

    def code(self, dtype: str) -> int:
        """ONNX's number of a dtype."""
        return self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def cast(self, value: str, dtype: str) -> str:
        """A value in another dtype."""
        return self.emit("Cast", [value], to=self.code(dtype))

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

    def _info(self, name: str, node: Node) -> Any:
        shape: list[Any] = list(node.shape)
        if self._size:
            open_extents = {self._size: self._symbol}
            shape = [open_extents.get(n) if n and n % self._size == 0 else n for n in shape]
        return self._helper.make_tensor_value_info(name, self.code(node.dtype), shape)

    def _name(self, node: Node) -> str:
        self._names[node] = name = free_name(self._taken, self._own.get(node, node.name))
        return name


Writer = Callable[[_Writing, Node], str]
"""Emits what computes a node, and returns the result's name."""

_WRITERS: dict[Op, Writer] = {}


def writer(*names: str) -> Callable[[Writer], Writer]:
    """Decorator: a function writes our operators of these names."""

    def enter(function: Writer) -> Writer:
        _WRITERS.update({OPS[name]: function for name in names})
        return function

    return enter


def _plain(to: _Writing, node: Node) -> str:
    """Write a node as `Op.onnx` says: ONNX's operators, each applied to the result of the one before. Bitwise operators
    of booleans have other names in ONNX."""
    first, *more = node.op.onnx.split()
    name = first.removeprefix("Bitwise") if node.dtype == "bool" else first
    found = to.emit(name, to.inputs(node))
    for kind in more:
        found = to.emit(kind, [found])
    return found


_STATED = {of_softmax: "Softmax", of_log_softmax: "LogSoftmax"}
"""By the gradients that they state, the compositions that ONNX has as an operator."""


def _read(node: Node) -> Sequence[Node]:
    """What is read to write a node: of a composition that is one operator its inputs, not its last step."""
    return node.inputs[1:] if node.attrs.get("rule") in _STATED else node.inputs


@writer("with_gradient")
def _stated(to: _Writing, node: Node) -> str:
    (axis,) = node.attrs["axes"]
    return to.emit(_STATED[node.attrs["rule"]], [to.of(node.inputs[1])], axis=axis)


writer("cast")(lambda to, node: to.cast(to.inputs(node)[0], node.dtype))
writer("fmod")(lambda to, node: to.emit("Mod", to.inputs(node), fmod=1))
writer("concatenate")(lambda to, node: to.emit("Concat", to.inputs(node), axis=node.attrs["axis"]))
writer("reshape")(lambda to, node: to.reshaped(to.of(node.inputs[0]), node.shape))
writer("broadcast_shape")(
    lambda to, node: to.emit("Expand", [*to.inputs(node), to.shape(node.shape)])
)


@writer("clip")
def _clip(to: _Writing, node: Node) -> str:
    """Writes a Clip; a bound that is left out has the empty name."""
    bounds = [
        "" if bound is None else to.constant(bound, node.dtype)
        for bound in (node.attrs["low"], node.attrs["high"])
    ]
    return to.emit("Clip", [*to.inputs(node), *bounds])


@writer("full")
def _full(to: _Writing, node: Node) -> str:
    shape, dtype = node.shape, node.dtype
    return to.emit("Expand", [to.constant(node.attrs["value"], dtype), to.shape(shape)])


def _require_one_dtype(to: _Writing, node: Node) -> None:
    """Raises GraphError for a product of bytes, whose sum is int32."""
    if node.dtype != node.inputs[0].dtype:
        raise GraphError(f"to_onnx: {node.name} is a product of bytes, which is not written")


@writer("matmul")
def _matmul(to: _Writing, node: Node) -> str:
    """Writes a product: Gemm for two matrices of which one is transposed, else MatMul behind Transposes."""
    values, shape = to.inputs(node), node.shape
    ranks = [len(value.shape) for value in node.inputs]
    given = (node.matmul_attr_trans_A, node.matmul_attr_trans_B)
    swapped = [swap and rank > 1 for swap, rank in zip(given, ranks, strict=True)]
    _require_one_dtype(to, node)
    if ranks == [2, 2] and any(swapped):
        return to.emit("Gemm", values, transA=int(swapped[0]), transB=int(swapped[1]))
    with_vector = 1 in ranks and any(swapped)
    if with_vector:  # as a matrix: onnxruntime 1.32 mistakes the product of a transposed matrix with a vector
        at = ranks.index(1)
        values[at] = to.emit("Unsqueeze", [values[at], to.constant([at])])
    for at, swap in enumerate(swapped):
        if swap:
            order = [*range(ranks[at] - 2), ranks[at] - 1, ranks[at] - 2]
            values[at] = to.emit("Transpose", [values[at]], perm=order)
    found = to.emit("MatMul", values)
    return to.reshaped(found, shape) if with_vector else found


def _geometry(node: Node) -> dict[str, Any]:
    """ONNX's attributes of a convolution, or a pooling, padded by as much at both ends."""
    named = {"strides": "stride", "dilations": "dilation", "group": "groups", "kernel_shape": "kernel"}
    found = {name: node.attrs[own] for name, own in named.items() if own in node.attrs}
    return {**found, "pads": node.attrs["padding"] * 2}


@writer("conv2d")
def _conv(to: _Writing, node: Node) -> str:
    _require_one_dtype(to, node)
    return to.emit("Conv", to.inputs(node), kernel_shape=node.inputs[1].shape[2:], **_geometry(node))


@writer("conv2d_input_gradient")
def _conv_transposed(to: _Writing, node: Node) -> str:
    """Writes the gradient with respect to images as a ConvTranspose, with the `output_padding` that gives their
    extents."""
    attrs, (filters, output) = node.attrs, to.inputs(node)
    space = zip(
        node.shape[2:], node.inputs[1].shape[2:], node.inputs[0].shape[2:],
        attrs["stride"], attrs["padding"], attrs["dilation"], strict=True,
    )  # fmt: skip
    more = [wide - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for wide, n, k, s, p, d in space]
    return to.emit("ConvTranspose", [output, filters], output_padding=more, **_geometry(node))


@writer("max_pool2d", "avg_pool2d")
def _pool(to: _Writing, node: Node) -> str:
    """Writes a MaxPool or AveragePool; averages count the padding."""
    given = _geometry(node)
    if node.op is OPS["avg_pool2d"]:
        given["count_include_pad"] = 1
    return to.emit(node.op.onnx, to.inputs(node), **given)


@writer("reducesum", "reducemax")
def _reduction(to: _Writing, node: Node) -> str:
    """Writes a reduction over axes, which ONNX takes as an input; Identity for no axes."""
    axes = node.attrs["axes"]
    if not axes:
        return to.emit("Identity", to.inputs(node))
    along = to.constant(axes)
    return to.emit(node.op.onnx, [*to.inputs(node), along], keepdims=int(node.attrs["keepdims"]))


@writer("argmax")
def _place(to: _Writing, node: Node) -> str:
    """Writes an ArgMax along one axis; over all elements it is that of the flat tensor."""
    (value,), axes, kind = to.inputs(node), node.attrs["axes"], node.op.onnx
    if len(axes) != 1:
        flat = to.reshaped(value, (math.prod(node.inputs[0].shape),))
        return to.reshaped(to.emit(kind, [flat], axis=0, keepdims=0), node.shape)
    return to.emit(kind, [value], axis=axes[0], keepdims=int(node.attrs["keepdims"]))


@writer("argsort")
def _argsort(to: _Writing, node: Node) -> str:
    """Writes a TopK of all elements along the axis, of which only the places are read."""
    axis, (value,) = node.attrs["axis"], to.inputs(node)
    if node.inputs[0].dtype == "bool":
        value = to.cast(value, "uint8")
    count = to.constant([node.shape[axis]])
    return to.emit("TopK", [value, count], unread=1, axis=axis, largest=int(node.attrs["descending"]))


@writer("sort")
def _sort(to: _Writing, node: Node) -> str:
    """Writes a GatherElements of the places in order."""
    return to.emit("GatherElements", [*to.inputs(node), _argsort(to, node)], axis=node.attrs["axis"])


@writer("cumsum")
def _cumsum(to: _Writing, node: Node) -> str:
    """Of small integers by way of int32: ONNX's has none."""
    value, dtype = to.of(node.inputs[0]), node.dtype
    exclusive, reverse, small = int(node.attrs["exclusive"]), int(node.attrs["reverse"]), dtype == "uint8"
    value = to.cast(value, "int32") if small else value
    found = to.emit("CumSum", [value, to.constant(node.attrs["axis"])], exclusive=exclusive, reverse=reverse)
    return to.cast(found, dtype) if small else found


writer("transpose")(lambda to, node: to.emit("Transpose", to.inputs(node), perm=node.attrs["axes"]))


@writer("slice")
def _slice(to: _Writing, node: Node) -> str:
    """Writes a Slice with the starts, ends and steps of the axes that are cut."""
    extents, attrs = node.inputs[0].shape, node.attrs
    each = zip(range(len(extents)), extents, attrs["counts"], attrs["starts"], attrs["steps"], strict=True)
    least = np.iinfo("int64").min  # "before the first", where -1 would be the last
    cuts = [
        (start, least if (end := start + count * step) < 0 else end, axis, step)
        for axis, extent, count, start, step in each
        if (count, start, step) != (extent, 0, 1)
    ]
    return to.emit("Slice", [*to.inputs(node), *map(to.constant, zip(*cuts, strict=True))])


@writer("place")
def _pad(to: _Writing, node: Node) -> str:
    """Writes a Pad with a constant. Raises GraphError for elements that are put apart or in reverse order."""
    attrs, counts = node.attrs, node.inputs[0].shape
    if any(step != 1 for step in attrs["steps"]):
        raise GraphError(f"to_onnx: no operator for {node.name}, which puts elements apart")
    each = zip(attrs["shape"], attrs["starts"], counts, strict=True)
    widths = [*attrs["starts"], *(extent - start - count for extent, start, count in each)]
    value = to.constant(attrs["value"], node.dtype)
    return to.emit("Pad", [*to.inputs(node), to.constant(widths), value])


@writer("take", "take_along_axis")
def _take(to: _Writing, node: Node) -> str:
    """Writes a Gather or GatherElements, with indices as int64."""
    value, indices = to.inputs(node)
    if node.inputs[1].dtype not in ("int32", "int64"):
        indices = to.cast(indices, "int64")
    return to.emit(node.op.onnx, [value, indices], axis=node.attrs["axis"])


@writer("in_range")
def _in_range(to: _Writing, node: Node) -> str:
    """Writes indices as int64 within [0, extent): negative ones count from the end, others are clamped."""
    extent = max(node.attrs["extent"], 1)
    indices = to.cast(to.inputs(node)[0], "int64")
    zero, last = to.constant(0), to.constant(extent - 1)
    from_end = to.emit("Add", [indices, to.constant(extent)])
    found = to.emit("Where", [to.emit("Less", [indices, zero]), from_end, indices])
    return to.emit("Min", [to.emit("Max", [found, zero]), last])


@writer("one_hot")
def _one_hot(to: _Writing, node: Node) -> str:
    """By comparing: ONNX's operator takes negative indices for others."""
    rank, (indices,) = len(node.shape), to.inputs(node)
    wide = to.emit("Unsqueeze", [to.cast(indices, "int64"), to.constant([rank - 1])])
    found = to.emit("Equal", [wide, to.constant(range(node.attrs["classes"]))])
    return to.cast(found, node.dtype)
