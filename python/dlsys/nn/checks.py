"""Arguments of modules, checked when they are given."""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any

import numpy as np

from .. import tensors
from ..autodiff import Node, Parameter
from ..errors import GraphError
from ..graph import Shape
from ..tensors.leaves import require_cpu


def known_shape(x: Any) -> Shape | None:
    """`tensors.known_shape` of an argument of `forward`. Raises GraphError for what is no tensor."""
    if not isinstance(x, Node):
        raise GraphError(f"a module takes tensors and arrays, not {type(x).__name__}")
    return tensors.known_shape(x)


def shape_of(function: str, x: Node) -> Shape:
    """The shape of a function's argument. Raises GraphError where only the run tells it."""
    shape = tensors.known_shape(x)
    if shape is None:
        raise GraphError(f"{function}: the shape of {x.name} must be known here: declare that of its variables")
    return shape


def as_node(value: Any) -> Any:
    """An argument of a module; arrays (of NumPy, PyTorch, dlsys) as tensors."""
    is_array = isinstance(value, np.ndarray) or (hasattr(value, "__dlpack__") and not isinstance(value, Node))
    return tensors.tensor(value) if is_array else value


def warn_of_hidden(name: str, value: Any) -> None:
    """Warn of modules and parameters in an attribute that is a plain list or dictionary: nothing finds them there."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    hidden = [part for part in parts if type(part) is Parameter or hasattr(part, "named_parameters")]
    if hidden:
        kind = "Parameter" if isinstance(hidden[0], Parameter) else "Module"
        home = "nn.ModuleList" if kind == "Module" and not isinstance(value, dict) else "an attribute for each"
        told = f"{name} is a {type(value).__name__}, in which parameters() and state_dict() find no {kind}: use {home}"
        warnings.warn(told, stacklevel=3)


def placed(device: Any, dtype: Any) -> Any:
    """The dtype of a module's parameters: float32 for None. Raises DeviceError for another device than the CPU: an
    Executor runs graphs elsewhere."""
    require_cpu(device)
    return "float32" if dtype is None else dtype


MOST_LAYERS = 10_000


def checked_layers(owner: str, value: Any) -> int:
    """A number of layers as an int from 1 to MOST_LAYERS: each is made, one by one. Raises GraphError."""
    count = checked_extent(owner, "num_layers", value)
    if count > MOST_LAYERS:
        raise GraphError(f"{owner}: num_layers must be at most {MOST_LAYERS}, not {value!r}")
    return count


def checked_extent(owner: str, name: str, value: Any, least: int = 1) -> int:
    """A number of features, channels, groups, ... as an int of `least` or more. Raises GraphError."""
    try:
        extent = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        extent = None
    if extent is None or extent < least:
        raise GraphError(f"{owner}: {name} must be an integer >= {least}, not {value!r}")
    return extent


def checked_share(owner: str, name: str, value: Any) -> float:
    """A number in [0, 1]. Raises GraphError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise GraphError(f"{owner}: {name} must be in [0, 1], not {value!r}")
    return float(value)


def checked_eps(owner: str, value: Any, name: str = "eps") -> float:
    """A finite number of 0 or more. Raises GraphError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise GraphError(f"{owner}: {name} must be a number >= 0, not {value!r}")
    return float(value)


def extents(owner: str, what: str, value: Any, least: int, count: int = 2) -> tuple[int, ...]:
    """An int or a tuple of `count` of them, each at least `least`, as a tuple. Raises GraphError."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * count
    try:
        found = [None if isinstance(n, bool) else operator.index(n) for n in given]
    except TypeError:
        found = [None]
    if len(found) != count or any(n is None or n < least for n in found):
        several = {1: "", 2: " or a pair of them"}.get(count, f" or {count} of them")
        raise GraphError(f"{owner}: {what} must be an integer >= {least}{several}, not {value!r}")
    return tuple(n for n in found if n is not None)


def pair(owner: str, what: str, value: Any, least: int) -> tuple[int, int]:
    """An int or a pair (rows, columns) of them, each at least `least`, as a pair. Raises GraphError."""
    rows, columns = extents(owner, what, value, least)
    return rows, columns
