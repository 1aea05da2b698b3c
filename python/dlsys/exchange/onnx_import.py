"""ONNX models as networks."""

from __future__ import annotations

import importlib
import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

from ..autodiff import Node, Parameter
from ..errors import DataError, DlsysError, GraphError, ShapeError
from ..graph import DTYPES, FLOATS
from ..ops.rules import shape_attribute
from ..storage import checked_size
from ..system import memory
from ..tensors import dtype_of, shape_of
from ..tensors import tensor as as_leaf
from . import onnx_indexing, onnx_layers, onnx_operators, onnx_sampling  # noqa: F401  # one table
from .batches import any_batch, sized, symbol_of
from .network import Folding, Network, Reader, Value, first_line, require_known

OLDEST, NEWEST = 13, 28
"""The first and the last of ONNX's operator sets that are read as they are; a model of an older one is converted
before, by ONNX."""
CONVERTED = 17
BUFFERS = "dlsys.buffers"
"""The property of a model of `to_onnx` that has the names of the values that are not trained, a line each."""
MOST_BYTES = 2**31
"""Of a model's file: protobuf reads no more. Values may lie in other files beside it."""
MOST_INLINED = 2**28
"""Bytes of a model's nodes when those of its functions stand in place of the calls."""
_MOST_LEVELS = 4  # of operators that ONNX defines by others, and these by others
_LARGE = 1024  # elements of a constant that is one leaf for all that read it, also where it is taken as it is
_STATISTICS = {"BatchNormalization": slice(3, 5)}
"""The inputs that are not trained."""


def onnx_package(function: str) -> Any:
    """The package `onnx`. Raises GraphError where it is not installed."""
    try:
        for part in ("inliner", "version_converter"):  # which `import onnx` may leave out
            importlib.import_module(f"onnx.{part}")
        return importlib.import_module("onnx")
    except ImportError:
        raise GraphError(f"{function} needs the package onnx: pip install 'dlsys[relax]'") from None


def from_onnx(
    model: Any, shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Network, dict[str, Parameter]]:
    """The network of an ONNX model, and its parameters by name.

    Args:
        model: a file's path, or an `onnx.ModelProto`. Operator sets 13 to 28 are read; older ones are converted.
        shapes: inputs' shapes by name; needed where the model leaves extents open. Where it has one name for them, as
            "batch", here or in the model, the network is for any batch.

    Initializers of floats with more than one element are parameters; batch norm's statistics, and what `to_onnx` has
    written as a buffer, are buffers; other initializers are constants. Values that depend only on constants and shapes
    are computed now, as far as `Folding` allows.

    Raises DataError, which names the file and the node, for a file that is no ONNX model; GraphError for unsupported
    operators, all of them in one message, or arguments; ShapeError for extents that are unknown or do not fit.
    """
    onnx = onnx_package("from_onnx")
    if shapes is not None and not isinstance(shapes, Mapping):
        raise ShapeError(f"from_onnx: shapes is a dictionary, not {type(shapes).__name__}")
    source = "from_onnx"
    if isinstance(model, (str, os.PathLike)):
        source = f"from_onnx: {os.fspath(model)}"
        model = _of_file(onnx, Path(model), source)
    elif not isinstance(model, onnx.ModelProto):
        raise DataError(f"from_onnx: takes a path or an onnx.ModelProto, not {type(model).__name__}")
    proto, given = _plain(onnx, model, source), dict(shapes or {})
    stated = {**_stated(proto), **given}
    names = {extent for shape in stated.values() for extent in shape if isinstance(extent, str)}
    if (symbol_of(source, given.values()) is None and len(names) != 1) or "" in names:
        return _Reading(onnx, proto, given, source).network()

    def of_size(size: int) -> Network:
        known = {name: sized(shape, size) for name, shape in stated.items()}
        return _Reading(onnx, proto, known, source).network()[0]

    made = any_batch(source, of_size, [tuple(shape) for shape in stated.values()])
    return made, dict(made.named_parameters())


