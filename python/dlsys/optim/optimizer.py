"""What all optimizers share: groups of parameters, the learning rate, state, and the node that updates them.

An optimizer computes nothing itself. `minimize` and `update` write its step into the graph, as assignments to the
parameters and to the optimizer's own state, which are Parameters too; whoever evaluates the node takes the step.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..eager import evaluate
from ..errors import DTypeError, GraphError, ShapeError

Nodes = dict[str, ad.Node]


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


class ParameterGroup:
    """Parameters with one learning rate and one set of options.

    Attributes:
        parameters: in the user's order.
        options: the optimizer's other settings, by its constructor's names; compiled into the step.
        initial_lr: the learning rate that was last set by hand; schedules start from it.
        rates: the learning rate as the graph reads it: for each dtype of the parameters a Parameter of shape ().
        scalars: for each of these dtypes the optimizer's state of shape () by name, as the number of steps.
    """

    def __init__(
        self,
        owner: str,
        parameters: list[ad.Parameter],
        lr: Any,
        options: dict[str, Any],
        scalars: dict[str, float],
    ) -> None:
        self.parameters = parameters
        self.options = options
        self.initial_lr = self._lr = checked_number(owner, "lr", lr)
        dtypes = dict.fromkeys(parameter.dtype for parameter in parameters)
        self.rates = {dtype: ad.Parameter(np.asarray(self._lr, dtype), "lr", requires_grad=False) for dtype in dtypes}
        self.scalars = {
            dtype: {
                name: ad.Parameter(np.asarray(value, dtype), name, requires_grad=False)
                for name, value in scalars.items()
            }
            for dtype in dtypes
        }
        self._owner = owner

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
        lr = checked_number(self._owner, "lr", value)
        if lr != self._lr:
            self._lr = lr
            for rate in self.rates.values():
                rate.value = lr


class Optimizer:
    """Base of the optimizers; a subclass says which state it keeps and what one step is.

    Attributes:
        groups: the parameter groups.
        state: for each parameter its buffers by PyTorch's names, Parameters of its shape and dtype.
    """

    def __init__(self, parameters: Iterable[Any], lr: Any, options: dict[str, Any]) -> None:
        """Args:
            parameters: Parameters, or dicts {"params": Parameters, "lr": ..., and any other of the constructor's
                arguments} for groups with settings of their own.
            lr, options: the settings of a group that does not say otherwise.

        Raises GraphError for what is none of these, an empty list, a parameter given twice, a setting that is
        unknown or out of range.
        """
        name = type(self).__name__
        self.groups: list[ParameterGroup] = []
        self.state: dict[ad.Parameter, dict[str, ad.Parameter]] = {}
        for given in _as_groups(name, parameters):
            settings = {"lr": lr, **options, **given}
            members = _as_parameters(name, settings.pop("params"))
            if unknown := sorted(settings.keys() - options.keys() - {"lr"}):
                raise GraphError(f"{name}: a parameter group has unknown settings: {', '.join(unknown)}")
            rate = settings.pop("lr")
            checked = self._checked(settings)
            self.groups.append(ParameterGroup(name, members, rate, checked, self._scalars(checked)))
            for parameter in members:
                if parameter in self.state:
                    raise GraphError(f"{name}: parameter {parameter.name} is given twice")
                self.state[parameter] = {
                    buffer: ad.Parameter(
                        np.zeros(parameter.shape, parameter.dtype), f"{parameter.name}.{buffer}", requires_grad=False
                    )
                    for buffer in self._buffers(checked)
                }

    @property
    def parameters(self) -> list[ad.Parameter]:
        """All parameters, in the user's order: that of `update`'s gradients."""
        return [parameter for group in self.groups for parameter in group.parameters]

    @property
    def lr(self) -> float:
        """The learning rate, of the first group where there are several; setting it sets it for all groups.
        The next run reads it, nothing is compiled anew."""
        return self.groups[0].lr

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in self.groups:
            group.lr = value

    def minimize(self, loss: ad.Node) -> ad.Node:
        """A node whose evaluation takes one step down the gradient of `sum(loss)`; `run` returns None for it.

        A parameter on which the loss does not depend has gradient zeros, a frozen one is passed over. Raises GraphError
        for a loss that is no node.
        """
        if not isinstance(loss, ad.Node):
            raise GraphError(
                f"{type(self).__name__}.minimize: the loss must be a node, not {type(loss).__name__}"
            )
        step = self.update(self.gradients(loss))
        # What the loss changes as it is computed, as running means, is changed also where it is not evaluated itself.
        updates = [n for n in ad.find_topo_sort([loss]) if n.op.name == "with_updates"]
        assigns = dict.fromkeys(assign for node in updates for assign in node.inputs[1:])
        return ad.group([step, *assigns]) if assigns else step

    def gradients(self, loss: ad.Node) -> list[ad.Node | None]:
        """The gradients of `sum(loss)` in the order of `parameters`; None for those that are frozen."""
        wanted = [parameter for parameter in self.parameters if parameter.requires_grad]
        found = dict(zip(wanted, ad.gradients(loss, wanted), strict=True))
        return [found.get(parameter) for parameter in self.parameters]

    def step(self) -> None:
        """Take one step, now, down the gradients that `backward` left in the parameters; one without is passed over."""
        evaluate([self.update([parameter.grad for parameter in self.parameters])])

    def zero_grad(self) -> None:
        """Forget the gradients that `backward` left in the parameters."""
        for parameter in self.parameters:
            parameter.grad = None

    reset_grad = zero_grad

    def update(self, gradients: Iterable[ad.Node | None]) -> ad.Node:
        """A node whose evaluation takes one step down these gradients, given in the order of `parameters`; a parameter
        whose gradient is None is passed over.

        Raises GraphError for another number of gradients and for what is no node; shapes and dtypes that are not
        the parameters' are found when it is run.
        """
        name, parameters = f"{type(self).__name__}.update", self.parameters
        if isinstance(gradients, ad.Node) or not isinstance(gradients, Iterable):
            raise GraphError(f"{name}: needs a list of gradients, not {_described(gradients)}")
        gradients = list(gradients)
        if len(gradients) != len(parameters):
            raise GraphError(f"{name}: {len(gradients)} gradients for {len(parameters)} parameters")
        for gradient in gradients:
            if gradient is not None and not isinstance(gradient, ad.Node):
                raise GraphError(f"{name}: gradients must be nodes, not {type(gradient).__name__}")
        gradient_of = dict(zip(parameters, gradients, strict=True))
        assigns: list[ad.Node] = []
        for group in self.groups:
            factors: dict[str, Nodes] = {}
            moved = [(p, g) for p in group.parameters if (g := gradient_of[p]) is not None]
            for dtype, scalars in group.scalars.items():
                if all(parameter.dtype != dtype for parameter, _ in moved):
                    continue
                advanced, factors[dtype] = self._shared(group.options, group.rates[dtype], scalars)
                assigns += [ad.assign(scalars[key], node) for key, node in advanced.items()]
            for parameter, gradient in moved:
                buffers = self.state[parameter]
                value, changed = self._step(
                    group.options, parameter, gradient, buffers, factors[parameter.dtype]
                )
                assigns += [ad.assign(buffers[key], node) for key, node in changed.items()]
                assigns.append(ad.assign(parameter, value))
        return ad.group(assigns)

    def state_dict(self) -> dict[str, Any]:
        """The learning rates, as numbers, and copies of the state, as arrays; the parameters' values and the options
        are not part of it. Groups and parameters are named by their position: "groups.0.lr", "state.2.exp_avg"."""
        rates: dict[str, Any] = {}
        for i, group in enumerate(self.groups):
            rates |= {f"groups.{i}.lr": group.lr, f"groups.{i}.initial_lr": group.initial_lr}
        return rates | {key: parameter.value for key, parameter in self._named_state().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set learning rates and state to what `state_dict` returned for an optimizer of the same kind and options.

        Raises GraphError that names the missing and the unexpected keys, ShapeError and DTypeError for a value that
        does not fit; nothing is changed then.
        """
        name = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, Mapping):
            raise GraphError(f"{name}: needs a dictionary, not {type(state).__name__}")
        known = self._named_state()
        numbers_of_groups = [
            f"groups.{i}.{key}" for i in range(len(self.groups)) for key in ("lr", "initial_lr")
        ]
        expected = [*numbers_of_groups, *known]
        missing = [key for key in expected if key not in state]
        unexpected = sorted(str(key) for key in state if key not in set(expected))
        if missing or unexpected:
            parts = [("missing", missing), ("unexpected", unexpected)]
            raise GraphError(
                f"{name}: " + "; ".join(f"{kind} keys: {', '.join(keys)}" for kind, keys in parts if keys)
            )
        rates = [checked_number(name, key, state[key]) for key in numbers_of_groups]
        values = {}
        for key, parameter in known.items():
            values[key] = value = np.asarray(state[key])
            if value.dtype.kind not in "fiub":
                raise DTypeError(f"{name}: {key} is {value.dtype}, not an array of numbers")
            if value.shape != parameter.shape:
                raise ShapeError(f"{name}: {key} has shape {parameter.shape}, the value {value.shape}")
        for group, lr, initial_lr in zip(self.groups, rates[::2], rates[1::2], strict=True):
            group.lr = lr
            group.initial_lr = initial_lr
        for key, parameter in known.items():
            parameter.value = values[key]

    def _named_state(self) -> dict[str, ad.Parameter]:
        """The optimizer's own Parameters, learning rates excepted, by their names in `state_dict`."""
        named: dict[str, ad.Parameter] = {}
        for i, group in enumerate(self.groups):
            for dtype, scalars in group.scalars.items():
                named |= {f"groups.{i}.{key}.{dtype}": scalar for key, scalar in scalars.items()}
        for i, parameter in enumerate(self.parameters):
            named |= {f"state.{i}.{key}": buffer for key, buffer in self.state[parameter].items()}
        return named

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """A group's options, checked. Raises GraphError."""
        raise NotImplementedError

    def _buffers(self, options: dict[str, Any]) -> tuple[str, ...]:
        """The names of the buffers that each parameter has; they start as zeros."""
        return ()

    def _scalars(self, options: dict[str, Any]) -> dict[str, float]:
        """The state of shape () that the parameters of one dtype share, by name, and what it starts as."""
        return {}

    def _shared(
        self, options: dict[str, Any], lr: ad.Parameter, scalars: dict[str, ad.Parameter]
    ) -> tuple[Nodes, Nodes]:
        """What is computed once for all parameters of a group and dtype: the scalars' new values, and the factors
        that `_step` reads, all of shape ()."""
        return {}, {"lr": lr}

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        buffers: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        """The parameter's new value and those of its buffers.

        Elementwise in the gradient, with factors of shape (): so the compiler can make it part of the kernel that
        computes the gradient. What an option of zero switches off adds no node.
        """
        raise NotImplementedError


