"""Parameter groups: parameters with one set of settings, as PyTorch's dictionaries."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import require_neutral
from ..errors import GraphError
from ..tensors.inplace import lasting

NEUTRAL: dict[str, bool | int | None] = {
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), None),
    **dict.fromkeys(("decoupled_weight_decay", "param_names"), None),
    **dict.fromkeys(("maximize", "centered"), False),
    "dampening": 0,
}
"""PyTorch's settings that change no result, with the one value that is accepted; None accepts any value."""
RATES = ("lr", "initial_lr")
"""The settings that each run reads; the others are compiled into a step."""
Settings = Mapping[str, Any]


class ParameterGroup(UserDict[str, Any]):
    """Parameters and their settings, a dictionary as in PyTorch: `group["lr"] = 0.1`.

    The next run reads "lr". "initial_lr" is the rate that was last set by hand, from which schedules start. The other
    settings are compiled into a step: setting one changes the steps that are built afterwards. "params" stays.

    Attributes:
        compiled: the settings that are compiled into a step.
    """

    def __init__(self, parameters: list[ad.Parameter], settings: Settings, check: Callable[[Settings], Any]) -> None:
        """`check` returns settings as they are used. Raises what it raises."""
        self._check = check
        self._leaves: dict[str, tuple[ad.Parameter, ad.Parameter]] = {}
        self.data = {"params": parameters}
        self.change(settings)

    def leaves(self, dtype: str) -> tuple[ad.Parameter, ad.Parameter]:
        """The learning rate and the number of steps, of shape (), which graphs read, for parameters of a dtype."""
        if dtype not in self._leaves:
            rate, steps = np.asarray(self["lr"], dtype), np.zeros((), dtype)
            self._leaves[dtype] = (
                lasting(lambda: ad.Parameter(rate, "lr", False)), lasting(lambda: ad.Parameter(steps, "step", False))
            )
        return self._leaves[dtype]

    def change(self, settings: Settings) -> None:
        """Set settings; an "lr" leaves "initial_lr" as it is. Raises GraphError for a value out of range."""
        before = self.data.get("lr")
        self.data |= self._check(settings)
        self.compiled: dict[str, Any] = {key: v for key, v in self.data.items() if key not in ("params", *RATES)}
        if self.data["lr"] != before:
            for rate, _ in self._leaves.values():
                rate.value = self.data["lr"]

    def __setitem__(self, key: str, value: Any) -> None:
        """Raises GraphError for an unknown setting, and for a value out of range."""
        if key in RATES:
            self.change({key: value, "initial_lr": value})
        elif key in self.compiled:
            self.change({**self.compiled, key: value})
        else:
            known = ", ".join((*RATES, *self.compiled))
            raise GraphError(f"a parameter group has no setting {key!r} to change, but {known}")

    def __ior__(self, other: Any) -> ParameterGroup:  # type: ignore[override, misc]
        self.update(other)
        return self

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.data.items() if key != "params")
        return f"ParameterGroup({len(self['params'])} parameters, {settings})"


def merged(owner: str, settings: Settings, given: Settings) -> dict[str, Any]:
    """The settings, with those that are given in their place, without "params". An "lr" is the "initial_lr" too, unless
    that is given. Raises GraphError for unknown ones."""
    known = {key: value for key, value in settings.items() if key != "params"}
    require_neutral(owner, {key: value for key, value in given.items() if key in NEUTRAL and key not in known}, NEUTRAL)
    new = {key: value for key, value in given.items() if key in known or key not in (*NEUTRAL, "params")}
    if unknown := sorted(str(key) for key in new.keys() - known.keys()):
        raise GraphError(f"{owner}: a parameter group has unknown settings: {', '.join(unknown)}")
    return {**known, **({"initial_lr": new["lr"]} if "lr" in new else {}), **new}


def listed(owner: str, given: Any, what: str) -> list[Any]:
    """A list of one value or more, of anything that is iterated over. Raises GraphError."""
    if isinstance(given, (ad.Node, np.ndarray, Mapping, str)) or not isinstance(given, Iterable):
        raise GraphError(f"{owner}: the parameters must be a list of {what}, not a {type(given).__name__}")
    if not (values := list(given)):
        raise GraphError(f"{owner}: the list of parameters is empty")
    return values