def _stated(proto: Any) -> dict[str, tuple[Any, ...]]:
    """The shapes of a model's inputs where it states an extent or a name for each."""
    found = {}
    initial = {tensor.name for tensor in proto.graph.initializer}
    for info in proto.graph.input:
        shape = info.type.tensor_type.shape if info.type.HasField("tensor_type") else None
        if info.name not in initial and shape is not None and info.type.tensor_type.HasField("shape"):
            found[info.name] = _extents(shape)
    return found


def _extents(shape: Any) -> tuple[Any, ...]:
    """A shape's numbers and names; "" for an extent that has neither."""
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in shape.dim)


def _of_file(onnx: Any, path: Path, source: str) -> Any:
    """The model of a file, with the values that lie in other files. Raises DataError."""
    checked_size(path, MOST_BYTES)
    try:
        proto = onnx.load(os.fspath(path), load_external_data=False)
        apart = [tensor for tensor in _tensors(proto) if onnx.external_data_helper.uses_external_data(tensor)]
        needed = 0
        for tensor in apart:
            size = _bytes_of(onnx, tensor, source)
            needed += size
            stated = {item.key: item.value for item in tensor.external_data}
            if "length" not in stated:
                tensor.external_data.add(key="length", value=str(size))
            elif stated["length"] != str(size):
                told = f"{tensor.name} has {size} bytes by its shape, and {stated['length']} in its file"
                raise DataError(f"{source}: {told}")
        if needed > (most := memory() // 2):
            raise DataError(f"{source}: its values have {needed} bytes, {most} is the most that is read")
        for tensor in apart:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, os.fspath(path.parent))
    except DlsysError:
        raise
    except Exception as error:  # noqa: BLE001  # of protobuf's many kinds
        raise DataError(f"{source} is no ONNX model: {first_line(error)}") from None
    return proto


def _tensors(proto: Any) -> Iterator[Any]:
    """A model's tensors: the graph's, and those of attributes of its nodes and of its functions'."""
    yield from proto.graph.initializer
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in nodes:
            for item in node.attribute:
                if item.HasField("t"):
                    yield item.t


