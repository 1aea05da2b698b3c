"""ONNX models as modules: `forward` applies the model's nodes, so a network takes any shapes that its model takes."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import autodiff as ad
from ..autodiff import Parameter
from ..deploy.network import Imported, place, require_count
from ..errors import DataError, DlsysError, GraphError
from ..graph import FLOATS, Node, is_node
from ..scopes import scope
from ..storage import checked_size
from ..tensors import dtype_of, known_dtype, shape_of, tensor
from .onnx_operators import OPERATORS
from .onnx_values import MOST_FOLDED, Value, dtype_of_code, require_dtype

OLDEST = 13
"""The first of ONNX's operator sets that is read as it is; a model of an older one is converted before, by ONNX."""
CONVERTED = 17
BUFFERS = "dlsys.buffers"
"""The property of a model of `to_onnx` that has the names of the values that are not trained, a line each."""
MOST_BYTES = 2**31
"""Of a model's file: protobuf reads no more. Values may lie in other files beside it."""
_LARGE = 1024  # elements of a constant that is one leaf for all that read it, also where an array is taken
_MOST_TEXT = 400  # characters of a message of ONNX's
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


def line(error: BaseException) -> str:
    """An error's message in one line; its class if there is none."""
    return " ".join(str(error).split())[:_MOST_TEXT] or type(error).__name__


@contextlib.contextmanager
def _naming(label: str) -> Iterator[None]:
    """A context whose errors begin with the label: dlsys' own keep their class, others, as ONNX's, become DataError."""
    try:
        yield
    except DlsysError as error:
        raise type(error)(f"{label}: {error}") from None
    except Exception as error:  # of protobuf, of ONNX's checker and tools, of functions whose arguments do not fit
        raise DataError(f"{label}: {line(error)}") from error


def from_onnx(model: Any) -> tuple[OnnxNetwork, dict[str, Parameter]]:
    """The network of an ONNX model, and its parameters by name.

    Args:
        model: a file's path, or an `onnx.ModelProto`. Operator sets from 13 on are read; older ones are converted.

    Initializers of floats with more than one element are parameters; batch norm's statistics, and what `to_onnx` has
    written as a buffer, are buffers; other initializers are constants.

    Raises DataError, which names the file and the node, for what ONNX's checker refuses; GraphError for unsupported
    operators, all of them in one message.
    """
    onnx, source = onnx_package("from_onnx"), "from_onnx"
    is_path = isinstance(model, (str, os.PathLike))
    if is_path:
        source = f"from_onnx: {os.fspath(model)}"
        checked_size(Path(model), MOST_BYTES)
    elif not isinstance(model, onnx.ModelProto):
        raise DataError(f"from_onnx: takes a path or an onnx.ModelProto, not {type(model).__name__}")
    with _naming(source):
        proto = onnx.load(os.fspath(model)) if is_path else copy.deepcopy(model)
        _check(onnx, proto)
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
        if _opset(proto) < OLDEST:
            proto = onnx.version_converter.convert_version(proto, CONVERTED)
        proto = _inlined(onnx, proto)
        unknown = [(at, n) for at, n in enumerate(proto.graph.node) if not _is_known(n)]
        names = ((f"{n.domain}.{n.op_type}" if n.domain else n.op_type, n.name or f"node {at}") for at, n in unknown)
        if text := no_operator_for(names):
            raise GraphError(text)
        if proto.graph.sparse_initializer:
            raise GraphError("sparse initial values are not supported")
        network = OnnxNetwork(onnx, proto, source)
    return network.eval(), dict(network.named_parameters())


def no_operator_for(nodes: Iterable[tuple[str, str]]) -> str:
    """The message for nodes whose operators the other side lacks: the name of each operator, and of its nodes. Empty
    for none."""
    names: dict[str, list[str]] = {}
    for operator_name, node in nodes:
        names.setdefault(operator_name, []).append(node)
    parts = (f"{name} ({', '.join(each[:3])}{', ...' * (len(each) > 3)})" for name, each in names.items())
    return f"no operator for {'; '.join(parts)}" if names else ""


def _check(onnx: Any, proto: Any) -> None:
    """Raises DataError, or ONNX's own errors, for what is no model. Of inputs and outputs no shape is asked, which
    ONNX's checker does."""
    if (opset := _opset(proto)) > (newest := onnx.defs.onnx_opset_version()):
        raise DataError(f"operator set {opset} is newer than {newest}, the last that the package onnx knows")
    types = [info.type for info in (*proto.graph.input, *proto.graph.output)]
    tensors = [kind.tensor_type for kind in types if kind.HasField("tensor_type")]
    without = [kind for kind in tensors if not kind.HasField("shape")]
    for kind in without:
        kind.shape.SetInParent()
    onnx.checker.check_model(proto)
    for kind in without:
        kind.ClearField("shape")


