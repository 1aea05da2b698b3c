"""Parameter groups, which have one learning rate and one set of options, their arguments, and the norm of gradients."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import number
from ..errors import GraphError
from ..tensors import is_leaf, leaf
from ..tensors.values import arrays_of
from .averages import averages

Accept = Callable[["ParameterGroup", dict[str, Any]], None]


class ParameterGroup(UserDict[str, Any]):
    """Parameters with one learning rate and one set of options, also as a dictionary, as in PyTorch: `group["lr"]`.

    "params" cannot be changed. "initial_lr" is the rate that was last set by hand, from which schedules start. "lr" is
    read by the next run. The others, the options, are compiled into a step: setting one changes the steps that are
    built afterwards, by `step`, `update` or `minimize`.

    Attributes:
        rates, steps: the learning rate and the number of steps, which graphs read: a Parameter of shape () for each
            dtype of the parameters. Methods that do not count their steps have empty `steps`.
    """

    def __init__(self, owner: str, parameters: list[ad.Parameter], lr: Any, accept: Accept) -> None:
        """`owner` is the optimizer's name, `accept` checks and sets a group's options. Raises GraphError."""
        self._owner, self._accept, rate = owner, accept, number(owner, "lr", lr)
        self.data: dict[str, Any] = {"params": parameters, "lr": rate, "initial_lr": rate}
        dtypes = dict.fromkeys(parameter.dtype for parameter in parameters)
        self.rates: dict[str, ad.Parameter] = {
            dtype: ad.Parameter(np.asarray(rate, dtype), "lr", requires_grad=False) for dtype in dtypes
        }
        self.steps: dict[str, ad.Parameter] = {}

    @property
    def parameters(self) -> list[ad.Parameter]:
        """The group's Parameters, in the user's order."""
        return self.data["params"]

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's other settings, by its constructor's names."""
        return {key: value for key, value in self.data.items() if key not in ("params", "lr", "initial_lr")}

    @property
    def lr(self) -> float:
        """The learning rate, a number >= 0. Setting it compiles nothing; the next run reads it."""
        return self.data["lr"]

    @lr.setter
    def lr(self, value: Any) -> None:
        self.schedule_lr(value)
        self.data["initial_lr"] = self.lr

    @property
    def initial_lr(self) -> float:
        """The learning rate that was last set by hand."""
        return self.data["initial_lr"]

    def schedule_lr(self, value: Any) -> None:
        """Set the learning rate, and leave `initial_lr`."""
        lr = number(self._owner, "lr", value)
        if lr != self.lr:
            self.data["lr"] = lr
            for rate in self.rates.values():
                rate.value = lr

    def __setitem__(self, key: str, value: Any) -> None:
        """Changes a setting of the group, in the compiled steps too. Raises GraphError for an unknown one."""
        if key == "lr":
            self.lr = value
        elif key == "initial_lr":
            self.data[key] = number(self._owner, key, value)
        elif key in self.options:
            self._accept(self, {**self.options, key: value})
        else:
            known = ", ".join(key for key in self if key != "params")
            raise GraphError(f"{self._owner}: a parameter group has no setting {key!r} to change, but {known}")

    def __delitem__(self, key: str) -> None:
        raise GraphError(f"{self._owner}: a parameter group keeps its settings: {key!r}")

    def __eq__(self, other: object) -> bool:
        return self is other  # a mapping's would compare the parameters

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.items() if key != "params")
        return f"ParameterGroup({len(self.parameters)} parameters, {settings})"


def as_groups(owner: str, params: Any) -> list[Mapping[str, Any]]:
    """The constructor's first argument as groups. Raises GraphError."""
    if callable(getattr(params, "parameters", None)):
        raise GraphError(f"{owner}: give the model's parameters(), not the {type(params).__name__}")
    given = _listed(params, f"{owner}: parameters must be a list of Parameters or groups")
    if not given:
        raise GraphError(f"{owner}: the list of parameters is empty")
    are_groups = {isinstance(item, Mapping) for item in given}
    if len(are_groups) == 2:
        raise GraphError(f"{owner}: parameters must be Parameters or groups, not both")
    return given if True in are_groups else [{"params": given}]


def as_parameters(owner: str, group: Any) -> list[ad.Parameter]:
    """A group's Parameters, given as a list or, as in PyTorch, as one Parameter. Raises GraphError."""
    if not isinstance(group, Mapping):
        raise GraphError(f"{owner}: a parameter group must be a dict, not {described(group)}")
    if "params" not in group:
        raise GraphError(f'{owner}: a parameter group must have the key "params"')
    given = [group["params"]] if is_leaf(group["params"]) else group["params"]
    members = _listed(given, f'{owner}: a group\'s "params" must be a list of Parameters')
    if not members:
        raise GraphError(f"{owner}: a parameter group is empty")
    for i, item in enumerate(members):
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):  # of `named_parameters`
            members[i] = item[1]
        if not is_leaf(members[i]):
            raise GraphError(f"{owner}: {described(members[i])} is not a Parameter")
    return members