def _bytes_of(onnx: Any, tensor: Any, owner: str) -> int:
    """The bytes of a tensor's numbers by its shape and dtype. Raises DataError for what is none, GraphError for a dtype
    that is not ours."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise DataError(f"{owner} is of dtype {tensor.data_type}, of which ONNX knows nothing") from None
    if str(dtype) not in DTYPES:
        raise GraphError(f"{owner} is {dtype}, not one of {', '.join(DTYPES)}")
    if min(tensor.dims, default=0) < 0:
        raise DataError(f"{owner} has the shape {tuple(tensor.dims)}")
    return math.prod(tensor.dims) * dtype.itemsize


def _opset(proto: Any) -> int:
    return next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), OLDEST)


def _plain(onnx: Any, proto: Any, source: str) -> Any:
    """The model without functions, of an operator set that is read. Raises DataError."""
    if not proto.graph.output:
        raise DataError(f"{source}: the model has no outputs")
    if (opset := _opset(proto)) > NEWEST:
        raise DataError(f"{source}: operator set {opset} is newer than {NEWEST}, the last that is known")
    try:
        if proto.functions:
            if (size := _inlined_bytes(proto)) > MOST_INLINED:
                told = f"{size} bytes of nodes, {MOST_INLINED} is the most that is read"
                raise DataError(f"{source}: its functions' calls of each other make {told}")
            proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
        proto = proto if opset >= OLDEST else onnx.version_converter.convert_version(proto, CONVERTED)
        return _defined_by_others(onnx, proto)
    except DlsysError:
        raise
    except CycleError:
        raise DataError(f"{source}: its functions call each other in a circle") from None
    except Exception as error:  # noqa: BLE001  # the inliner's and the converter's own
        told = f"operator set {opset} is older than {OLDEST} and not converted" if opset < OLDEST else "not inlined"
        raise DataError(f"{source}: {told}: {first_line(error)}") from None


def _defined_by_others(onnx: Any, proto: Any) -> Any:
    """The model with those of ONNX's operators that ONNX itself defines as functions of others, and that have no
    function here, in terms of these others."""

    def schema(node: Any) -> Any:
        if node.domain not in ("", "ai.onnx") or node.op_type in onnx_operators.OPERATORS:
            return None
        if not onnx.defs.has(node.op_type, _opset(proto), ""):
            return None
        found = onnx.defs.get_schema(node.op_type, _opset(proto), "")
        return found if found.has_function or found.has_context_dependent_function else None

    for _ in range(_MOST_LEVELS):
        wanted = [(node, found) for node in proto.graph.node if (found := schema(node)) is not None]
        if not wanted:
            break
        for node, found in wanted:  # the inliner knows nothing of attributes that are left out
            given = {item.name for item in node.attribute}
            defaults = (attribute.default_value for attribute in found.attributes.values())
            node.attribute.extend(value for value in defaults if value.name and value.name not in given)
        names = sorted({("", node.op_type) for node, _ in wanted})
        try:
            proto = onnx.inliner.inline_selected_functions(proto, names, False, True)
        except Exception:  # noqa: BLE001  # the inliner's own, for inputs that are left out
            break
    return proto


def _inlined_bytes(proto: Any) -> int:
    """The bytes of a model's nodes with those of functions in place of their calls. Raises CycleError."""

    def named(owner: Any, name: str) -> tuple[str, str, str]:
        return "" if owner.domain == "ai.onnx" else owner.domain, name, getattr(owner, "overload", "")

    def nested(nodes: Iterable[Any]) -> Iterator[Any]:
        stack = list(nodes)
        while stack:
            node = stack.pop()
            yield node
            for item in node.attribute:
                for graph in (item.g, *item.graphs):
                    stack.extend(graph.node)

    bodies = {named(function, function.name): list(nested(function.node)) for function in proto.functions}
    calls = {key: {named(node, node.op_type) for node in body} & bodies.keys() for key, body in bodies.items()}
    sizes: dict[Any, int] = {}
    for key in TopologicalSorter(calls).static_order():
        sizes[key] = sum(sizes.get(named(node, node.op_type), node.ByteSize()) for node in bodies[key])
    return sum(sizes.get(named(node, node.op_type), node.ByteSize()) for node in nested(proto.graph.node))


def _told(node: Any) -> str:
    """A node in errors."""
    return f"{node.op_type} {node.name or next(filter(None, node.output), 'without a name')}"


