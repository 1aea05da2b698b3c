"""Programs of torch.export as networks."""

from __future__ import annotations

import importlib
import operator
import warnings
from typing import Any

import numpy as np

from ..autodiff import Node, Parameter
from ..errors import GraphError
from ..graph import DTYPES
from ..tensors import tensor
from .batches import any_batch, symbol_of
from .network import Network, Reader, require_known
from .torch_operators import operator_named

_MOST_LEVELS = 4  # of operators in terms of others, and these of others
_OF_NO_MEANING = ("device", "layout", "memory_format", "pin_memory", "requires_grad", "implicit")
"""Keyword arguments of PyTorch's operators that say nothing of a value."""


def from_torch(program: Any) -> tuple[Network, dict[str, Parameter]]:
    """The network of a program that `torch.export.export` made, and its parameters by name.

    Export the model after `model.eval()`, with example inputs of the shapes that the network will have; one extent, the
    batch, may be dynamic. Parameters and buffers are copied, under their names.

    Raises GraphError for unsupported operators, all of them in one message, or arguments, and for programs that change
    their buffers or inputs; ShapeError for several dynamic extents; DTypeError for values of dtypes that dlsys does not
    have.
    """
    if not all(hasattr(program, name) for name in ("graph_signature", "run_decompositions", "state_dict")):
        raise GraphError(f"from_torch: takes what torch.export.export returns, not {type(program).__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of its own functions
        functional = program.run_decompositions({})  # without writes in place
        functional = _decomposed(functional)
    shapes = _shapes(functional)
    if symbol_of("from_torch", shapes) is None:
        return _Reading(functional, None).network()
    made = any_batch("from_torch", lambda size: _Reading(functional, size).network()[0], shapes)
    return made, dict(made.named_parameters())


def _shapes(program: Any) -> list[tuple[Any, ...]]:
    """The shapes of a program's inputs, with PyTorch's names for extents that are open."""
    names = set(program.graph_signature.user_inputs)
    found = []
    for node in program.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", None)
        if node.op == "placeholder" and node.name in names and shape is not None:
            found.append(tuple(extent if isinstance(extent, int) else str(extent) for extent in shape))
    return found


def _decomposed(program: Any) -> Any:
    """The program with operators that have no function here in terms of others, as PyTorch defines them."""
    table = importlib.import_module("torch.export").default_decompositions()
    for _ in range(_MOST_LEVELS):
        called = {node.target for node in program.graph.nodes if node.op == "call_function"}
        unknown = {target: table[target] for target in called if not _operator(target) and target in table}
        if not unknown:
            break
        program = program.run_decompositions(unknown)
    return program


class _Reading(Reader):
    """One program on its way to a network."""

    def __init__(self, program: Any, size: int | None) -> None:
        """`size`: the extent that has a name."""
        super().__init__("from_torch")
        self._size = size
        self._torch = importlib.import_module("torch")
        self._program, self._signature = program, program.graph_signature
        written = {**self._signature.buffers_to_mutate, **self._signature.user_inputs_to_mutate}
        if written:
            told = ", ".join(written.values())
            raise GraphError(f"from_torch: the program changes {told}: export the model after model.eval()")
        self._known: dict[Any, Any] = {}

    def outputs(self) -> list[Node]:
        nodes = list(self._program.graph.nodes)
        called = {node: _operator(node.target) for node in nodes if node.op == "call_function"}
        require_known("from_torch", ((str(node.target), node.name, found) for node, found in called.items()))
        outputs: list[Node] = []
        for node in nodes:
            if node.op == "placeholder":
                self._known[node] = self._leaf(node)
            elif node.op == "call_function":
                self._known[node] = self._called(node, called[node])
            elif node.op == "output":
                outputs = [self._value(value) for value in node.args[0]]
        return outputs

    def _leaf(self, node: Any) -> Any:
        """The value of a placeholder: a parameter, a buffer, a constant, or the variable of an argument."""
        own, program = self._signature, self._program
        for table, trained in ((own.inputs_to_parameters, True), (own.inputs_to_buffers, False)):
            if node.name in table:
                name = table[node.name]
                return self._stored(
                    self._array(program.state_dict.get(name, program.constants.get(name))), name, trained
                )
        if node.name in own.inputs_to_lifted_tensor_constants:
            return tensor(self._array(program.constants[own.inputs_to_lifted_tensor_constants[node.name]]))
        example = node.meta.get("val")
        if not isinstance(example, self._torch.Tensor):
            return example
        shape = [extent if isinstance(extent, int) else self._size for extent in example.shape]
        return self._input(node.name, shape, self._dtype(example.dtype))

    def _array(self, value: Any) -> np.ndarray:
        self._dtype(value.dtype)
        return value.detach().cpu().numpy()

    def _dtype(self, dtype: Any) -> str:
        """The name of one of PyTorch's dtypes. Raises GraphError for one that there is not."""
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

    def _called(self, node: Any, function: Any) -> Any:
        """The result of an operator's function on a call's arguments, checked against the shape that PyTorch has noted.
        """
        with self._applying(f"{node.target} {node.name}"):
            args = [self._value(value) for value in node.args]
            given = {
                key: self._value(value) for key, value in node.kwargs.items() if key not in _OF_NO_MEANING
            }
            if not given and args and all(isinstance(value, (int, float, bool)) for value in args):
                function = getattr(operator, _name(node.target), function)  # of extents
            found = function(*args, **given)
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
                known = [b if isinstance(b, int) else a for a, b in zip(mine[0], other[0], strict=False)]
                if (tuple(known), len(other[0]), other[1]) != (mine[0], len(mine[0]), mine[1]):
                    raise GraphError(f"used in a way that is not supported: {mine}, not {other}")


def _name(target: Any) -> str:
    """An operator's name without its overload: `add` of `aten.add.Tensor`."""
    packet = getattr(target, "overloadpacket", None)
    return target.__name__ if packet is None else packet.__name__


def _operator(target: Any) -> Any:
    """The function of an operator; None for none. Those of Python are of extents alone."""
    name = _name(target)
    return operator_named(name) or (getattr(operator, name, None) if target is getattr(operator, name, "") else None)