def _as_groups(owner: str, parameters: Any) -> list[Mapping[str, Any]]:
    """The constructor's first argument as groups."""
    if isinstance(parameters, (ad.Node, Mapping, str)) or not isinstance(parameters, Iterable):
        raise GraphError(
            f"{owner}: parameters must be a list of Parameters or groups, not {_described(parameters)}"
        )
    given = list(parameters)
    if not given:
        raise GraphError(f"{owner}: the list of parameters is empty")
    if not any(isinstance(item, Mapping) for item in given):
        return [{"params": given}]
    for item in given:
        if not isinstance(item, Mapping):
            raise GraphError(f"{owner}: parameters must be Parameters or groups, not both")
        if "params" not in item:
            raise GraphError(f'{owner}: a parameter group must have the key "params"')
    return given


def _as_parameters(owner: str, given: Any) -> list[ad.Parameter]:
    """A group's Parameters; one alone stands for a list of one, as in PyTorch."""
    if isinstance(given, ad.Parameter):
        given = [given]
    if isinstance(given, (ad.Node, str)) or not isinstance(given, Iterable):
        raise GraphError(
            f'{owner}: a group\'s "params" must be a list of Parameters, not {_described(given)}'
        )
    members = list(given)
    if not members:
        raise GraphError(f"{owner}: a parameter group is empty")
    for parameter in members:
        if not isinstance(parameter, ad.Parameter):
            raise GraphError(f"{owner}: {_described(parameter)} is not a Parameter")
    return members


def _described(value: Any) -> str:
    """A value that is not what an argument must be, for an error."""
    if isinstance(value, ad.Node):
        return f"{value.op.name} {value.name} (made at {value.location})"
    return f"a {type(value).__name__}"


def with_decay(parameter: ad.Parameter, gradient: ad.Node, weight_decay: float) -> ad.Node:
    """The gradient of the loss plus weight_decay / 2 * |parameter|^2."""
    return gradient + parameter * weight_decay if weight_decay else gradient
