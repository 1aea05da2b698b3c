"""What all optimizers share: groups of parameters, the learning rate, state, and the node that updates them.

An optimizer computes nothing itself. `minimize` and `update` write its step into the graph, as assignments to the
parameters and to the optimizer's own state, which are Parameters too; whoever evaluates the node takes the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import flag, number
from ..errors import DTypeError, GraphError, ShapeError
from ..ops.state import WithUpdates
from .groups import ParameterGroup, as_groups, as_parameters, described
from .stepping import Stepping

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
    if not isinstance(state, Mapping) or not all(isinstance(value, Mapping) for value in state.values()):
        raise GraphError(f"{name}: state must be a dictionary of dictionaries")
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
    for places in (group.get("params", []) for group in groups):
        if not isinstance(places, Sequence) or not all(isinstance(place, (int, str)) for place in places):
            raise GraphError(f"{name}: the params of param_groups must be lists of parameters' numbers")
    own = [len(group.parameters) for group in owner.groups]
    counts = [len(group["params"]) if "params" in group else None for group in groups]
    if len(counts) != len(own) or any(n not in (None, m) for n, m in zip(counts, own, strict=True)):
        raise GraphError(f"{name}: the optimizer's groups have {own} parameters, the state's {counts}")


def _settings(owner: Any, name: str, group: ParameterGroup, given: Mapping[str, Any]) -> Settings:
    """All settings of a group: those that are given, its own for the others. Raises GraphError."""
    for key, default in IDLE.items():
        value = given.get(key, default)
        if default is not None and (isinstance(value, np.ndarray) or value != default):
            raise GraphError(f"{name}: {key} must be {default}, not {value!r}: other values are not built")
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


Nodes = dict[str, ad.Node]
State = dict[str, ad.Parameter]


class Optimizer:
    """Base of the optimizers; a subclass says which state it keeps and what one step is.

    Attributes:
        groups: the parameter groups, also called `param_groups`.
        defaults: the settings of a group that does not say otherwise.
        state: for each parameter what the optimizer keeps of it by PyTorch's names, Parameters of its dtype: of its
            shape, as "exp_avg", or of shape (), as the number of its own steps.
    """

    def __init__(self, params: Iterable[Any], lr: Any, options: dict[str, Any]) -> None:
        """Args:
            params: Parameters, or dicts {"params": Parameters, "lr": ..., and any other of the constructor's
                arguments} for groups with settings of their own.
            lr, options: the settings of a group that does not say otherwise.

        Raises GraphError for what is none of these, an empty list, a parameter given twice, a setting that is
        unknown or out of range.
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
        """Take in one more group, a dict as the constructor takes them. Graphs of `update` and `minimize` that were
        made before do not know it. Raises GraphError as the constructor does."""
        name = type(self).__name__
        if not isinstance(param_group, Mapping):
            raise GraphError(f"{name}: a parameter group must be a dict, not {described(param_group)}")
        members = as_parameters(name, param_group)
        if unknown := sorted(param_group.keys() - self.defaults.keys() - {"params"}):
            raise GraphError(f"{name}: a parameter group has unknown settings: {', '.join(unknown)}")
        settings = {key: param_group.get(key, value) for key, value in self.defaults.items()}
        for i, parameter in enumerate(members):
            if parameter in self.state or parameter in set(members[:i]):
                raise GraphError(f"{name}: parameter {parameter.name} is given twice")
        group = ParameterGroup(name, members, settings.pop("lr"), self._accept)
        self._accept(group, settings)
        self.groups.append(group)

    def _accept(self, group: ParameterGroup, options: dict[str, Any]) -> None:
        """Let a group have options, and make the state that its parameters lack for them. Raises GraphError."""
        group.options = self._checked(options)
        for parameter in group.parameters:
            kept = self.state.setdefault(parameter, {})
            for key, value in self._starts(group.options, parameter).items():
                if key not in kept:
                    kept[key] = ad.Parameter(value, f"{parameter.name}.{key}", False)

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """PyTorch's name for `groups`: each reads and writes as a dictionary too, as `param_groups[0]["lr"] = 0.1`."""
        return self.groups

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

    def __repr__(self) -> str:
        """A line for each group: its settings."""
        return "\n".join([f"{type(self).__name__}:", *(f"  {group!r}" for group in self.groups)])

    def minimize(self, loss: ad.Node) -> ad.Node:
        """A node whose evaluation takes one step down the gradient of `sum(loss)`; `run` returns None for it.

        A parameter on which the loss does not depend, or a frozen one, is passed over. Raises GraphError for a loss
        that is no node, or depends on none of the parameters.
        """
        if not isinstance(loss, ad.Node):
            raise GraphError(f"{type(self).__name__}.minimize: the loss must be a node, not {type(loss).__name__}")
        found = self.gradients(loss)
        if all(gradient is None for gradient in found):
            names = ", ".join(parameter.name for parameter in self.parameters[:3])
            more = ", ..." if len(self.parameters) > 3 else ""
            told = f"{loss.name} depends on none of the parameters {names}{more} that require a gradient"
            raise GraphError(f"{type(self).__name__}.minimize: {told} (made at {loss.location})")
        step = self.update(found)
        # What the loss changes as it is computed, as running means, is changed also where it is not evaluated itself.
        updates = [n for n in ad.find_topo_sort([loss]) if isinstance(n.op, WithUpdates)]
        assigns = dict.fromkeys(assign for node in updates for assign in node.inputs[1:])
        return ad.group([step, *assigns]) if assigns else step

    def gradients(self, loss: ad.Node) -> list[ad.Node | None]:
        """The gradients of `sum(loss)` in the order of `parameters`; None for those that are frozen or take no part."""
        reached = set(ad.find_topo_sort([loss]))
        wanted = [parameter for parameter in self.parameters if parameter.requires_grad and parameter in reached]
        found = dict(zip(wanted, ad.gradients(loss, wanted), strict=True))
        return [found.get(parameter) for parameter in self.parameters]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, now, down the gradients that `backward` left in the parameters; one without is passed over.

        Returns what `closure` does, which is called first, to compute the loss and its gradients; None without. Raises
        GraphError for what cannot be called, ShapeError for a gradient of another shape."""
        if closure is not None and not callable(closure):
            told = f"takes a function that computes the loss, or nothing, not {described(closure)}"
            raise GraphError(f"{type(self).__name__}.step: {told}")
        loss = None if closure is None else closure()
        parameters = self.parameters
        for parameter in parameters:
            if parameter.grad is not None and tuple(parameter.grad.shape) != parameter.shape:
                own = f"{parameter.name} has shape {parameter.shape}"
                raise ShapeError(f"{type(self).__name__}.step: {own}, its grad {tuple(parameter.grad.shape)}")
        self._stepping.take(self.groups, self._scalar_state, self._update)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that `backward` left in the parameters, or set them to zeros."""
        set_to_none = flag("zero_grad", "set_to_none", set_to_none)
        for parameter in self.parameters:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad = ad.Parameter(np.zeros(parameter.shape, parameter.dtype), requires_grad=False)

    def update(self, gradients: Iterable[ad.Node | None]) -> ad.Node:
        """A node whose evaluation takes one step down these gradients, given in the order of `parameters`; a parameter
        whose gradient is None is passed over.

        Raises GraphError for another number of gradients and for what is no node; shapes and dtypes that are not
        the parameters' are found when it is run.
        """
        name, parameters = f"{type(self).__name__}.update", self.parameters
        if isinstance(gradients, (ad.Node, np.ndarray)) or not isinstance(gradients, Iterable):
            raise GraphError(f"{name}: needs a list of gradients, not {described(gradients)}")
        gradients = list(gradients)
        if len(gradients) != len(parameters):
            raise GraphError(f"{name}: {len(gradients)} gradients for {len(parameters)} parameters")
        for gradient in gradients:
            if gradient is not None and not isinstance(gradient, ad.Node):
                raise GraphError(f"{name}: gradients must be nodes, not {type(gradient).__name__}")
        return self._update(dict(zip(parameters, gradients, strict=True)), lambda group, parameter: parameter)

    def _scalar_state(self, group: ParameterGroup, parameter: ad.Parameter) -> list[ad.Parameter]:
        return [self.state[parameter][key] for key in self._scalars(group.options)]

    def _update(
        self,
        gradient_of: Mapping[ad.Parameter, ad.Node | None],
        sort: Callable[[ParameterGroup, ad.Parameter], Any],
        target_of: Mapping[ad.Parameter, ad.Parameter] | None = None,
    ) -> ad.Node:
        """See `update`. Parameters of a group and dtype that `sort` says to be of one sort, as their scalars are equal
        whenever the node is evaluated, share what is made of these. New values are assigned to the parameters, or to
        those that `target_of` has for them."""
        assigns: list[ad.Node] = []
        for group in self.groups:
            options = group.options
            shared = {dtype: self._shared(options, rate) for dtype, rate in group.rates.items()}
            own: dict[Any, tuple[Nodes, Nodes]] = {}
            for parameter in group.parameters:
                gradient = gradient_of.get(parameter)
                if gradient is None:
                    continue
                state = self.state[parameter]
                kind = (parameter.dtype, sort(group, parameter))
                if kind not in own:
                    own[kind] = self._own(options, shared[parameter.dtype], state)
                advanced, factors = own[kind]
                value, changed = self._step(options, parameter, gradient, state, factors)
                assigns += [ad.assign(state[key], node) for key, node in (advanced | changed).items()]
                assigns.append(ad.assign(parameter if target_of is None else target_of[parameter], value))
        return ad.group(assigns)

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch's: {"state": {0: {"exp_avg": array, ...}, ...}, "param_groups": [{"lr": ..., "params": [0, ...]},
        ...]}. State are copies; parameters are their numbers, in the order of `parameters`, without their values."""
        number = {parameter: i for i, parameter in enumerate(self.parameters)}
        state = {
            number[p]: {key: np.array(self.state[p][key]) for key in self._starts(group.options, p)}
            for group in self.groups
            for p in group.parameters
        }
        groups = [{**group, "params": [number[parameter] for parameter in group.parameters]} for group in self.groups]
        return {"state": {i: values for i, values in state.items() if values}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the groups' settings and the state to what `state_dict`, or PyTorch's, returned for an optimizer of the
        same kind and as many parameters. Settings that are not given stay as they are, a parameter without state
        begins anew. Options, all settings but the rates, are compiled into a step: load before `minimize` or `update`.

        Raises GraphError that names the missing and the unexpected keys, ShapeError and DTypeError for a value that
        does not fit; nothing is changed then.
        """
        settings, values = loaded(self, f"{type(self).__name__}.load_state_dict", state_dict)
        for group, (lr, initial_lr, options) in zip(self.groups, settings, strict=True):
            group.lr = initial_lr
            group.schedule_lr(lr)
            self._accept(group, options)
        for parameter, found in zip(self.parameters, values, strict=True):
            for key, value in found.items():
                self.state[parameter][key].value = value

    def _starts(self, options: dict[str, Any], parameter: ad.Parameter) -> dict[str, np.ndarray]:
        """The state that a parameter has, as it starts."""
        shapes = [(parameter.shape, self._buffers(options)), ((), self._scalars(options))]
        return {k: np.full(shape, v, parameter.dtype) for shape, starts in shapes for k, v in starts.items()}

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """A group's options, checked. Raises GraphError."""
        raise NotImplementedError

    def _buffers(self, options: dict[str, Any]) -> dict[str, float]:
        """The state of its shape that each parameter has, by name, and what it starts as."""
        return {}

    def _scalars(self, options: dict[str, Any]) -> dict[str, float]:
        """The state of shape () that each parameter has, by name, and what it starts as."""
        return {}

    def _shared(self, options: dict[str, Any], lr: ad.Parameter) -> Nodes:
        """The nodes that are computed once for all parameters of a group and dtype, of shape ()."""
        return {"lr": lr}

    def _own(self, options: dict[str, Any], shared: Nodes, state: State) -> tuple[Nodes, Nodes]:
        """The nodes that are computed once for a parameter: the new values of its scalars, and the factors that
        `_step` reads, all of shape ()."""
        return {}, shared

    def _step(
        self, options: dict[str, Any], parameter: ad.Parameter, gradient: ad.Node, state: State, factors: Nodes
    ) -> tuple[ad.Node, Nodes]:
        """The parameter's new value and those of its buffers; `state` holds the old ones.

        Elementwise in the gradient, with factors of shape (): so the compiler can make it part of the kernel that
        computes the gradient. What an option of zero switches off adds no node.
        """
        raise NotImplementedError


def with_decay(parameter: ad.Parameter, gradient: ad.Node, weight_decay: float) -> ad.Node:
    """The gradient of the loss plus weight_decay / 2 * |parameter|^2."""
    return gradient + parameter * weight_decay if weight_decay else gradient
