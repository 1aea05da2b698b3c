"""ONNX models as networks."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..errors import DataError, DlsysError, GraphError, ShapeError
from ..graph import DTYPES, FLOATS
from ..scopes import scope
from ..tensors import shape_of
from . import onnx_layers, onnx_operators  # noqa: F401  # whose operators stand in one table
from .network import Network, Value, as_nodes, folded, missing

OLDEST = 13
"""The first of ONNX's operator sets that is read as it is; a model of an older one is converted before, by ONNX."""
CONVERTED = 17
BUFFERS = "dlsys.buffers"
"""The property of a model of `to_onnx` that has the names of the values that are not trained, a line each."""
_STATISTICS = slice(3, 5)  # the inputs of batch norm that are not trained


def onnx_package(function: str) -> Any:
    """The package `onnx`. Raises GraphError where it is not installed."""
    try:
        return importlib.import_module("onnx")
    except ImportError:
        raise GraphError(f"{function} needs the package onnx: pip install 'dlsys[relax]'") from None


def from_onnx(
    model: Any, shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Network, dict[str, Parameter]]:
    """The network of an ONNX model, and its parameters by name.

    Args:
        model: a file's path, or an `onnx.ModelProto`. Operator sets 13 to 21 are read; older ones are converted.
        shapes: of inputs, by name; needed where the model does not state all extents.

    Weights, initial values of floats with more than one element, are parameters; batch norm's statistics are buffers,
    and what `to_onnx` has written as such; all else is constant. What depends on constants and shapes alone is computed
    now.

    Raises GraphError for operators that are not known, all at once, or used in a way that is not; ShapeError for
    extents that are not known; DataError for a file that is no model.
    """
    onnx = onnx_package("from_onnx")
    proto = _loaded(onnx, model)
    return _Reading(onnx, proto, shapes or {}).network()


def _loaded(onnx: Any, model: Any) -> Any:
    if isinstance(model, (str, os.PathLike)):
        try:
            proto = onnx.load(os.fspath(model))
        except FileNotFoundError:
            raise DataError(f"from_onnx: there is no file {model}") from None
        except Exception as error:  # noqa: BLE001  # of protobuf's many kinds
            raise DataError(f"from_onnx: {model} is no ONNX model: {str(error).splitlines()[0]}") from None
    elif isinstance(model, onnx.ModelProto):
        proto = model
    else:
        raise DataError(f"from_onnx: takes a path or an onnx.ModelProto, not {type(model).__name__}")
    if not proto.graph.output:
        raise DataError(f"from_onnx: {model if proto is not model else 'the model'} has no outputs")
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    opset = next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), OLDEST)
    if opset >= OLDEST:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, CONVERTED)
    except Exception as error:  # noqa: BLE001  # the converter's own
        told = str(error).splitlines()[0]
        raise GraphError(
            f"from_onnx: operator set {opset} is older than {OLDEST} and not converted: {told}"
        ) from None