def _listed(given: Any, otherwise: str) -> list[Any]:
    """The given Parameters or groups as a list. Raises GraphError for a value that is no collection."""
    if isinstance(given, (ad.Node, np.ndarray, Mapping, str)) or not isinstance(given, Iterable):
        raise GraphError(f"{otherwise}, not {described(given)}")
    return list(given)


def described(value: Any) -> str:
    """A description of a wrong argument, for an error."""
    if isinstance(value, ad.Node):
        return f"{value.op.name} {value.name} (made at {value.location})"
    return f"a {type(value).__name__}"


def global_norm(gradients: Sequence[ad.Node]) -> ad.Node:
    """The Euclidean norm of all gradients together, of shape (). They must have one dtype. Raises GraphError for an
    empty list, and for gradients that are no nodes."""
    nodes = isinstance(gradients, (list, tuple)) and all(isinstance(gradient, ad.Node) for gradient in gradients)
    if not nodes or not gradients:
        raise GraphError(f"global_norm: needs a list of one gradient or more, not {described(gradients)}")
    squares: list[ad.Node] = [ad.reducesum_op(gradient * gradient) for gradient in gradients]
    return ad.sqrt_op(ad.sum_node_list(squares))


def clip_grad_norm(gradients: Sequence[ad.Node], max_norm: float) -> list[ad.Node]:
    """The gradients scaled by min(1, max_norm / (norm + 1e-6)), where norm is their `global_norm`, as by
    torch.nn.utils.clip_grad_norm_. Raises GraphError for a max_norm that is no number >= 0."""
    limit, norm = number("clip_grad_norm", "max_norm", max_norm), global_norm(gradients)
    if any(is_leaf(value) and getattr(value, "requires_grad", False) for value in gradients):
        raise GraphError("clip_grad_norm: takes gradients, not parameters: clip_grad_norm_ takes those")
    # limit / max(limit, norm), and exactly 1 where nothing is clipped
    scale = limit / (ad.relu_op(norm + (1e-6 - limit)) + limit)
    return [gradient * scale for gradient in gradients]


def clip_grad_norm_(parameters: Any, max_norm: float) -> np.float64:
    """Scale the `grad` of one or several parameters by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils does.
    Returns the norm before, a float with a method `item()`. With max_norm = infinity nothing is scaled. Raises
    GraphError for an argument that is no parameter, for a max_norm that is no number >= 0, and in a group of processes,
    where `grad` is of this process alone."""
    if averages.count() > 1:
        told = "each process has its own gradients: use fit(clip_norm=), or clip_grad_norm of optimizer.gradients(loss)"
        raise GraphError(f"clip_grad_norm_: {told}")
    is_infinite = isinstance(max_norm, float) and max_norm == math.inf
    limit = math.inf if is_infinite else number("clip_grad_norm_", "max_norm", max_norm)
    left = _with_gradients("clip_grad_norm_", parameters)
    if not left:
        return np.float64(0.0)
    gradients = [parameter.grad * 1.0 for parameter in left]
    scaled = clip_grad_norm(gradients, limit) if limit < math.inf else []
    found, *values = arrays_of([global_norm(gradients), *scaled])
    for parameter, value in zip(left, values, strict=bool(scaled)):
        parameter.grad = leaf(value, name=parameter.grad.name)
    return np.float64(np.asarray(found))


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Clamp the `grad` of one or several parameters to [-clip_value, clip_value], as torch.nn.utils does. Raises
    GraphError as `clip_grad_norm_` does."""
    limit = number("clip_grad_value_", "clip_value", clip_value)
    left = _with_gradients("clip_grad_value_", parameters)
    for parameter, value in zip(left, arrays_of([p.grad.clamp(-limit, limit) for p in left]), strict=True):
        parameter.grad = leaf(value, name=parameter.grad.name)


def _with_gradients(op: str, parameters: Any) -> list[Any]:
    """Those of one or several parameters that have a `grad`. Raises GraphError for what are no parameters."""
    given: Any = [parameters] if isinstance(parameters, ad.Node) else parameters
    if isinstance(given, np.ndarray) or not isinstance(given, Iterable) or not all(map(is_leaf, given := list(given))):
        raise GraphError(f"{op}: takes parameters, not {described(parameters)}")
    return [parameter for parameter in given if parameter.grad is not None]
