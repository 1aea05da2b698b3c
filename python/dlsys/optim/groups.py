"""Parameter groups: parameters with one learning rate and one set of options; how a user's arguments become them; and
the norm of all their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import number
from ..errors import GraphError
from ..tensors import is_leaf, leaf
from ..tensors.values import arrays_of

Accept = Callable[["ParameterGroup", dict[str, Any]], None]


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

    def __init__(self, owner: str, parameters: list[ad.Parameter], lr: Any, accept: Accept) -> None:
        """`owner`: the optimizer's name; `accept`: what sets a group's options, checked. Raises GraphError."""
        if not isinstance(parameters, list) or not all(map(is_leaf, parameters)):
            raise GraphError(f"{owner}: a parameter group has a list of Parameters, not {described(parameters)}")
        self.parameters = parameters
        self.options: dict[str, Any] = {}
        self._owner = owner
        self._accept = accept
        self._lr: float = number(owner, "lr", lr)
        self.initial_lr: float = self._lr
        dtypes = dict.fromkeys(parameter.dtype for parameter in parameters)
        self.rates: dict[str, ad.Parameter] = {dtype: _scalar("lr", self._lr, dtype) for dtype in dtypes}

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
        lr = number(self._owner, "lr", value)
        if lr != self._lr:
            self._lr = lr
            for rate in self.rates.values():
                rate.value = lr

    def __getitem__(self, key: str) -> Any:
        if key == "params":
            return self.parameters
        return getattr(self, key) if key in ("lr", "initial_lr") else self.options[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            self.lr = value
        elif key == "initial_lr":
            self.initial_lr = number(self._owner, key, value)
        elif key in self.options:
            self._accept(self, {**self.options, key: value})
        else:
            known = ", ".join(["lr", "initial_lr", *self.options])
            raise GraphError(f"{self._owner}: a parameter group has no setting {key!r} to change, but {known}")

    def __delitem__(self, key: str) -> None:
        raise GraphError(f"{self._owner}: a parameter group keeps its settings: {key!r}")

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


def global_norm(gradients: Sequence[ad.Node]) -> ad.Node:
    """The Euclidean norm of all gradients together, of shape (). They must have one dtype. Raises GraphError for no
    gradients and what is no node."""
    nodes = isinstance(gradients, (list, tuple)) and all(isinstance(gradient, ad.Node) for gradient in gradients)
    if not nodes or not gradients:
        raise GraphError(f"global_norm: needs a list of one gradient or more, not {described(gradients)}")
    return ad.sqrt_op(ad.sum_node_list([ad.reducesum_op(gradient * gradient) for gradient in gradients]))


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
    """The gradients that `backward` left in the parameters, one or several, scaled in place by
    min(1, max_norm / (norm + 1e-6)); returns their norm before, a float that has `item()` too.

    max_norm: infinity only measures. Raises GraphError for what is no parameter, and another max_norm.
    """
    is_infinite = isinstance(max_norm, float) and max_norm == math.inf
    limit = math.inf if is_infinite else number("clip_grad_norm_", "max_norm", max_norm)
    given: Any = [parameters] if isinstance(parameters, ad.Node) else parameters
    if isinstance(given, np.ndarray) or not isinstance(given, Iterable) or not all(map(is_leaf, given := list(given))):
        raise GraphError(f"clip_grad_norm_: takes parameters, not {described(parameters)}")
    left = [parameter for parameter in given if parameter.grad is not None]
    if not left:
        return np.float64(0.0)
    gradients = [parameter.grad * 1.0 for parameter in left]
    scaled = clip_grad_norm(gradients, limit) if limit < math.inf else []
    found, *values = arrays_of([global_norm(gradients), *scaled])
    for parameter, value in zip(left, values, strict=bool(scaled)):
        parameter.grad = leaf(value, name=parameter.grad.name)
    return np.float64(np.asarray(found))