class _Reading:
    """One model on its way to a network."""

    def __init__(self, onnx: Any, proto: Any, shapes: Mapping[str, Sequence[int]]) -> None:
        self._onnx, self._graph = onnx, proto.graph
        self._values: dict[str, Value] = {"": None}
        self._fixed = {
            name
            for node in self._graph.node
            if node.op_type == "BatchNormalization"
            for name in node.input[_STATISTICS]
        }
        self._fixed.update(*(item.value.splitlines() for item in proto.metadata_props if item.key == BUFFERS))
        self._require_operators()
        self._buffers: list[Parameter] = []
        for initial in self._graph.initializer:
            self._values[initial.name] = self._initial(initial)
        given = [info for info in self._graph.input if info.name not in self._values]
        if unknown := sorted(shapes.keys() - {info.name for info in given}):
            names = ", ".join(info.name for info in given)
            raise ShapeError(f"from_onnx: shapes has {', '.join(unknown)}, but the inputs are {names}")
        self._inputs = [self._input(info, shapes.get(info.name)) for info in given]

    def network(self) -> tuple[Network, dict[str, Parameter]]:
        """The network, and its parameters."""
        for node in self._graph.node:
            self._apply(node)
        outputs = as_nodes([self._values[info.name] for info in self._graph.output])
        made = Network(self._inputs, outputs, self._buffers)
        return made.eval(), dict(made.named_parameters())

    def _require_operators(self) -> None:
        unknown: dict[str, list[str]] = {}
        for place, node in enumerate(self._graph.node):
            own = node.domain in ("", "ai.onnx") and node.op_type in ("Constant", *onnx_operators.OPERATORS)
            if not own:
                name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
                unknown.setdefault(name, []).append(node.name or f"node {place}")
        if unknown:
            raise missing("from_onnx", unknown)

    def _array(self, tensor: Any, owner: str) -> np.ndarray:
        found = self._onnx.numpy_helper.to_array(tensor)
        if str(found.dtype) not in DTYPES:
            raise GraphError(f"from_onnx: {owner} is {found.dtype}, not one of {', '.join(DTYPES)}")
        return found

    def _initial(self, tensor: Any) -> Value:
        found = self._array(tensor, tensor.name)
        if str(found.dtype) not in FLOATS or found.size <= 1:
            return found
        made = Parameter(found, tensor.name, requires_grad=tensor.name not in self._fixed)
        if tensor.name in self._fixed:
            self._buffers.append(made)
        return made

    def _input(self, info: Any, shape: Sequence[int] | None) -> Node:
        kind = info.type.tensor_type
        stated = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
        if shape is None and not all(isinstance(extent, int) for extent in stated):
            told = ", ".join(map(str, stated))
            raise ShapeError(f"from_onnx: {info.name} has shape ({told}): give shapes={{{info.name!r}: ...}}")
        wanted = tuple(stated if shape is None else shape)
        agree = len(wanted) == len(stated) and all(
            not isinstance(a, int) or a == b for a, b in zip(stated, wanted, strict=True)
        )
        if not agree:
            raise ShapeError(
                f"from_onnx: {info.name} has shape ({', '.join(map(str, stated))}), not {wanted}"
            )
        found = ad.Variable(info.name, wanted, onnx_operators.dtype_of_code(kind.elem_type))
        self._values[info.name] = found
        return found

    def _apply(self, node: Any) -> None:
        """Compute what the node gives, or make the nodes for it."""
        if node.op_type == "Constant":
            self._values[node.output[0]] = self._constant(node)
            return
        inputs = [self._values[name] for name in node.input]
        attributes = {item.name: self._attribute(node, item) for item in node.attribute}
        try:
            with scope(f"{node.op_type} {node.name or node.output[0]}"):
                found = _called(node, inputs, attributes)
                for value in as_nodes(found):
                    shape_of(value)  # what does not fit is told here, with the node's name
        except DlsysError as error:
            if node.op_type in str(error) and (node.name or node.output[0]) in str(error):
                raise
            raise type(error)(f"from_onnx: {node.op_type} {node.name or node.output[0]}: {error}") from None
        self._values.update(zip(node.output, found, strict=False))
        if unmade := [name for name in node.output[len(found) :] if name]:
            raise GraphError(f"from_onnx: {node.op_type} {node.name}: its output {unmade[0]} is not built")

    def _attribute(self, node: Any, item: Any) -> Any:
        value = self._onnx.helper.get_attribute_value(item)
        if isinstance(value, self._onnx.TensorProto):
            return self._array(value, f"{item.name} of {node.op_type} {node.name}")
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, list) and value and isinstance(value[0], bytes):
            return [text.decode() for text in value]
        return value

    def _constant(self, node: Any) -> np.ndarray:
        (item,) = node.attribute
        value = self._attribute(node, item)
        dtypes = {
            "value_float": "float32",
            "value_floats": "float32",
            "value_int": "int64",
            "value_ints": "int64",
        }
        if item.name != "value" and item.name not in dtypes:
            raise GraphError(
                f"from_onnx: Constant {node.name} has {item.name}, which is no tensor of numbers"
            )
        return np.asarray(value, dtypes.get(item.name))


def _called(node: Any, inputs: list[Value], attributes: dict[str, Any]) -> Sequence[Value]:
    """The values of the node's outputs."""
    function, static = onnx_operators.OPERATORS[node.op_type], onnx_operators.STATIC[node.op_type]
    signature = inspect.signature(function)
    if "outputs" in signature.parameters:
        attributes["outputs"] = len(node.output)
    constant = all(value is None or isinstance(value, np.ndarray) for value in inputs)
    nodes = as_nodes(inputs)
    given = [value if place in static else nodes[place] for place, value in enumerate(inputs)]
    try:
        bound = signature.bind(*given, **attributes)
    except TypeError as error:
        raise GraphError(f"{error} is not built") from None
    found = function(*bound.args, **bound.kwargs)
    outputs = [
        value if isinstance(value, Node) else np.asarray(value)
        for value in (found if isinstance(found, (list, tuple)) else [found])
    ]
    if constant:
        made = [value for value in outputs if isinstance(value, Node)]
        values = dict(zip(map(id, made), folded(made), strict=True)) if made else {}
        outputs = [values.get(id(value), value) for value in outputs]
    return outputs
