"""Parameter groups: parameters with one learning rate and one set of options; how a user's arguments become them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np

from .. import autodiff as ad
from ..errors import GraphError
from ..tensors import is_leaf


def checked_number(owner: str, name: str, value: Any, below: float = math.inf) -> float:
    """The value as a float in [0, below). Raises GraphError."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, numbers.Real):
        raise GraphError(f"{owner}: {name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < below:
        limits = ">= 0 and finite" if below == math.inf else f">= 0 and < {below:g}"
        raise GraphError(f"{owner}: {name} must be {limits}, not {value}")
    return number


class Owner(Protocol):
    """The methods of an optimizer that a group calls."""

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options, checked."""

    def _make_state(self, group: ParameterGroup) -> None:
        """Make the state that the group's parameters lack."""


class ParameterGroup(MutableMapping[str, Any]):
    """Parameters with one learning rate and one set of options; as in PyTorch also a dictionary of them: `group["lr"]`.

    Of the entries "params" is fixed. "lr" is read by the next run; the others are compiled into a step, so that setting
    one changes the steps that are built from then on, by `step`, `update` or `minimize`.

    Attributes:
        parameters: in the user's order.
        options: the optimizer's other settings, by its constructor's names.
        initial_lr: the learning rate that was last set by hand; schedules start from it.
        rates: the learning rate as the graph reads it: for each dtype of the parameters a Parameter of shape ().
    """

    def __init__(self, owner: Owner, parameters: list[ad.Parameter], lr: Any, options: dict[str, Any]) -> None:
        self.parameters = parameters
        self.options = options
        self._owner = owner
        self.initial_lr = self._lr = checked_number(type(owner).__name__, "lr", lr)
        dtypes = dict.fromkeys(parameter.dtype for parameter in parameters)
        self.rates = {dtype: _scalar("lr", self._lr, dtype) for dtype in dtypes}

    @property
    def lr(self) -> float:
        """The learning rate, a number >= 0. Setting it compiles nothing; the next run reads it."""
        return self._lr

    @lr.setter
    def lr(self, value: Any) -> None:
        self.schedule_lr(value)
        self.initial_lr = self._lr

    def schedule_lr(self, value: Any) -> None:
        """Set the learning rate, and leave `initial_lr`."""
        lr = checked_number(type(self._owner).__name__, "lr", value)
        if lr != self._lr:
            self._lr = lr
            for rate in self.rates.values():
                rate.value = lr

    def __getitem__(self, key: str) -> Any:
        if key == "params":
            return self.parameters
        return getattr(self, key) if key in ("lr", "initial_lr") else self.options[key]

    def __setitem__(self, key: str, value: Any) -> None:
        name = type(self._owner).__name__
        if key == "lr":
            self.lr = value
        elif key == "initial_lr":
            self.initial_lr = checked_number(name, key, value)
        elif key in self.options:
            self.options = self._owner._checked({**self.options, key: value})
            self._owner._make_state(self)
        else:
            known = ", ".join(["lr", "initial_lr", *self.options])
            raise GraphError(f"{name}: a parameter group has no setting {key!r} to change, but {known}")

    def __delitem__(self, key: str) -> None:
        raise GraphError(f"{type(self._owner).__name__}: a parameter group keeps its settings: {key!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(["params", "lr", "initial_lr", *self.options])

    def __len__(self) -> int:
        return 3 + len(self.options)

    __eq__ = object.__eq__  # a mapping's would compare the parameters
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.items() if key != "params")
        return f"ParameterGroup({len(self.parameters)} parameters, {settings})"


def _scalar(name: str, value: float, dtype: str) -> ad.Parameter:
    return ad.Parameter(np.asarray(value, dtype), name, requires_grad=False)


def as_groups(owner: str, params: Any) -> list[Mapping[str, Any]]:
    """The constructor's first argument as groups. Raises GraphError."""
    if callable(getattr(params, "parameters", None)):
        raise GraphError(f"{owner}: give the model's parameters(), not the {type(params).__name__}")
    if isinstance(params, (ad.Node, np.ndarray, Mapping, str)) or not isinstance(params, Iterable):
        raise GraphError(f"{owner}: parameters must be a list of Parameters or groups, not {described(params)}")
    given = list(params)
    if not given:
        raise GraphError(f"{owner}: the list of parameters is empty")
    if not any(isinstance(item, Mapping) for item in given):
        return [{"params": given}]
    for item in given:
        if not isinstance(item, Mapping):
            raise GraphError(f"{owner}: parameters must be Parameters or groups, not both")
    return given


def as_parameters(owner: str, group: Mapping[str, Any]) -> list[ad.Parameter]:
    """A group's Parameters; one alone stands for a list of one, as in PyTorch. Raises GraphError."""
    if "params" not in group:
        raise GraphError(f'{owner}: a parameter group must have the key "params"')
    given = group["params"]
    if is_leaf(given):
        given = [given]
    if isinstance(given, (ad.Node, np.ndarray, str)) or not isinstance(given, Iterable):
        raise GraphError(f'{owner}: a group\'s "params" must be a list of Parameters, not {described(given)}')
    members = [item[1] if _is_named(item) else item for item in given]
    if not members:
        raise GraphError(f"{owner}: a parameter group is empty")
    for parameter in members:
        if not is_leaf(parameter):
            raise GraphError(f"{owner}: {described(parameter)} is not a Parameter")
    return members


def _is_named(item: Any) -> bool:
    """Whether it is a pair of `named_parameters`."""
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def described(value: Any) -> str:
    """A value that is not what an argument must be, for an error."""
    if isinstance(value, ad.Node):
        return f"{value.op.name} {value.name} (made at {value.location})"
    return f"a {type(value).__name__}"