def _opset(proto: Any) -> int:
    return next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), OLDEST)


def _is_known(node: Any) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in OPERATORS


def _inlined(onnx: Any, proto: Any) -> Any:
    """The model with those operators that have no row here, and that ONNX itself defines as functions of others, in
    terms of these others."""
    opset = _opset(proto)
    unknown = [node for node in proto.graph.node if not _is_known(node)]
    for node in unknown:  # the inliner knows nothing of attributes that are left out
        if node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type, opset, ""):
            names, schema = {item.name for item in node.attribute}, onnx.defs.get_schema(node.op_type, opset, "")
            defaults = (attribute.default_value for attribute in schema.attributes.values())
            node.attribute.extend(value for value in defaults if value.name and value.name not in names)
    try:
        rows = [("", name) for name in OPERATORS]
        return onnx.inliner.inline_selected_functions(proto, rows, True, True) if unknown else proto
    except Exception:  # noqa: BLE001  # of the inliner, for inputs that are left out
        return proto


class Step(NamedTuple):
    """A node of a model: its operator, its name in messages, the names of its inputs and outputs, "" for one that is
    left out, and its attributes with, for a function that asks for it, the number of `outputs`."""

    kind: str
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


def _is_large(value: Value) -> bool:
    return isinstance(value, np.ndarray) and value.size > _LARGE


def _folded(values: Sequence[Value]) -> Sequence[Value]:
    """The values of nodes of constants alone, computed, unless they take more than `MOST_FOLDED` bytes: a file of 200
    bytes may tile a constant to 2**36 elements."""
    if not all(is_node(value) for value in values):
        return values
    if sum(math.prod(shape_of(value)) * np.dtype(dtype_of(value)).itemsize for value in values) > MOST_FOLDED:
        return values
    return ad.Executor(list(values), ctx="numpy").run({}, True)


