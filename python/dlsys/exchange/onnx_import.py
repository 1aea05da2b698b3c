"""ONNX models as networks, whose `forward` applies the model's nodes."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..deploy.network import Imported, place, require_count, require_known
from ..errors import DataError, DlsysError, GraphError
from ..graph import DTYPES, FLOATS, find_topo_sort
from ..nn import Module
from ..ops.types import known_dtype
from ..scopes import scope
from ..storage import checked_size
from ..tensors import dtype_of, shape_of, tensor
from . import onnx_layers, onnx_operators  # noqa: F401  # one table
from .onnx_operators import MOST_FOLDED, OPERATORS, STATIC, Value, dtype_of_code

OLDEST = 13
"""The first of ONNX's operator sets that is read as it is; a model of an older one is converted before, by ONNX."""
CONVERTED = 17
BUFFERS = "dlsys.buffers"
"""The property of a model of `to_onnx` that has the names of the values that are not trained, a line each."""
MOST_BYTES = 2**31
"""Of a model's file: protobuf reads no more. Values may lie in other files beside it."""
_MOST_LEVELS = 4  # of operators that ONNX defines by others, and these by others
_LARGE = 1024  # elements of a constant that is one leaf for all that read it, also where it is taken as it is
_TOLD = 400  # characters of a message of ONNX's
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
    try:
        proto = onnx.load(os.fspath(model)) if is_path else model
        _check(onnx, proto, source)
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
        if _opset(proto) < OLDEST:
            proto = onnx.version_converter.convert_version(proto, CONVERTED)
        proto = _defined_by_others(onnx, proto)
        if proto.graph.sparse_initializer:
            raise GraphError(f"{source}: sparse initial values are not supported")
        known = ("Constant", *OPERATORS)
        applied = [
            (f"{n.domain}.{n.op_type}" if n.domain else n.op_type, n.name or f"node {at}",
             n.domain in ("", "ai.onnx") and n.op_type in known)
            for at, n in enumerate(proto.graph.node)
        ]  # fmt: skip
        require_known(source, applied)
        network = OnnxNetwork(onnx, proto, source)
    except DlsysError:
        raise
    except Exception as error:  # noqa: BLE001  # protobuf's, the checker's, the inliner's and the converter's own
        raise DataError(f"{source}: {line(error)}") from None
    return network.eval(), dict(network.named_parameters())


def _check(onnx: Any, proto: Any, source: str) -> None:
    """Raises DataError, or ONNX's own errors, for what is no model. Of inputs and outputs no shape is asked, which
    ONNX's checker does."""
    if (opset := _opset(proto)) > (newest := onnx.defs.onnx_opset_version()):
        raise DataError(f"{source}: operator set {opset} is newer than {newest}, the last that the package onnx knows")
    types = [info.type for info in (*proto.graph.input, *proto.graph.output)]
    kinds = [kind.tensor_type for kind in types if kind.HasField("tensor_type")]
    without = [kind for kind in kinds if not kind.HasField("shape")]
    for kind in without:
        kind.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    finally:
        for kind in without:
            kind.ClearField("shape")


def line(error: BaseException) -> str:
    """An error's message in one line; its class if there is none."""
    return " ".join(str(error).split())[:_TOLD] or type(error).__name__


def _opset(proto: Any) -> int:
    return next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), OLDEST)


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


class _Applied(NamedTuple):
    """A node of a model.

    Attributes:
        kind: the operator's ONNX name.
        told: the node in messages.
        inputs, outputs: names of values, "" for one that is left out.
        attributes: by name, with `outputs`, their number, for an operator that asks for it.
    """

    kind: str
    told: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


