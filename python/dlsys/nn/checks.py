"""Arguments of modules, checked when they are given."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from .. import tensors
from ..autodiff import Parameter
from ..checks import integer
from ..errors import GraphError
from ..graph import Node, Shape, is_node


def known_shape(x: Any) -> Shape | None:
    """`tensors.known_shape` of an argument of `forward`. Raises GraphError for what is no tensor."""
    if not is_node(x):
        raise GraphError(f"a module takes tensors and arrays, not {type(x).__name__}")
    return tensors.known_shape(x)


def shape_of(function: str, x: Node) -> Shape:
    """The shape of a function's argument. Raises GraphError where only the run tells it."""
    shape = tensors.known_shape(x)
    if shape is None:
        raise GraphError(f"{function}: the shape of {x.name} must be known here: declare that of its variables")
    return shape


def require_nodes(function: str, *values: Any) -> None:
    """Raises GraphError for an argument of a function that is neither a node nor None."""
    for value in values:
        if value is not None and not is_node(value):
            raise GraphError(f"{function}: takes tensors and nodes, not {type(value).__name__}")


def as_node(value: Any) -> Any:
    """An argument of a module; arrays (of NumPy, PyTorch, dlsys) as tensors."""
    is_array = isinstance(value, np.ndarray) or (hasattr(value, "__dlpack__") and not is_node(value))
    return tensors.tensor(value) if is_array else value


def warn_of_hidden(name: str, value: Any) -> None:
    """Warn of modules and parameters in an attribute that is a plain list or dictionary: nothing finds them there."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    hidden = [part for part in parts if type(part) is Parameter or hasattr(part, "named_parameters")]
    if hidden:
        kind = "Parameter" if isinstance(hidden[0], Parameter) else "Module"
        of = f"{kind}{'Dict' if isinstance(value, dict) else 'List'}"
        home = "an attribute for each" if of == "ParameterDict" else f"nn.{of}"
        told = f"{name} is a {type(value).__name__}, in which parameters() and state_dict() find no {kind}: use {home}"
        warnings.warn(told, stacklevel=3)


MOST_LAYERS = 10_000


def checked_layers(owner: str, value: Any) -> int:
    """A number of layers as an int from 1 to MOST_LAYERS: each is made, one by one. Raises GraphError."""
    count = integer(owner, "num_layers", value, 1)
    if count > MOST_LAYERS:
        raise GraphError(f"{owner}: num_layers must be at most {MOST_LAYERS}, not {value!r}")
    return count
