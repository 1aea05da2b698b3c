"""Programs of torch.export as networks."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..errors import DlsysError, GraphError
from ..graph import DTYPES
from ..scopes import scope
from ..tensors import tensor
from .network import Network, missing
from .torch_operators import OPERATORS

_OF_NO_MEANING = ("device", "layout", "memory_format", "pin_memory", "requires_grad", "implicit")
"""Keyword arguments of PyTorch's operators that say nothing of a value."""


def from_torch(program: Any) -> tuple[Network, dict[str, Parameter]]:
    """The network of a program that `torch.export.export` made, and its parameters by name.

    Export the model after `model.eval()`, with example inputs of the shapes that the network will have. Parameters and
    buffers are copied, under their names.

    Raises GraphError for unsupported operators, all of them in one message, or arguments, and for programs with
    symbolic shapes or that change their buffers or inputs; DTypeError for values of dtypes that dlsys does not have.
    """
    if not all(hasattr(program, name) for name in ("graph_signature", "run_decompositions", "state_dict")):
        raise GraphError(f"from_torch: takes what torch.export.export returns, not {type(program).__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of its own functions
        functional = program.run_decompositions({})  # without writes in place
    return _Reading(functional).network()


class _Reading:
    """One program on its way to a network."""

    def __init__(self, program: Any) -> None:
        self._torch = importlib.import_module("torch")
        self._program, self._signature = program, program.graph_signature
        written = {**self._signature.buffers_to_mutate, **self._signature.user_inputs_to_mutate}
        if written:
            told = ", ".join(written.values())
            raise GraphError(f"from_torch: the program changes {told}: export the model after model.eval()")
        self._inputs: list[Node] = []
        self._buffers: list[Node] = []
        self._known: dict[Any, Any] = {}

    def network(self) -> tuple[Network, dict[str, Parameter]]:
        """The network, and its parameters."""
        nodes = list(self._program.graph.nodes)
        self._require_operators(nodes)
        outputs: list[Node] = []
        for node in nodes:
            if node.op == "placeholder":
                self._known[node] = self._leaf(node)
            elif node.op == "call_function":
                self._known[node] = self._called(node)
            elif node.op == "output":
                outputs = [self._value(value) for value in node.args[0]]
        made = Network(self._inputs, outputs, self._buffers)
        return made.eval(), dict(made.named_parameters())

    def _require_operators(self, nodes: list[Any]) -> None:
        unknown: dict[str, list[str]] = {}
        for node in nodes:
            if node.op == "call_function" and _name(node) not in ("getitem", *OPERATORS):
                unknown.setdefault(str(node.target), []).append(node.name)
        if unknown:
            raise missing("from_torch", unknown)

    def _leaf(self, node: Any) -> Any:
        own = self._signature
        for table, trained in ((own.inputs_to_parameters, True), (own.inputs_to_buffers, False)):
            if node.name in table:
                name = table[node.name]
                stored = self._program.state_dict.get(name, self._program.constants.get(name))
                return self._stored(stored, name, trained)
        if node.name in own.inputs_to_lifted_tensor_constants:
            return tensor(
                self._array(self._program.constants[own.inputs_to_lifted_tensor_constants[node.name]])
            )
        example = node.meta.get("val")
        if not isinstance(example, self._torch.Tensor):
            return example
        if not all(isinstance(extent, int) for extent in example.shape):
            raise GraphError(f"from_torch: {node.name} has symbolic extents: export for static shapes")
        made = ad.Variable(node.name, tuple(example.shape), self._dtype(example.dtype))
        self._inputs.append(made)
        return made

    def _stored(self, value: Any, name: str, trained: bool) -> Node:
        if trained:
            return Parameter(self._array(value), name)
        self._buffers.append(tensor(self._array(value), name=name))
        return self._buffers[-1]

    def _array(self, value: Any) -> np.ndarray:
        self._dtype(value.dtype)
        return value.detach().cpu().numpy()

    def _dtype(self, dtype: Any) -> str:
        found = str(dtype).removeprefix("torch.")
        if found not in DTYPES:
            raise GraphError(f"from_torch: the dtype {found} is not one of {', '.join(DTYPES)}")
        return found

    def _value(self, value: Any) -> Any:
        """An argument: nodes as ours, dtypes by name, lists of such."""
        if isinstance(value, self._torch.fx.Node):
            return self._known[value]
        if isinstance(value, (list, tuple)):
            return [self._value(item) for item in value]
        return self._dtype(value) if isinstance(value, self._torch.dtype) else value

    def _called(self, node: Any) -> Any:
        args = [self._value(value) for value in node.args]
        name = _name(node)
        if name == "getitem":
            return args[0][args[1]]
        given = {key: self._value(value) for key, value in node.kwargs.items() if key not in _OF_NO_MEANING}
        try:
            with scope(f"{node.target} {node.name}"):
                found = OPERATORS[name](*args, **given)
        except DlsysError as error:
            raise type(error)(f"from_torch: {node.target} {node.name}: {error}") from None
        except (IndexError, TypeError) as error:
            raise GraphError(f"from_torch: {node.target} {node.name}: {error}") from None
        self._check(node, found)
        return found

    def _check(self, node: Any, found: Any) -> None:
        """Raises GraphError where what was made has another shape or dtype than PyTorch says."""
        wanted = node.meta.get("val")
        for own, theirs in zip(
            *(x if isinstance(x, (list, tuple)) else [x] for x in (found, wanted)), strict=False
        ):
            if isinstance(own, Node) and isinstance(theirs, self._torch.Tensor):
                mine, other = (own.shape, own.dtype), (tuple(theirs.shape), self._dtype(theirs.dtype))  # type: ignore[attr-defined]
                if mine != other:
                    raise GraphError(
                        f"from_torch: {node.target} {node.name} is used in an unsupported way: {mine}, not {other}"
                    )


def _name(node: Any) -> str:
    """The operator's name without its overload: `add` of `aten.add.Tensor`."""
    packet = getattr(node.target, "overloadpacket", None)
    return node.target.__name__ if packet is None else packet.__name__
