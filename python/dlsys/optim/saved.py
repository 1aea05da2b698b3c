"""What `load_state_dict` of an optimizer is given, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import number
from ..errors import DTypeError, GraphError, ShapeError
from .groups import ParameterGroup

IDLE = {
    **dict.fromkeys(("params", "param_names", "foreach", "fused", "capturable", "differentiable"), None),
    **dict.fromkeys(("amsgrad", "maximize", "centered"), False),
    "decoupled_weight_decay": None, "dampening": 0,
}
"""What PyTorch's groups hold that sets nothing here: the one value that is taken, any for None."""
Settings = tuple[float, float, dict[str, Any]]
"""Of a group: lr, initial_lr, options."""


def loaded(owner: Any, name: str, given: Any) -> tuple[list[Settings], list[dict[str, np.ndarray]]]:
    """The settings of each group, and the state of each parameter. Raises GraphError, ShapeError, DTypeError."""
    if not isinstance(given, Mapping) or not {"state", "param_groups"} <= set(given):
        raise GraphError(f'{name}: needs a dictionary of "state" and "param_groups", as state_dict gives it')
    groups, state = given["param_groups"], given["state"]
    _same_counts(owner, name, groups)
    settings = [_settings(owner, name, *pair) for pair in zip(owner.groups, groups, strict=True)]
    parameters = [(p, own[2]) for group, own in zip(owner.groups, settings, strict=True) for p in group.parameters]
    places = [place for group in groups for place in group.get("params", ())] or range(len(parameters))
    missing, unexpected = [], [f"state.{place}" for place in state if place not in places]
    found: list[dict[str, np.ndarray]] = []
    for place, (parameter, options) in zip(places, parameters, strict=True):
        starts = owner._starts(options, parameter)
        values = {key: value for key, value in (state.get(place) or starts).items() if value is not None}
        missing += [f"state.{place}.{key}" for key in starts if key not in (state.get(place) or starts)]
        # PyTorch counts the steps of every optimizer, here those do that need it
        unexpected += [f"state.{place}.{key}" for key in values if key not in starts and key != "step"]
        pairs = [(key, values.get(key, start), start.shape) for key, start in starts.items()]
        found.append({key: _fitting(f"{name}: state.{place}.{key}", value, shape) for key, value, shape in pairs})
    if missing or unexpected:
        parts = [("missing", missing), ("unexpected", unexpected)]
        raise GraphError(f"{name}: " + "; ".join(f"{kind} keys: {', '.join(keys)}" for kind, keys in parts if keys))
    return settings, found


def _same_counts(owner: Any, name: str, groups: Any) -> None:
    """Raises GraphError for other groups than the optimizer's."""
    if not isinstance(groups, Sequence) or not all(isinstance(group, Mapping) for group in groups):
        raise GraphError(f"{name}: param_groups must be a list of dictionaries")
    own = [len(group.parameters) for group in owner.groups]
    counts = [len(group["params"]) if "params" in group else None for group in groups]
    if len(counts) != len(own) or any(n not in (None, m) for n, m in zip(counts, own, strict=True)):
        raise GraphError(f"{name}: the optimizer's groups have {own} parameters, the state's {counts}")


def _settings(owner: Any, name: str, group: ParameterGroup, given: Mapping[str, Any]) -> Settings:
    """All settings of a group: those that are given, its own for the others. Raises GraphError."""
    for key, default in IDLE.items():
        if default is not None and given.get(key, default) != default:
            raise GraphError(f"{name}: {key} must be {default}, not {given[key]!r}: other values are not built")
    if unexpected := sorted(set(given) - set(group) - IDLE.keys()):
        raise GraphError(f"{name}: a parameter group has unexpected settings: {', '.join(unexpected)}")
    lr = number(name, "lr", given.get("lr", group.lr))
    initial_lr = given.get("initial_lr", lr if "lr" in given else group.initial_lr)
    options = owner._checked({key: given.get(key, value) for key, value in group.options.items()})
    return lr, number(name, "initial_lr", initial_lr), options


def _fitting(place: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of numbers of that shape. Raises DTypeError, ShapeError."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{place} is {array.dtype}, not an array of numbers")
    if array.shape != shape:
        raise ShapeError(f"{place} has shape {shape}, the value {array.shape}")
    return array
