"""The base of all optimizers: groups of parameters, learning rates, state, and the node that updates them.

`minimize` and `update` compute nothing: they add the step to the graph, as assignments to the parameters and to the
optimizer's state, which are Parameters too. Evaluating the node that they return takes the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import has_no_effect, number
from ..errors import DTypeError, GraphError, ShapeError
from ..ops.state import WithUpdates
from ..scopes import scopes
from ..tensors.differentiate import zero_gradients
from .averages import averages
from .groups import ParameterGroup, as_groups, as_parameters, described
from .stepping import Stepping

IDLE: dict[str, bool | int | None] = {
    **dict.fromkeys(("params", "param_names", "foreach", "fused", "capturable", "differentiable"), None),
    **dict.fromkeys(("amsgrad", "maximize", "centered"), False),
    "decoupled_weight_decay": None, "dampening": 0,
}
"""Keys of PyTorch's groups that have no effect here, with the only accepted value; None accepts any value."""
Nodes = dict[str, ad.Node]
State = dict[str, ad.Parameter]
Settings = tuple[float, float, dict[str, Any]]
"""Of a group: lr, initial_lr, options."""


class Optimizer:
    """Base of the optimizers; a subclass defines its state and its step.

    Attributes:
        groups: the parameter groups, also called `param_groups`. defaults: the settings of groups that do not give
            their own.
        state: for each parameter the optimizer's state by PyTorch's names, Parameters of its dtype: "exp_avg" and
            others have its shape; "step", of shape (), is shared by all parameters of a group and dtype.
    """

    def __init__(self, params: Iterable[Any], lr: Any, options: dict[str, Any]) -> None:
        """Args:
            params: Parameters, or dicts {"params": Parameters, "lr": ..., and any other of the constructor's
                arguments} for groups with settings of their own.
            lr: the learning rate; changed by `lr = ...` or a schedule. lr, options: the settings of groups that do not
                give their own.

        Raises GraphError for other arguments, an empty list, a parameter given twice, a setting that is unknown or out
        of range.
        """
        if not isinstance(options, Mapping):
            raise GraphError(f"{type(self).__name__}: the options must be a dictionary, not {described(options)}")
        self.defaults: dict[str, Any] = {"lr": lr, **options}
        self.groups: list[ParameterGroup] = []
        self.state: dict[ad.Parameter, State] = {}
        self._stepping = Stepping()
        for given in as_groups(type(self).__name__, params):
            self.add_param_group(given)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add a group, a dict as in the constructor's `params`. It is not part of nodes that `update` and `minimize`
        have returned before. Raises GraphError as the constructor does."""
        name = type(self).__name__
        members = as_parameters(name, param_group)
        if unknown := sorted(param_group.keys() - self.defaults.keys() - {"params"}):
            raise GraphError(f"{name}: a parameter group has unknown settings: {', '.join(unknown)}")
        for i, parameter in enumerate(members):
            if parameter in self.state or parameter in set(members[:i]):
                raise GraphError(f"{name}: parameter {parameter.name} is given twice")
        settings = {key: param_group.get(key, value) for key, value in self.defaults.items()}
        group = ParameterGroup(name, members, settings.pop("lr"), self._accept)
        self._accept(group, settings)
        self.groups.append(group)

    def _accept(self, group: ParameterGroup, options: dict[str, Any]) -> None:
        """Set a group's options, and add the state that its parameters need for them. Raises GraphError."""
        group.data |= self._checked(options)
        for parameter in group.parameters:
            state = self.state.setdefault(parameter, {})
            for key, value in self._init(parameter, group.options).items():
                if key == "step":  # one counter for a group and dtype
                    state[key] = group.steps.setdefault(parameter.dtype, ad.Parameter(value, key, False))
                elif key not in state:
                    state[key] = ad.Parameter(value, f"{parameter.name}.{key}", False)

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """PyTorch's name for `groups`; a group is also a dictionary: `param_groups[0]["lr"] = 0.1`."""
        return self.groups

    @property
    def parameters(self) -> list[ad.Parameter]:
        """All parameters, in the user's order: that of `update`'s gradients."""
        return [parameter for group in self.groups for parameter in group.parameters]

    @property
    def lr(self) -> float:
        """The learning rate of the first group; setting it sets that of all groups. The next run reads it, and nothing
        is compiled again."""
        return self.groups[0].lr

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in self.groups:
            group.lr = value

    def __repr__(self) -> str:
        """One line for each group, with its settings."""
        return "\n".join([f"{type(self).__name__}:", *(f"  {group!r}" for group in self.groups)])

    def minimize(self, loss: ad.Node) -> ad.Node:
        """A node whose evaluation takes one step down the gradient of `sum(loss)`; `run` returns None for it.

        Parameters on which the loss does not depend, or that require no gradient, are not changed. In a group of
        processes (`dlsys.distributed`) the step is down the mean of their gradients. Raises GraphError for a loss that
        is no node, or that depends on none of the parameters.
        """
        if not isinstance(loss, ad.Node):
            raise GraphError(f"{type(self).__name__}.minimize: the loss must be a node, not {type(loss).__name__}")
        self._warn_of_autocast("minimize")
        found = self.gradients(loss)
        if all(gradient is None for gradient in found):
            names = ", ".join(parameter.name for parameter in self.parameters[:3])
            more = ", ..." if len(self.parameters) > 3 else ""
            told = f"{loss.name} depends on none of the parameters {names}{more} that require a gradient"
            raise GraphError(f"{type(self).__name__}.minimize: {told} (made at {loss.location})")
        step = self.update(found)
        # Updates of state by the loss, such as running means, belong to the step even if the loss is not evaluated.
        updates = [n for n in ad.find_topo_sort([loss]) if isinstance(n.op, WithUpdates)]
        assigns = dict.fromkeys(assign for node in updates for assign in node.inputs[1:])
        return ad.group([step, *assigns]) if assigns else step

    def gradients(self, loss: ad.Node) -> list[ad.Node | None]:
        """The gradients of `sum(loss)` in the order of `parameters`; None for parameters that require none, and for
        those on which the loss does not depend. In a group of processes their means."""
        reached = set(ad.find_topo_sort([loss]))
        wanted = [parameter for parameter in self.parameters if parameter.requires_grad and parameter in reached]
        gradients = averages.mean(self, ad.gradients(loss, wanted))
        found = dict(zip(wanted, gradients, strict=True))
        return [found.get(parameter) for parameter in self.parameters]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step now, with the gradients in the parameters' `grad`; parameters without one are not changed.

        `closure` is called first, to compute the loss and its gradients, and its result returned. Raises GraphError
        for a closure that cannot be called, ShapeError for a gradient of another shape than its parameter's."""
        if closure is not None and not callable(closure):
            told = f"takes a function that computes the loss, or nothing, not {described(closure)}"
            raise GraphError(f"{type(self).__name__}.step: {told}")
        loss = None if closure is None else closure()
        self._warn_of_autocast("step")
        parameters = self.parameters
        for parameter in parameters:
            grad = parameter.grad  # another thread may take it away
            if grad is not None and tuple(grad.shape) != parameter.shape:
                own = f"{parameter.name} has shape {parameter.shape}"
                raise ShapeError(f"{type(self).__name__}.step: {own}, its grad {tuple(grad.shape)}")
        self._stepping.take(self.groups, self._averaged_step)
        return loss

    def _warn_of_autocast(self, method: str) -> None:
        """Warns that parameters on a CPU make nothing of an `autocast` around."""
        if scopes.precision and all(parameter.device.kind == "cpu" for parameter in self.parameters):
            reason = "the parameters are on a CPU, whose products compute in float32"
            has_no_effect(f"{type(self).__name__}.{method}", "autocast", reason)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the parameters' `grad` to None, or to zeros."""
        zero_gradients(self.parameters, set_to_none)

    def update(self, gradients: Iterable[ad.Node | None]) -> ad.Node:
        """A node whose evaluation takes one step with these gradients, in the order of `parameters`; None leaves a
        parameter as it is. Raises GraphError for another number of gradients and for gradients that are no nodes. Wrong
        shapes and dtypes are an error when the node is evaluated."""
        name, parameters = f"{type(self).__name__}.update", self.parameters
        if isinstance(gradients, (ad.Node, np.ndarray)) or not isinstance(gradients, Iterable):
            raise GraphError(f"{name}: needs a list of gradients, not {described(gradients)}")
        gradients = list(gradients)
        if len(gradients) != len(parameters):
            raise GraphError(f"{name}: {len(gradients)} gradients for {len(parameters)} parameters")
        for gradient in gradients:
            if gradient is not None and not isinstance(gradient, ad.Node):
                raise GraphError(f"{name}: gradients must be nodes, not {type(gradient).__name__}")
        return self._step(dict(zip(parameters, gradients, strict=True)), {})

    def _averaged_step(
        self, gradient_of: Mapping[ad.Parameter, ad.Node], target_of: Mapping[ad.Parameter, ad.Parameter]
    ) -> ad.Node:
        """As `_step`, in a group of processes by the means of their gradients."""
        means = averages.mean(self, [*gradient_of.values()])
        return self._step(dict(zip(gradient_of, means, strict=True)), target_of)

    def _step(
        self, gradient_of: Mapping[ad.Parameter, ad.Node | None], target_of: Mapping[ad.Parameter, ad.Parameter]
    ) -> ad.Node:
        """As `update`; a new value is assigned to the parameter, or to `target_of[parameter]`, if there is one."""
        assigns: list[ad.Node] = []
        for group in self.groups:
            scalars: dict[str, Nodes] = {}
            for parameter in group.parameters:
                gradient, state, dtype = gradient_of.get(parameter), self.state[parameter], parameter.dtype
                if gradient is None:
                    continue
                options = group.options
                if dtype not in scalars:
                    step = state["step"] + 1.0 if "step" in state else None
                    scalars[dtype] = self._scalars(group.rates[dtype], step, options)
                    assigns += [ad.assign(state["step"], step)] if step is not None else []
                value, changed = self._update(parameter, gradient, state, scalars[dtype], options)
                assigns += [ad.assign(state[key], node) for key, node in changed.items()]
                assigns.append(ad.assign(target_of.get(parameter, parameter), value))
        return ad.group(assigns)

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch's: {"state": {0: {"exp_avg": array, ...}, ...}, "param_groups": [{"lr": ..., "params": [0, ...]},
        ...]}. The arrays are copies; a parameter is its number in the order of `parameters`, without its value."""
        number = {parameter: i for i, parameter in enumerate(self.parameters)}
        state = {
            number[p]: {key: np.array(self.state[p][key]) for key in self._init(p, group.options)}
            for group in self.groups
            for p in group.parameters
        }
        groups = [{**group, "params": [number[parameter] for parameter in group.parameters]} for group in self.groups]
        return {"state": {i: values for i, values in state.items() if values}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the groups' settings and the state from a `state_dict` of this class or PyTorch's, with as many
        parameters.

        Settings that are not given stay as they are. A parameter without state gets the initial state. If a group's
        parameters have different counts of steps, the group takes the largest. All settings but the learning rates are
        compiled into a step: load before `minimize` or `update`.

        Raises GraphError, which names missing and unexpected keys, ShapeError and DTypeError for a value that does not
        fit; then nothing is changed.
        """
        name = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise GraphError(f'{name}: needs a dictionary of "state" and "param_groups", as state_dict gives it')
        groups, state = state_dict["param_groups"], state_dict["state"]
        if not isinstance(state, Mapping) or not all(isinstance(value, Mapping) for value in state.values()):
            raise GraphError(f"{name}: state must be a dictionary of dictionaries")
        settings = [self._settings(name, *pair) for pair in zip(self.groups, self._matching(name, groups), strict=True)]
        values = self._values(name, settings, [place for group in groups for place in group.get("params", ())], state)
        for group, (lr, initial_lr, options) in zip(self.groups, settings, strict=True):
            group.lr = initial_lr
            group.schedule_lr(lr)
            self._accept(group, options)
            for step in group.steps.values():
                step.value = 0.0
        for parameter, found in zip(self.parameters, values, strict=True):
            for key, value in found.items():
                own = self.state[parameter][key]
                if key == "step":
                    own.value = max(own.value, value)
                else:
                    own.value = value

    def _matching(self, name: str, groups: Any) -> Sequence[Mapping[str, Any]]:
        """The groups of a state that has as many parameters in each as this optimizer. Raises GraphError."""
        if not isinstance(groups, Sequence) or not all(isinstance(group, Mapping) for group in groups):
            raise GraphError(f"{name}: param_groups must be a list of dictionaries")
        for places in (group.get("params", []) for group in groups):
            if not isinstance(places, Sequence) or not all(isinstance(place, (int, str)) for place in places):
                raise GraphError(f"{name}: the params of param_groups must be lists of parameters' numbers")
        own = [len(group.parameters) for group in self.groups]
        counts = [len(group["params"]) if "params" in group else None for group in groups]
        if len(counts) != len(own) or any(n not in (None, m) for n, m in zip(counts, own, strict=True)):
            raise GraphError(f"{name}: the optimizer's groups have {own} parameters, the state's {counts}")
        return groups

    def _settings(self, name: str, group: ParameterGroup, given: Mapping[str, Any]) -> Settings:
        """A group's lr, initial_lr and options: those that are given, its own for the others. Raises GraphError."""
        for key, default in IDLE.items():
            value = given.get(key, default)
            if default is not None and key not in group and (isinstance(value, np.ndarray) or value != default):
                raise GraphError(f"{name}: {key} must be {default}, not {value!r}: other values are not supported")
        if unexpected := sorted(set(given) - set(group) - IDLE.keys()):
            raise GraphError(f"{name}: a parameter group has unexpected settings: {', '.join(unexpected)}")
        lr = number(name, "lr", given.get("lr", group.lr))
        initial_lr = number(name, "initial_lr", given.get("initial_lr", lr if "lr" in given else group.initial_lr))
        return lr, initial_lr, self._checked({key: given.get(key, value) for key, value in group.options.items()})

    def _values(
        self, name: str, settings: list[Settings], places: list[Any], state: Mapping[Any, Mapping[str, Any]]
    ) -> list[dict[str, np.ndarray]]:
        """The state of each parameter, of a state's entries for the parameters of these numbers. Raises GraphError,
        ShapeError, DTypeError."""
        parameters = [(p, own[2]) for group, own in zip(self.groups, settings, strict=True) for p in group.parameters]
        places = places or list(range(len(parameters)))
        missing, unexpected = [], [f"state.{place}" for place in state if place not in places]
        found: list[dict[str, np.ndarray]] = []
        for place, (parameter, options) in zip(places, parameters, strict=True):
            starts = self._init(parameter, options)
            given = state.get(place) or starts
            missing += [f"state.{place}.{key}" for key in starts if key not in given]
            # PyTorch counts the steps of every optimizer, here those do that need it, and has None for no momentum
            extra = [key for key, value in given.items() if key not in starts and key != "step" and value is not None]
            unexpected += [f"state.{place}.{key}" for key in extra]
            values = {key: start if given.get(key) is None else given[key] for key, start in starts.items()}
            found.append({k: fitting(f"{name}: state.{place}.{k}", v, starts[k].shape) for k, v in values.items()})
        if missing or unexpected:
            parts = [("missing", missing), ("unexpected", unexpected)]
            raise GraphError(f"{name}: " + "; ".join(f"{kind} keys: {', '.join(keys)}" for kind, keys in parts if keys))
        return found

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """A group's options, checked: by default numbers >= 0. Raises GraphError."""
        return {key: number(type(self).__name__, key, value) for key, value in options.items()}

    def _init(self, parameter: ad.Parameter, options: dict[str, Any]) -> dict[str, np.ndarray]:
        """The state of a parameter before its first step, by PyTorch's names, each of its shape and dtype; "step", of
        shape (), counts the steps of the group."""
        return {}

    def _scalars(self, lr: ad.Node, step: ad.Node | None, options: dict[str, Any]) -> Nodes:
        """The nodes of shape () that a group's parameters of one dtype share. step: which step is being taken, 1 at
        first; None where `_init` has none."""
        return {"lr": lr}

    def _update(
        self, parameter: ad.Node, gradient: ad.Node, state: State, scalars: Nodes, options: dict[str, Any]
    ) -> tuple[ad.Node, Nodes]:
        """The parameter's new value and that of its state, but for "step"; `state` holds the old ones.

        Elementwise in the gradient, with scalars of shape (): so the compiler can make it part of the kernel that
        computes the gradient. What an option of zero switches off adds no node.
        """
        raise NotImplementedError


def zeros(parameter: ad.Parameter) -> np.ndarray:
    """Zeros of the parameter's shape and dtype."""
    return np.zeros(parameter.shape, parameter.dtype)


def fitting(place: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of numbers of that shape. Raises DTypeError, ShapeError."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{place} is {array.dtype}, not an array of numbers")
    if array.shape != shape:
        raise ShapeError(f"{place} has shape {shape}, the value {array.shape}")
    return array


def with_decay(parameter: ad.Node, gradient: ad.Node, weight_decay: float) -> ad.Node:
    """The gradient of the loss plus weight_decay / 2 * |parameter|^2."""
    return gradient + parameter * weight_decay if weight_decay else gradient