class _Reading(Reader):
    """One model on its way to a network."""

    unfit = DataError

    def __init__(self, onnx: Any, proto: Any, shapes: Mapping[str, Sequence[int]], source: str) -> None:
        super().__init__(source)
        self._onnx, self._graph = onnx, proto.graph
        self._values: dict[str, Value] = {"": None}
        self._leaves: dict[str, Node] = {}
        self._folding = Folding()
        self._fixed = {
            name
            for node in self._graph.node
            for name in node.input[_STATISTICS.get(node.op_type, slice(0))]
        }
        self._fixed.update(*(item.value.splitlines() for item in proto.metadata_props if item.key == BUFFERS))
        self._require_order()
        self._require_operators()
        self._require_nodes(_opset(proto), proto.ir_version)
        for initial in self._graph.initializer:
            found = self._array(initial, initial.name)
            is_leaf = str(found.dtype) in FLOATS and found.size > 1
            trained = initial.name not in self._fixed
            self._values[initial.name] = self._stored(found, initial.name, trained) if is_leaf else found
        given = [info for info in self._graph.input if info.name not in self._values]
        if unknown := sorted(shapes.keys() - {info.name for info in given}):
            names = ", ".join(info.name for info in given)
            raise ShapeError(f"{source}: shapes has {', '.join(unknown)}, but the inputs are {names}")
        for info in given:
            self._values[info.name] = self._input_of(info, shapes.get(info.name))

    def outputs(self) -> list[Node]:
        for node in self._graph.node:
            self._apply(node)
        return [self._node(info.name) for info in self._graph.output]

    def _wrong(self, told: str) -> DataError:
        return DataError(f"{self._source}: {told}")

    def _require_order(self) -> None:
        """Raises DataError for values that nothing makes, that are made twice, or read before they are made."""
        if self._graph.sparse_initializer:
            raise GraphError(f"{self._source}: sparse initial values are not supported")
        known = set[str]()
        for kind, owners in (("initial values", self._graph.initializer), ("inputs", self._graph.input)):
            found = set[str]()
            for owner in owners:
                if not owner.name or owner.name in found:
                    told = f"two {kind} of the name {owner.name!r}" if owner.name else f"{kind} without a name"
                    raise self._wrong(f"there are {told}")
                found.add(owner.name)
            known |= found
        made = known.union(*(node.output for node in self._graph.node))
        for node in self._graph.node:
            if not any(node.output):
                raise self._wrong(f"{_told(node)} has no outputs")
            for name in node.input:
                if name and name not in known:
                    told = "it or a later node makes: nodes stand in order, without circles"
                    told = told if name in made else "nothing makes"
                    raise self._wrong(f"{_told(node)} reads {name!r}, which {told}")
            for name in filter(None, node.output):
                if name in known:
                    raise self._wrong(f"{_told(node)} makes {name!r}, which is there before")
                known.add(name)
        for info in self._graph.output:
            if info.name not in known:
                raise self._wrong(f"the output {info.name!r} is made by nothing")

    def _require_operators(self) -> None:
        """Raises GraphError that lists all operators of the file which have no reader here."""
        known = ("Constant", *onnx_operators.OPERATORS)
        applied = [
            (f"{n.domain}.{n.op_type}" if n.domain else n.op_type, n.name or f"node {place}",
             n.domain in ("", "ai.onnx") and n.op_type in known)
            for place, n in enumerate(self._graph.node)
        ]
        require_known(self._source, applied)

    def _require_nodes(self, opset: int, version: int) -> None:
        """Raises DataError for a node that has not as many inputs and outputs, or the attributes, that ONNX states."""
        context = type(self._onnx.checker.DEFAULT_CONTEXT)()
        context.ir_version, context.opset_imports = max(0, min(version, 2**31 - 1)), {"": opset, "ai.onnx": opset}
        for node in self._graph.node:
            try:
                self._onnx.checker.check_node(node, context)
            except Exception as error:  # noqa: BLE001  # the checker's own
                raise self._wrong(f"{_told(node)}: {first_line(error)}") from None

    def _array(self, tensor: Any, owner: str) -> np.ndarray:
        """A tensor's numbers."""
        owner = f"{self._source}: {owner}"
        size = _bytes_of(self._onnx, tensor, owner)
        if self._onnx.external_data_helper.uses_external_data(tensor):
            raise DataError(f"{owner} lies in another file: give the path of the model")
        try:
            self._onnx.checker.check_tensor(tensor)
            found = self._onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # noqa: BLE001  # the checker's and NumPy's own
            raise DataError(f"{owner}: {first_line(error)}") from None
        if found.nbytes != size:
            raise DataError(f"{owner} has {found.nbytes} bytes, not {size} as its shape has")
        return np.asarray(found.view("uint8") != 0) if found.dtype == bool else found  # any byte but 0 is true

    def _node(self, name: str) -> Any:
        """The value of a name as a node; None for that of an input that is left out."""
        value = self._values[name]
        if not isinstance(value, np.ndarray):
            return value
        if name not in self._leaves:
            self._leaves[name] = as_leaf(value)
        return self._leaves[name]

    def _input_of(self, info: Any, shape: Sequence[int] | None) -> Node:
        """The variable of an input, of the shape that the file states or `shape`. Raises ShapeError where they differ
        or none is known, DataError for what is no tensor."""
        told = f"{self._source}: {info.name}"
        if (held := info.type.WhichOneof("value")) != "tensor_type":
            raise DataError(f"{told} is no tensor, but {held or 'has no type'}")
        kind = info.type.tensor_type
        stated = ["?" if extent == "" else extent for extent in _extents(kind.shape)]
        if any(isinstance(extent, int) and extent < 0 for extent in stated):
            raise DataError(f"{told} has the shape ({', '.join(map(str, stated))})")
        is_stated = kind.HasField("shape")
        if shape is None and not (is_stated and all(isinstance(extent, int) for extent in stated)):
            known = f"shape ({', '.join(map(str, stated))})" if is_stated else "no shape"
            raise ShapeError(f"{told} has {known}: give shapes={{{info.name!r}: ...}}")
        wanted = tuple(stated) if shape is None else shape_attribute("from_onnx", shape)
        agree = len(wanted) == len(stated) and all(
            not isinstance(a, int) or a == b for a, b in zip(stated, wanted, strict=True)
        )
        if is_stated and not agree:
            raise ShapeError(f"{told} has shape ({', '.join(map(str, stated))}), not {wanted}")
        try:
            dtype = onnx_operators.dtype_of_code(kind.elem_type)
        except DlsysError as error:
            raise type(error)(f"{told}: {error}") from None
        return self._input(info.name, wanted, dtype)

    def _apply(self, node: Any) -> None:
        """Compute what the node gives, or make the nodes for it."""
        told = _told(node)
        with self._applying(told):
            found = [self._constant(node)] if node.op_type == "Constant" else self._called(node)
            for value in found:
                if isinstance(value, Node):  # what does not fit is told here, with the node's name
                    shape_of(value), dtype_of(value)
        self._values.update(zip(node.output, found, strict=False))
        if unmade := [name for name in node.output[len(found) :] if name]:
            raise GraphError(f"{self._source}: {told}: its output {unmade[0]} is not supported")

    def _attribute(self, node: Any, item: Any) -> Any:
        """The value of an attribute: an array of a tensor, text of bytes."""
        value = self._onnx.helper.get_attribute_value(item)
        if isinstance(value, self._onnx.TensorProto):
            return self._array(value, f"{item.name} of {node.op_type} {node.name}")
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, list) and value and isinstance(value[0], bytes):
            return [text.decode() for text in value]
        return value

    def _constant(self, node: Any) -> np.ndarray:
        """The array of a Constant. Raises DataError, and GraphError for text and sparse tensors."""
        if len(node.attribute) != 1:
            raise DataError(f"a Constant has one attribute, its value, not {len(node.attribute)}")
        (item,) = node.attribute
        value = self._attribute(node, item)
        dtypes = dict.fromkeys(("value_float", "value_floats"), "float32")
        dtypes |= dict.fromkeys(("value_int", "value_ints"), "int64")
        if item.name != "value" and item.name not in dtypes:
            raise GraphError(f"Constant {node.name} has {item.name}, which is no tensor of numbers")
        return np.asarray(value, dtypes.get(item.name))

    def _called(self, node: Any) -> Sequence[Value]:
        """The values of the node's outputs."""
        function, static = onnx_operators.OPERATORS[node.op_type], onnx_operators.STATIC[node.op_type]
        attributes = {item.name: self._attribute(node, item) for item in node.attribute}
        signature = inspect.signature(function)
        if "outputs" in signature.parameters:
            attributes["outputs"] = len(node.output)
        values = [self._values[name] for name in node.input]
        large = [isinstance(value, np.ndarray) and value.size > _LARGE for value in values]
        given = [
            value if place in static and not large[place] else self._node(name)
            for place, (name, value) in enumerate(zip(node.input, values, strict=True))
        ]
        try:
            bound = signature.bind(*given, **attributes)
        except TypeError as error:
            raise GraphError(f"{error} is not supported") from None
        found = function(*bound.args, **bound.kwargs)
        outputs = [
            value if isinstance(value, Node) else np.asarray(value)
            for value in (found if isinstance(found, (list, tuple)) else [found])
        ]
        if all(value is None or isinstance(value, np.ndarray) for value in values):
            outputs = self._folding.folded(outputs)
        return outputs