class OnnxNetwork(Imported):
    """A model of ONNX as a module. `forward` applies the model's nodes to its arguments, so that it takes any shapes
    for which the model is meant, as any batch. What follows from constants and shapes is computed at once.

    Parameters and buffers have the names that they have in the model; optimizers train the parameters. What was for
    inference stays so: batch norm takes its running statistics, dropout does nothing.

    Attributes:
        inputs: a Variable for each argument, of the name and dtype, and of the shape if the model states it in numbers.
        shapes: of the inputs as the model states them: numbers, names, "?", or None.
    """

    shapes: tuple[tuple[int | str, ...] | None, ...]
    _source: str
    _applied: list[_Applied]
    _constants: dict[str, Value]
    _leaves: dict[str, Node]
    _places: list[tuple[str, Module, str]]
    _outputs: list[str]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # parameters and modules by the names that the model has

    def __init__(self, onnx: Any, proto: Any, source: str) -> None:
        """`proto`: a checked model of known operators; `source`: the beginning of messages."""
        graph = proto.graph
        constants: dict[str, Value] = {"": None}
        leaves: dict[str, Node] = {}
        places: list[tuple[str, Module, str]] = []
        fixed = {name for n in graph.node for name in n.input[_STATISTICS.get(n.op_type, slice(0))]}
        fixed.update(*(item.value.splitlines() for item in proto.metadata_props if item.key == BUFFERS))
        initial = {given.name for given in graph.initializer}
        inputs = [given for given in graph.input if given.name not in initial]
        self.shapes = tuple(_stated(given, source) for given in inputs)
        self.inputs = tuple(
            ad.Variable(given.name, shape if shape is not None and _is_known(shape) else None, _dtype(given, source))
            for given, shape in zip(inputs, self.shapes, strict=True)
        )
        for given in graph.initializer:
            array, trained = _array(onnx, given, f"{source}: {given.name}"), given.name not in fixed
            if str(array.dtype) not in FLOATS or array.size < 2:
                constants[given.name] = array
                continue
            leaf = Parameter(array, given.name) if trained else tensor(array, name=given.name)
            places.append((given.name, *place(self, given.name, leaf, trained)))
        applied = []
        for node in graph.node:
            told = f"{node.op_type} {node.name or next(filter(None, node.output), 'without a name')}"
            with _applying(source, told):
                if node.op_type == "Constant":
                    constants[node.output[0]] = _constant(onnx, node)
                else:
                    applied.append(_applied(onnx, node, told))
        hidden = {
            "_source": source, "_applied": applied, "_constants": constants, "_leaves": leaves, "_places": places,
            "_outputs": [info.name for info in graph.output],
        }  # fmt: skip
        for name, value in hidden.items():  # where no parameters are looked for
            object.__setattr__(self, name, value)

    def extra_repr(self) -> str:
        """The inputs with their shapes, and the number of operators."""
        told = ("of any shape" if shape is None else f"({', '.join(map(str, shape))})" for shape in self.shapes)
        taken = ", ".join(f"{node.name} {shape}" for node, shape in zip(self.inputs, told, strict=True))
        return f"{taken}; {len(self._applied)} operators"

    def forward(self, *values: Node) -> Any:
        require_count(self, values)
        known: dict[str, Value] = {**self._constants}
        known.update((name, getattr(home, attribute)) for name, home, attribute in self._places)
        known.update((node.name, value) for node, value in zip(self.inputs, values, strict=True))
        for node in self._applied:
            with _applying(self._source, node.told):
                known.update(zip(node.outputs, self._results(node, known), strict=False))
        outputs = tuple(self._leaf(name, known[name]) for name in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _leaf(self, name: str, value: Value) -> Any:
        """The value as a node: of a constant of the model always the same leaf."""
        if not isinstance(value, np.ndarray):
            return value
        if name not in self._constants:
            return tensor(value)
        if name not in self._leaves:
            self._leaves[name] = tensor(value)
        return self._leaves[name]

    def _results(self, node: _Applied, known: Mapping[str, Value]) -> Sequence[Value]:
        """The values of a node's outputs: arrays where they follow from constants and shapes."""
        static, values = STATIC[node.kind], [known[name] for name in node.inputs]
        given = [
            value if place in static and not _is_large(value) else self._leaf(name, value)
            for place, (name, value) in enumerate(zip(node.inputs, values, strict=True))
        ]
        found = OPERATORS[node.kind](*given, **node.attributes)
        outputs = [
            value if isinstance(value, (Node, list)) else np.asarray(value)
            for value in (found if isinstance(found, (list, tuple)) else [found])
        ]
        for value in outputs:
            if isinstance(value, Node):  # what does not fit is told here, with the node's name
                shape_of(value), known_dtype(value)
        if unmade := [name for name in node.outputs[len(outputs) :] if name]:
            raise GraphError(f"its output {unmade[0]} is not supported")
        is_known = all(value is None or isinstance(value, np.ndarray) for value in values)
        return _folded(outputs) if is_known else outputs


def _is_large(value: Value) -> bool:
    return isinstance(value, np.ndarray) and value.size > _LARGE


def _folded(values: Sequence[Value]) -> Sequence[Value]:
    """The values of nodes of constants alone, computed, unless they take more than `MOST_FOLDED` bytes and operations:
    a file of 200 bytes may tile a constant to 2**36 elements."""
    nodes = [value for value in values if isinstance(value, Node)]
    cost = 0
    for node in find_topo_sort(nodes):
        if node.cell is None and not node.op.immediate:
            shape = shape_of(node)
            cost += math.prod(shape) * np.dtype(dtype_of(node)).itemsize
            cost += node.op.flop(node, [shape_of(value) for value in node.inputs], shape)
    if not nodes or cost > MOST_FOLDED:
        return values
    found = dict(zip(map(id, nodes), ad.Executor(nodes, ctx="numpy").run({}), strict=True))
    return [found.get(id(value), value) for value in values]


@contextlib.contextmanager
def _applying(source: str, told: str) -> Iterator[None]:
    """A context in which the operators of one node are applied, `told` in messages: errors inside name it."""
    try:
        with scope(told):
            yield
    except DlsysError as error:
        text = str(error).removeprefix(f"{source}: ")
        raise type(error)(f"{source}: {text if told in text else f'{told}: {text}'}") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise DataError(f"{source}: {told} has inputs or attributes that do not fit: {line(error)}") from error


def _stated(info: Any, source: str) -> tuple[int | str, ...] | None:
    """The shape of an input: numbers, names, and "?" for an extent that has neither; None where there is none. Raises
    DataError for negative numbers."""
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        return None
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim)
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        raise DataError(f"{source}: {info.name} has the shape {shape}")
    return shape


