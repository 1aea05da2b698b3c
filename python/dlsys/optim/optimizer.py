"""The base of all optimizers: groups of parameters, their state, and the steps that change both.

A subclass has one formula, `update`, which computes a parameter's new value. `minimize` puts it into a graph, as
assignments to the parameters and to the state, which are Parameters too: evaluating the node that it returns takes the
step. `step` takes one now, with the gradients that `backward` has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import flag, has_no_effect, number, require_neutral
from ..devices import copied
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import Node, is_node
from ..ops.state import WithUpdates
from ..scopes import scopes
from ..tensors import is_leaf, leaf, no_grad
from ..tensors.backward import zero_gradients
from ..tensors.evaluate import Step, array_of, changing, evaluate
from ..tensors.inplace import lasting, write
from ..tensors.structure import Update
from .averages import averages
from .groups import NEUTRAL, ParameterGroup, Settings, listed, merged

Values = Mapping[Any, Any]
"""A node for each parameter: its gradient, or its new value."""
State = Mapping[str, Node]
Updated = tuple[Node, dict[str, Node]]
"""A parameter's new value, and that of its state."""


class Optimizer:
    """Base of the optimizers. A subclass defines `update`, and `initial` if it has state.

    Attributes:
        param_groups: the parameter groups. defaults: the settings of groups that do not give their own.
        state: for each parameter the optimizer's state by PyTorch's names, Parameters of its dtype: "exp_avg" and
            others have its shape; "step", of shape (), is shared by all parameters of a group and dtype.
    """

    def __init__(self, params: Iterable[Any], defaults: Settings, **neutral: Any) -> None:
        """Args:
            params: Parameters, or dictionaries {"params": Parameters, "lr": ..., and any other of the constructor's
                arguments} for groups with settings of their own.
            defaults: "lr", and the other settings, of groups that do not give their own.
            neutral: PyTorch's arguments that change no result, see `groups.NEUTRAL`.

        Raises GraphError for other arguments, an empty list, a parameter given twice, a setting that is unknown or out
        of range.
        """
        require_neutral(type(self).__name__, neutral, NEUTRAL)
        self.defaults: dict[str, Any] = dict(defaults)
        self.param_groups: list[ParameterGroup] = []
        self.state: dict[ad.Parameter, dict[str, ad.Parameter]] = {}
        given = listed(type(self).__name__, params, "Parameters or groups")
        for group in given if isinstance(given[0], Mapping) else [{"params": given}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: Settings) -> None:
        """Add a group, a dictionary as in the constructor's `params`. It is not part of nodes that `minimize` has
        returned before. Raises GraphError as the constructor does."""
        name, known = type(self).__name__, set[Any](self.parameters)
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise GraphError(f'{name}: a parameter group must be a dictionary with the key "params"')
        given, parameters = param_group["params"], list[Any]()
        for item in listed(name, [given] if is_leaf(given) else given, "Parameters"):
            parameter = item[1] if isinstance(item, tuple) and len(item) == 2 else item  # of `named_parameters`
            if not is_leaf(parameter):
                computed = f"{parameter.name}, which is computed," if is_node(parameter) else f"{parameter!r}"
                raise GraphError(f"{name}: {computed} is not a Parameter")
            if parameter in known:
                raise GraphError(f"{name}: parameter {parameter.name} is given twice")
            known.add(parameter)
            parameters.append(parameter)
        settings = {"lr": self.defaults["lr"], "initial_lr": self.defaults["lr"], **self.defaults}
        self.param_groups.append(ParameterGroup(parameters, merged(name, settings, param_group), self.check))

    @property
    def parameters(self) -> list[ad.Parameter]:
        """All parameters, in the user's order."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @property
    def lr(self) -> float:
        """The learning rate of the first group; setting it sets that of all groups. The next run reads it, and nothing
        is compiled again."""
        return self.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def __repr__(self) -> str:
        return "\n".join([f"{type(self).__name__}:", *(f"  {group!r}" for group in self.param_groups)])

    # What a subclass defines -----------------------------------------------------------------------------------

    def update(self, p: Node, g: Node, state: State, lr: Node, step: Node, group: Settings) -> Updated:
        """The new value of a parameter and of its state, from its value p, its gradient g and its state.

        lr: the learning rate, of shape (). step: which step it is, 1 at first, of shape (). group: the other settings.
        Where the formula is elementwise in p, g and the state, it becomes part of the kernel that computes the
        gradient. A setting of zero should add no node.
        """
        raise NotImplementedError

    def initial(self, group: Settings) -> dict[str, float]:
        """The names of a parameter's state, and the number with which each is filled at first. Arrays have the
        parameter's shape; "step", of shape (), counts the steps of the group."""
        return {}

    def check(self, settings: Settings) -> dict[str, Any]:
        """The settings as they are used: "nesterov" and "amsgrad" are flags, "betas" two numbers in [0, 1), all others
        numbers >= 0. Raises GraphError."""
        name, found = type(self).__name__, dict[str, Any]()
        for key, value in settings.items():
            if key in ("nesterov", "amsgrad"):
                found[key] = flag(name, key, value)
            elif key != "betas":
                found[key] = number(name, key, value)
            elif isinstance(value, (tuple, list)) and len(value) == 2:
                found[key] = tuple(number(name, key, beta, below=1.0) for beta in value)
            else:
                raise GraphError(f"{name}: betas must be two numbers, not {value!r}")
        return found

    # Steps -----------------------------------------------------------------------------------------------------

    def new_values(self, gradients: Values, copies: Values | None = None) -> dict[Any, Any]:
        """The nodes of a step's results: the new value of each parameter that has a gradient, and of its state.
        `copies`: what stands for parameters, state and rates; None for themselves."""
        values: dict[ad.Parameter, Node] = {}
        stands_for: Values = copies or {}
        for group in self.param_groups:
            if scopes.recording is not None:
                scopes.recording.depends(group, "compiled")
            shared: dict[str, tuple[Node, Node]] = {}
            for parameter in group["params"]:
                if (gradient := gradients.get(parameter)) is None:
                    continue
                state, dtype = self._state_of(parameter, group), parameter.dtype
                if dtype not in shared:
                    rate, steps = group.leaves(dtype)
                    shared[dtype] = stands_for.get(rate, rate), stands_for.get(steps, steps) + 1.0
                    values |= {steps: shared[dtype][1]} if "step" in state else {}
                p, own = stands_for.get(parameter, parameter), {k: stands_for.get(x, x) for k, x in state.items()}
                value, changed = self.update(p, gradient, own, *shared[dtype], group.compiled)
                values |= {state[key]: node for key, node in changed.items()}
                values[parameter] = value
        return values

    def _take_step(self, gradients: Values) -> None:
        """Let the parameters and the state be their new values, computed in one run with what waits. Within a function
        that `dlsys.compile` records, let them name the values."""
        if scopes.recording is not None:
            for place, value in self.new_values(gradients).items():
                write(place, value)
            return
        state: dict[Any, None] = {}
        rates: dict[Any, None] = {}
        counts = []
        for group in self.param_groups:
            own = [parameter for parameter in group["params"] if parameter in gradients]
            for parameter in own:
                state |= dict.fromkeys(self._state_of(parameter, group).values())
                rates[group.leaves(parameter.dtype)[0]] = None
            counts.append((len(own), repr(group.compiled)))
        if type(self).__module__.startswith(f"{__package__}."):
            leaves, count = [*gradients, *state, *rates], len(gradients)

            def new_values(inputs: Sequence[Any]) -> list[Any]:
                copies = dict(zip(leaves, inputs, strict=False))
                values = self.new_values(dict(zip(gradients, inputs[len(leaves) :], strict=True)), copies)
                return [values.get(leaf, copies[leaf]) for leaf in leaves[: count + len(state)]]

            others, update = [*rates, *gradients.values()], Update((type(self), *counts), new_values)
        else:  # a program's own formula may read what changes from step to step
            values = self.new_values(gradients)
            others = [values.get(leaf, leaf) for leaf in (*gradients, *state)]
            update = Update(len(others), lambda inputs: inputs[-len(others) :])
        evaluate([], Step([*gradients], [*state], others, update))

    def _state_of(self, parameter: ad.Parameter, group: ParameterGroup) -> dict[str, ad.Parameter]:
        """The parameter's state, with what the group's settings need."""
        state, dtype = self.state.setdefault(parameter, {}), parameter.dtype
        for key, value in self.initial(group.compiled).items():
            if key == "step":
                state[key] = group.leaves(dtype)[1]
            elif key not in state:
                start, name = np.full(parameter.shape, value, dtype), f"{parameter.name}.{key}"
                state[key] = lasting(partial(ad.Parameter, start, name, False))
        return state

    def minimize(self, loss: Node) -> Node:
        """A node whose evaluation takes one step down the gradient of `sum(loss)`; `run` returns None for it.

        Parameters on which the loss does not depend, or that require no gradient, are not changed. In a group of
        processes (`dlsys.distributed`) the step is down the mean of their gradients. Raises GraphError for a loss that
        is no node, or that depends on none of the parameters.
        """
        name = f"{type(self).__name__}.minimize"
        if not is_node(loss):
            raise GraphError(f"{name}: the loss must be a node, not {type(loss).__name__}")
        self._warn_of_autocast("minimize")
        below = ad.find_topo_sort([loss])
        reached = set(below)
        wanted = [parameter for parameter in self.parameters if parameter.requires_grad and parameter in reached]
        if not wanted:
            names = ", ".join(parameter.name for parameter in self.parameters[:3])
            told = f"depends on no parameter that requires a gradient, of {names}, ..."
            raise GraphError(f"{name}: {loss.name} {told} (made at {loss.location})")
        means = averages.mean(self, ad.gradients(loss, wanted))
        values = self.new_values(dict(zip(wanted, means, strict=True)))
        # Updates of state by the loss, such as running means, belong to the step even if the loss is not evaluated.
        updates = [one for node in below if isinstance(node.op, WithUpdates) for one in node.inputs[1:]]
        return ad.group([*(ad.assign(p, value) for p, value in values.items()), *dict.fromkeys(updates)])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step now, with the gradients in the parameters' `grad`; parameters without one are not changed.

        `closure` is called first, to compute the loss and its gradients, and its result returned. Raises GraphError
        for a closure that cannot be called, ShapeError for a gradient of another shape than its parameter's."""
        name = f"{type(self).__name__}.step"
        if closure is not None and not callable(closure):
            raise GraphError(f"{name}: takes a function that computes the loss, not a {type(closure).__name__}")
        loss = None if closure is None else closure()
        self._warn_of_autocast("step")
        with changing, no_grad():
            gradients = {p: grad for p in self.parameters if (grad := p.grad) is not None}
            for parameter, grad in gradients.items():
                if grad.shape != parameter.shape:
                    told = f"{parameter.name} has shape {parameter.shape}, its grad {grad.shape}"
                    raise ShapeError(f"{name}: {told}")
            if gradients:
                means = averages.mean(self, [*gradients.values()])
                self._take_step(dict(zip(gradients, means, strict=True)))
        return loss

    def _warn_of_autocast(self, method: str) -> None:
        """Warns that parameters on a CPU make nothing of an `autocast` around."""
        if scopes.precision and all(parameter.device.kind == "cpu" for parameter in self.parameters):
            reason = "the parameters are on a CPU, whose products compute in float32"
            has_no_effect(f"{type(self).__name__}.{method}", "autocast", reason)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the parameters' `grad` to None, or to zeros."""
        zero_gradients(self.parameters, set_to_none)

    # State -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch's: {"state": {0: {"exp_avg": tensor, ...}, ...}, "param_groups": [{"lr": ..., "params": [0, ...]},
        ...]}. The tensors are copies; a parameter is its number in the order of `parameters`, without its value."""
        number_of = {parameter: i for i, parameter in enumerate(self.parameters)}
        state: dict[int, dict[str, Any]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                own = self._state_of(parameter, group)
                kept = {key: leaf(copied(array_of(own[key])), name=key) for key in self.initial(group.compiled)}
                state |= {number_of[parameter]: kept} if kept else {}
        groups = [{**group, "params": [number_of[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the groups' settings and the state from a `state_dict` of this class or PyTorch's, with as many
        parameters in each group.

        Settings that are not given stay as they are. A parameter without state begins anew. If a group's parameters
        have different counts of steps, the group takes the largest. All settings but the learning rates are compiled
        into a step: load before `minimize`.

        Raises GraphError for other groups, settings and names, ShapeError and DTypeError for a value that does not fit;
        then nothing is changed.
        """
        name = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise GraphError(f'{name}: needs a dictionary of "state" and "param_groups", as state_dict returns it')
        groups, state = state_dict["param_groups"], state_dict["state"]
        if not isinstance(state, Mapping) or not all(isinstance(kept, Mapping) for kept in state.values()):
            raise GraphError(f"{name}: state must be a dictionary of dictionaries")
        places = places_of(name, groups, [len(group["params"]) for group in self.param_groups])
        if unknown := [str(place) for place in state if place not in places]:
            raise GraphError(f"{name}: the state has parameters that are in none of its groups: {', '.join(unknown)}")
        settings = [self.check(merged(name, *pair)) for pair in zip(self.param_groups, groups, strict=True)]
        owners = [(p, new) for group, new in zip(self.param_groups, settings, strict=True) for p in group["params"]]
        values: dict[tuple[ad.Parameter, str], np.ndarray] = {}
        for place, (parameter, new) in zip(places, owners, strict=True):
            first = self.initial(new)
            # PyTorch counts the steps of every optimizer, here those do that need it; it has None for no momentum.
            pairs = state.get(place, {}).items()
            given = {key: value for key, value in pairs if value is not None and (key in first or key != "step")}
            if given and given.keys() != first.keys():
                known = ", ".join(first) or "nothing"
                raise GraphError(f"{name}: state.{place} must have {known}, not {', '.join(map(str, given))}")
            for key, value in first.items():
                shape = () if key == "step" else parameter.shape
                array = np.asarray(given[key]) if given else np.full(shape, value)
                values[parameter, key] = fitting(f"{name}: state.{place}.{key}", array, shape)
        for group, new in zip(self.param_groups, settings, strict=True):
            group.change(new)
            steps = [values[parameter, "step"] for parameter in group["params"] if (parameter, "step") in values]
            for parameter in group["params"]:
                for key, kept in self._state_of(parameter, group).items():
                    if (parameter, key) in values:
                        kept.value = max(steps) if key == "step" else values[parameter, key]


def places_of(owner: str, groups: Any, counts: list[int]) -> list[Any]:
    """The parameters' numbers in a state's groups, each of which has as many as `counts` says. Raises GraphError."""
    are_groups = isinstance(groups, (list, tuple)) and all(isinstance(group, Mapping) for group in groups)
    lists = [group.get("params") for group in groups] if are_groups else []
    are_lists = all(isinstance(one, (list, tuple)) and all(isinstance(n, (int, str)) for n in one) for one in lists)
    found = [len(one) for one in lists] if are_lists else "none that are lists of numbers"
    if found != counts:
        raise GraphError(f"{owner}: the optimizer's groups have {counts} parameters, the state's {found}")
    return [place for one in lists for place in one]


def fitting(place: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array. Raises DTypeError and ShapeError for one that is not of numbers, or of another shape."""
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{place} is {array.dtype}, not an array of numbers")
    if array.shape != shape:
        raise ShapeError(f"{place} has shape {shape}, the value {array.shape}")
    return array