class OnnxNetwork(Imported):
    """A model of ONNX as a module. `forward` applies the model's nodes to its arguments, so that it takes any shapes
    for which the model is meant, as any batch. What follows from constants is computed once, what follows from shapes
    when it is called.

    Parameters and buffers have the names that they have in the model; optimizers train the parameters. What was for
    inference stays so: batch norm takes its running statistics, dropout does nothing.

    Attributes:
        inputs: a Variable for each argument, of the name and dtype, and of the shape if the model states it in numbers.
        shapes: of the inputs as the model states them: numbers, names, "?", or None.
    """

    shapes: tuple[tuple[int | str, ...] | None, ...]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # parameters and modules by the names that the model has

    def __init__(self, onnx: Any, proto: Any, source: str) -> None:
        """`proto`: a checked model of known operators; `source`: the beginning of messages."""
        graph = proto.graph
        self._source = source
        self._steps: list[Step] = []
        self._constants: dict[str, Value] = {"": None}
        self._leaves: dict[str, Node] = {}  # of constants that steps have read
        self._paths: dict[str, str] = {}  # of parameters and buffers in this module
        self._outputs = [info.name for info in graph.output]
        initial = {item.name for item in graph.initializer}
        inputs = [_input(info) for info in graph.input if info.name not in initial]
        self.inputs, self.shapes = tuple(node for node, _ in inputs), tuple(shape for _, shape in inputs)
        fixed = {name for n in graph.node for name in n.input[_STATISTICS.get(n.op_type, slice(0))]}
        fixed.update(*(item.value.splitlines() for item in proto.metadata_props if item.key == BUFFERS))
        for item in graph.initializer:
            with _naming(item.name):
                value = _array(onnx, item)
            if str(value.dtype) not in FLOATS or value.size < 2:
                self._constants[item.name] = value
                continue
            trained = item.name not in fixed
            leaf = Parameter(value, item.name) if trained else tensor(value, name=item.name)
            self._paths[item.name] = place(self, item.name, leaf, trained)
        for node in graph.node:
            label = f"{node.op_type} {node.name or next(filter(None, node.output), 'without a name')}"
            with _naming(label):
                step = _step(onnx, node, label)
                is_constant = all(name in self._constants for name in step.inputs)
                results = self._results(step, self._constants) if is_constant else [None]
            if all(isinstance(value, np.ndarray) for value in results):
                self._constants.update(zip(step.outputs, results, strict=False))
            else:
                self._steps.append(step)

    def extra_repr(self) -> str:
        """The inputs with their shapes, and the number of operators."""
        shapes = ("of any shape" if shape is None else f"({', '.join(map(str, shape))})" for shape in self.shapes)
        inputs = ", ".join(f"{node.name} {shape}" for node, shape in zip(self.inputs, shapes, strict=True))
        return f"{inputs}; {len(self._steps)} operators"

    def forward(self, *values: Node) -> Any:
        require_count(self, values)
        known: dict[str, Value] = dict(self._constants)
        known.update((name, operator.attrgetter(path)(self)) for name, path in self._paths.items())
        known.update((node.name, value) for node, value in zip(self.inputs, values, strict=True))
        for step in self._steps:
            with _naming(f"{self._source}: {step.label}"), scope(step.label):
                known.update(zip(step.outputs, self._results(step, known), strict=False))
        outputs = tuple(self._leaf(name, known[name]) for name in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _results(self, step: Step, known: Mapping[str, Value]) -> Sequence[Value]:
        """The values of a step's outputs: arrays where they follow from constants and shapes."""
        function, arrays = OPERATORS[step.kind]
        values = [known[name] for name in step.inputs]
        inputs = [
            value if at in arrays and not _is_large(value) else self._leaf(name, value)
            for at, (name, value) in enumerate(zip(step.inputs, values, strict=True))
        ]
        results = function(*inputs, **step.attributes)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        for value in results:
            if is_node(value):  # what does not fit is an error here, with the node's name
                shape_of(value), known_dtype(value)
        if missing := [name for name in step.outputs[len(results) :] if name]:
            raise GraphError(f"its output {missing[0]} is not supported")
        return _folded(results) if all(value is None or isinstance(value, np.ndarray) for value in values) else results

    def _leaf(self, name: str, value: Value) -> Any:
        """The value as a node: of a constant of the model always the same leaf."""
        if not isinstance(value, np.ndarray):
            return value
        if name not in self._constants:
            return tensor(value)
        if name not in self._leaves:
            self._leaves[name] = tensor(value)
        return self._leaves[name]


def _input(info: Any) -> tuple[Node, tuple[int | str, ...] | None]:
    """An input as a Variable, and its shape: numbers, names, and "?" for an extent that has neither; None where there
    is none. Raises DataError for what is no tensor and for negative numbers, GraphError for dtypes that dlsys lacks."""
    if (kind := info.type.WhichOneof("value")) != "tensor_type":
        raise DataError(f"{info.name} is no tensor, but {kind or 'has no type'}")
    stated, shape = info.type.tensor_type, None
    with _naming(info.name):
        dtype = dtype_of_code(stated.elem_type)
    if stated.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in stated.shape.dim)
    extents = [extent for extent in shape or () if isinstance(extent, int)]
    if min(extents, default=0) < 0:
        raise DataError(f"{info.name} has the shape {shape}")
    is_known = shape is not None and len(extents) == len(shape)
    return ad.Variable(info.name, shape if is_known else None, dtype), shape


def _array(onnx: Any, item: Any) -> np.ndarray:
    """A tensor's numbers. Raises GraphError for a dtype that dlsys lacks, and ONNX's errors."""
    array = onnx.numpy_helper.to_array(item)
    require_dtype(str(array.dtype))
    return np.asarray(array.view("uint8") != 0) if array.dtype == bool else array  # any byte but 0 is true


def _attribute(onnx: Any, item: Any) -> Any:
    """The value of an attribute: an array of a tensor, text of bytes."""
    value = onnx.helper.get_attribute_value(item)
    if isinstance(value, onnx.TensorProto):
        return _array(onnx, value)
    if isinstance(value, list):
        return [text.decode() if isinstance(text, bytes) else text for text in value]
    return value.decode() if isinstance(value, bytes) else value


def _step(onnx: Any, node: Any, label: str) -> Step:
    """A node as it will be applied. Raises GraphError for inputs or attributes that its function does not take."""
    attributes = {item.name: _attribute(onnx, item) for item in node.attribute}
    signature = inspect.signature(OPERATORS[node.op_type].function)
    if "outputs" in signature.parameters:
        attributes["outputs"] = len(node.output)
    try:
        signature.bind(*node.input, **attributes)
    except TypeError as error:
        raise GraphError(f"{error} is not supported") from None
    return Step(node.op_type, label, tuple(node.input), tuple(node.output), attributes)
