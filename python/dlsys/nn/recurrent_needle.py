"""needle's names of the weights of recurrent layers: `lstm.lstm_cells[0].W_ih` is `weight_ih_l0`, transposed."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import tensors
from ..autodiff import Node, Parameter
from ..errors import GraphError

BIASES = ("bias_ih", "bias_hh")
MATRICES = {"W_ih": "weight_ih", "W_hh": "weight_hh"}


def weight_of(owner: Any, name: str, suffix: str = "") -> Any:
    """`W_ih` (input_size, gates * hidden_size) or `W_hh` (hidden_size, gates * hidden_size) of a layer, computed from
    PyTorch's transposed one, with its gradient as `grad`; or a bias as it is."""
    if name in BIASES:
        return getattr(owner, name + suffix)
    parameter = getattr(owner, MATRICES[name] + suffix)
    found = parameter.T
    found.grad = None if parameter.grad is None else parameter.grad.T
    return found


def set_weight(owner: Any, name: str, value: Any, suffix: str = "") -> None:
    """Set the values of what `weight_of` gives. Raises GraphError for a bias that is not there, ShapeError."""
    own = MATRICES.get(name, name) + suffix
    parameter: Any = getattr(owner, own, None)
    if not tensors.is_leaf(parameter):
        raise GraphError(f"{type(owner).__name__} has no {own}: it was made with bias=False")
    given = np.asarray(value)
    parameter.value = given.T if name in MATRICES else given


class NeedleWeights:
    """A cell that takes needle's names too: `W_ih`, `W_hh`, and tensors for its biases."""

    def __getattr__(self, name: str) -> Any:
        if name in MATRICES:
            return weight_of(self, name)
        return super().__getattr__(name)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        is_tensor = isinstance(value, Node) and not isinstance(value, Parameter)
        if name in MATRICES or (name in BIASES and is_tensor):
            set_weight(self, name, value)
        else:
            super().__setattr__(name, value)


class LayerCell:
    """One layer of a recurrent network by the names of needle's cells: W_ih, W_hh, bias_ih, bias_hh, to be read and
    set."""

    def __init__(self, owner: Any, layer: int) -> None:
        self.__dict__.update(_owner=owner, _suffix=f"_l{layer}")

    def __getattr__(self, name: str) -> Any:
        if name not in MATRICES and name not in BIASES:
            raise AttributeError(f"a layer's cell has no {name!r}, but W_ih, W_hh, bias_ih and bias_hh")
        return weight_of(self._owner, name, self._suffix)

    def __setattr__(self, name: str, value: Any) -> None:
        set_weight(self._owner, name, value, self._suffix)


def cells_of(owner: Any) -> list[LayerCell]:
    """The layers' cells."""
    return [LayerCell(owner, layer) for layer in range(owner.num_layers)]


def in_order(owner: str, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Settings by name, of which the first are given by place: in their order, or where the first is True or False in
    needle's, bias and nonlinearity. Raises GraphError for too many."""
    order = ["bias", "nonlinearity"] if given and isinstance(given[0], bool) else list(named)
    if len(given) > len(order):
        raise GraphError(f"{owner}: takes {', '.join(order)} after num_layers, not {len(given)} settings")
    return named | dict(zip(order, given, strict=False))