def _is_known(shape: Sequence[int | str]) -> bool:
    return all(isinstance(extent, int) for extent in shape)


def _dtype(info: Any, source: str) -> str:
    """The dtype of an input. Raises DataError for what is no tensor, GraphError for a dtype that is not ours."""
    told = f"{source}: {info.name}"
    if (held := info.type.WhichOneof("value")) != "tensor_type":
        raise DataError(f"{told} is no tensor, but {held or 'has no type'}")
    try:
        return dtype_of_code(info.type.tensor_type.elem_type)
    except DlsysError as error:
        raise type(error)(f"{told}: {error}") from None


def _array(onnx: Any, given: Any, owner: str) -> np.ndarray:
    """A tensor's numbers. Raises DataError for what is none, GraphError for a dtype that is not ours."""
    try:
        found = onnx.numpy_helper.to_array(given)
    except Exception as error:  # noqa: BLE001  # ONNX's and NumPy's own
        raise DataError(f"{owner} of dtype {given.data_type} is no tensor: {line(error)}") from None
    if str(found.dtype) not in DTYPES:
        raise GraphError(f"{owner} is {found.dtype}, not one of {', '.join(DTYPES)}")
    return np.asarray(found.view("uint8") != 0) if found.dtype == bool else found  # any byte but 0 is true


def _attribute(onnx: Any, node: Any, item: Any) -> Any:
    """The value of an attribute: an array of a tensor, text of bytes."""
    value = onnx.helper.get_attribute_value(item)
    if isinstance(value, onnx.TensorProto):
        return _array(onnx, value, f"{item.name} of {node.op_type} {node.name}")
    if isinstance(value, list):
        return [text.decode() if isinstance(text, bytes) else text for text in value]
    return value.decode() if isinstance(value, bytes) else value


def _constant(onnx: Any, node: Any) -> np.ndarray:
    """The array of a Constant. Raises DataError for several, GraphError for text and sparse tensors."""
    if len(node.attribute) != 1:
        raise DataError(f"a Constant has one attribute, its value, not {len(node.attribute)}")
    (item,) = node.attribute
    dtypes = dict.fromkeys(("value_float", "value_floats"), "float32")
    dtypes |= dict.fromkeys(("value_int", "value_ints"), "int64")
    if item.name != "value" and item.name not in dtypes:
        raise GraphError(f"Constant {node.name} has {item.name}, which is no tensor of numbers")
    return np.asarray(_attribute(onnx, node, item), dtypes.get(item.name))


def _applied(onnx: Any, node: Any, told: str) -> _Applied:
    """A node as it will be applied. Raises GraphError for inputs or attributes that its operator here does not take."""
    attributes = {item.name: _attribute(onnx, node, item) for item in node.attribute}
    signature = inspect.signature(OPERATORS[node.op_type])
    if "outputs" in signature.parameters:
        attributes["outputs"] = len(node.output)
    try:
        signature.bind(*node.input, **attributes)
    except TypeError as error:
        raise GraphError(f"{error} is not supported") from None
    return _Applied(node.op_type, told, tuple(node.input), tuple(node.output), attributes)
