"""What `load_state_dict` of an optimizer is given, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .. import autodiff as ad
from ..errors import DTypeError, GraphError, ShapeError
from .groups import ParameterGroup, checked_number

IDLE = {
    **dict.fromkeys(("params", "param_names", "foreach", "fused", "capturable", "differentiable"), None),
    **dict.fromkeys(("amsgrad", "maximize", "centered"), False),
    "decoupled_weight_decay": None, "dampening": 0,
}
"""What PyTorch's groups hold that sets nothing here: the one value that is taken, any for None."""
Settings = tuple[float, float, dict[str, Any]]
"""Of a group: lr, initial_lr, options."""


def require_idle(owner: str, given: Mapping[str, Any]) -> None:
    """Raises GraphError for a setting of PyTorch's that is not built."""
    for key, default in IDLE.items():
        if default is not None and given.get(key, default) != default:
            raise GraphError(f"{owner}: {key} must be {default}, not {given[key]!r}: other values are not built")


class Owner(Protocol):
    """The attributes of an optimizer that are read here."""

    groups: list[ParameterGroup]

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options, checked."""

    def _starts(self, options: dict[str, Any], parameter: ad.Parameter) -> dict[str, np.ndarray]:
        """The state that a parameter has, as it starts."""


def loaded(owner: Owner, name: str, given: Any) -> tuple[list[Settings], list[dict[str, np.ndarray]]]:
    """The settings of each group, and the state of each parameter. Raises GraphError, ShapeError, DTypeError."""
    if not isinstance(given, Mapping) or not {"state", "param_groups"} <= set(given):
        raise GraphError(f'{name}: needs a dictionary of "state" and "param_groups", as state_dict gives it')
    groups, state = given["param_groups"], given["state"]
    _same_counts(owner, name, groups)
    settings = [_settings(owner, name, *pair) for pair in zip(owner.groups, groups, strict=True)]
    parameters = [(p, own[2]) for group, own in zip(owner.groups, settings, strict=True) for p in group.parameters]
    numbers = [number for group in groups for number in group.get("params", ())] or range(len(parameters))
    missing, unexpected = [], [f"state.{number}" for number in state if number not in numbers]
    found: list[dict[str, np.ndarray]] = []
    for number, (parameter, options) in zip(numbers, parameters, strict=True):
        starts = owner._starts(options, parameter)
        values = state.get(number) or starts
        missing += [f"state.{number}.{key}" for key in starts if key not in values]
        # PyTorch counts the steps of every optimizer, here those do that need it
        unexpected += [f"state.{number}.{key}" for key in values if key not in starts and key != "step"]
        fitting = {}
        for key, start in starts.items():
            if key in values:
                value = start if values[key] is None else values[key]
                fitting[key] = _fitting(f"{name}: state.{number}.{key}", value, start.shape)
        found.append(fitting)
    if missing or unexpected:
        parts = [("missing", missing), ("unexpected", unexpected)]
        raise GraphError(f"{name}: " + "; ".join(f"{kind} keys: {', '.join(keys)}" for kind, keys in parts if keys))
    return settings, found


def _same_counts(owner: Owner, name: str, groups: Any) -> None:
    """Raises GraphError for other groups than the optimizer's."""
    if not isinstance(groups, Sequence) or not all(isinstance(group, Mapping) for group in groups):
        raise GraphError(f"{name}: param_groups must be a list of dictionaries")
    own = [len(group.parameters) for group in owner.groups]
    counts = [len(group["params"]) if "params" in group else None for group in groups]
    if len(counts) != len(own) or any(n not in (None, m) for n, m in zip(counts, own, strict=True)):
        raise GraphError(f"{name}: the optimizer's groups have {own} parameters, the state's {counts}")


def _settings(owner: Owner, name: str, group: ParameterGroup, given: Mapping[str, Any]) -> Settings:
    """All settings of a group: those that are given, its own for the others. Raises GraphError."""
    require_idle(name, given)
    if unexpected := sorted(set(given) - set(group) - IDLE.keys()):
        raise GraphError(f"{name}: a parameter group has unexpected settings: {', '.join(unexpected)}")
    lr = checked_number(name, "lr", given.get("lr", group.lr))
    initial_lr = given.get("initial_lr", lr if "lr" in given else group.initial_lr)
    options = owner._checked({key: given.get(key, value) for key, value in group.options.items()})
    return lr, checked_number(name, "initial_lr", initial_lr), options


def _fitting(place: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of numbers of that shape. Raises DTypeError, ShapeError."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{place} is {array.dtype}, not an array of numbers")
    if array.shape != shape:
        raise ShapeError(f"{place} has shape {shape}, the value {array.shape}")
    return array
