"""A quasi-Newton method, which looks at the loss several times a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..errors import GraphError
from .groups import checked_number
from .line_search import Point, strong_wolfe
from .optimizer import Optimizer


class LBFGS(Optimizer):
    """Steps along -H g, where H, the inverse of the curvature, is what the changes of parameters and gradients in the
    last `history_size` iterations say (torch.optim.LBFGS; J. Nocedal, S. Wright: Numerical Optimization, 7.5).

    `step(closure)` takes up to `max_iter` iterations, each of the length `lr`, with `line_search_fn="strong_wolfe"` of
    one at which the loss and its slope are low enough, see `line_search`; the first is shorter where the gradient is
    large. It ends early where the largest gradient is at most `tolerance_grad`, or the parameters or the loss change
    by less than `tolerance_change`. It computes in NumPy, and is no node: there is no `minimize` or `update`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        """max_eval: how often a step calls the closure, None: 1.25 max_iter. Raises GraphError; also for several
        groups."""
        options = {
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        self._memory: dict[str, Any] = {"n_iter": 0, "func_evals": 0}
        super().__init__(params, lr, options)
        if len(self.groups) > 1:
            raise GraphError("LBFGS: takes one group of parameters")

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        search = options["line_search_fn"]
        if search not in (None, "strong_wolfe"):
            raise GraphError(f'LBFGS: line_search_fn must be None or "strong_wolfe", not {search!r}')
        numbers = {key: value for key, value in options.items() if key != "line_search_fn"}
        checked: dict[str, Any] = {key: checked_number("LBFGS", key, value) for key, value in numbers.items()}
        checked["line_search_fn"] = search
        return checked | {key: int(checked[key]) for key in ("max_iter", "max_eval", "history_size")}

    def minimize(self, loss: ad.Node) -> ad.Node:
        """Raises GraphError: see `step`."""
        raise GraphError("LBFGS: calls the loss several times a step: use step(closure)")

    def update(self, gradients: Iterable[ad.Node | None]) -> ad.Node:
        """Raises GraphError: see `step`."""
        raise GraphError("LBFGS: calls the loss several times a step: use step(closure)")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to `max_iter` iterations; `closure` sets the gradients to zero, computes the loss and calls
        `backward`. Returns its first loss. Raises GraphError without a closure."""
        if closure is None:
            raise GraphError("LBFGS.step: needs a closure that computes the loss and its gradients")
        kept, options = self._memory, self.groups[0].options
        first = closure()
        loss, evaluations = float(first), 1
        kept["func_evals"] += 1
        gradient = self._gradient()
        if np.abs(gradient).max(initial=0) <= options["tolerance_grad"]:
            return first
        for iteration in range(1, options["max_iter"] + 1):
            kept["n_iter"] += 1
            direction = self._direction(gradient)
            before, kept["prev_flat_grad"] = loss, gradient
            kept["t"] = self.lr
            if kept["n_iter"] == 1:
                kept["t"] *= min(1.0, 1.0 / float(np.abs(gradient).sum()))
            kept["d"] = direction
            if float(gradient @ direction) > -options["tolerance_change"]:
                break
            if options["line_search_fn"] is not None:
                most = options["max_eval"] - evaluations
                loss, gradient, count = self._search(closure, direction, loss, gradient, most)
            else:
                self._move(direction * kept["t"])
                count = 0
                if iteration < options["max_iter"]:
                    loss, count = float(closure()), 1
                    gradient = self._gradient()
            evaluations += count
            kept["func_evals"] += count
            if iteration == options["max_iter"]:
                break
            if (
                evaluations >= options["max_eval"]
                or np.abs(gradient).max(initial=0) <= options["tolerance_grad"]
                or np.abs(direction * kept["t"]).max(initial=0) <= options["tolerance_change"]
                or abs(loss - before) < options["tolerance_change"]
                or math.isnan(loss)
            ):
                break
        return first

    def _search(
        self, closure: Callable[[], Any], direction: np.ndarray, loss: float, gradient: np.ndarray, most: int
    ) -> tuple[float, np.ndarray, int]:
        """Step along the direction as far as `strong_wolfe` says; the loss and the gradient there, and how often the
        closure was called."""
        start = [parameter.value for parameter in self.parameters]

        def at(t: float) -> Point:
            self._move(direction * t, start)
            value = float(closure())
            found = self._gradient()
            return Point(t, value, found, float(found @ direction))

        first = Point(0.0, loss, gradient, float(gradient @ direction))
        length = float(np.abs(direction).max(initial=0))
        found, count = strong_wolfe(at, first, self._memory["t"], length, most=most)
        self._memory["t"] = found.t
        self._move(direction * found.t, start)
        return found.loss, found.gradient, count

    def _direction(self, gradient: np.ndarray) -> np.ndarray:
        """-H g, where the changes since the last iteration are part of H."""
        kept = self._memory
        if kept["n_iter"] == 1:
            kept |= {"old_dirs": [], "old_stps": [], "ro": [], "H_diag": 1.0}
            return -gradient
        change, moved = gradient - kept["prev_flat_grad"], kept["d"] * kept["t"]
        curvature = float(change @ moved)
        if curvature > 1e-10:
            if len(kept["old_dirs"]) == self.groups[0].options["history_size"]:
                for name in ("old_dirs", "old_stps", "ro"):
                    del kept[name][:1]
            kept["old_dirs"].append(change)
            kept["old_stps"].append(moved)
            kept["ro"].append(1.0 / curvature)
            kept["H_diag"] = curvature / float(change @ change)
        history = list(zip(kept["old_dirs"], kept["old_stps"], kept["ro"], strict=True))
        q, shares = -gradient, []
        for change, moved, inverse in reversed(history):
            shares.append(float(moved @ q) * inverse)
            q = q - shares[-1] * change
        r = q * kept["H_diag"]
        for (change, moved, inverse), share in zip(history, reversed(shares), strict=True):
            r = r + moved * (share - float(change @ r) * inverse)
        return r

    def _gradient(self) -> np.ndarray:
        """That of all parameters, one behind another."""
        parts = [
            np.zeros(p.shape, p.dtype) if p.grad is None else np.asarray(p.grad.numpy(), p.dtype)
            for p in self.parameters
        ]
        return np.concatenate([part.ravel() for part in parts])

    def _move(self, step: np.ndarray, start: list[np.ndarray] | None = None) -> None:
        """Go a step from where the parameters are, or from other values of theirs."""
        begin = 0
        for i, parameter in enumerate(self.parameters):
            size = math.prod(parameter.shape)
            before = parameter.value if start is None else start[i]
            parameter.value = before + step[begin : begin + size].reshape(parameter.shape)
            begin += size

    def state_dict(self) -> dict[str, Any]:
        """As of `Optimizer`; the state, which is of all parameters together, stands with the first."""
        state = {key: list(value) if isinstance(value, list) else value for key, value in self._memory.items()}
        return {**super().state_dict(), "state": {0: state}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As of `Optimizer`, for states of `state_dict`. Raises GraphError."""
        name = "LBFGS.load_state_dict"
        state = state_dict.get("state") if isinstance(state_dict, Mapping) else None
        if not isinstance(state, Mapping) or not {"n_iter", "func_evals"} <= set(state.get(0, {})):
            raise GraphError(f"{name}: needs a dictionary as state_dict gives it")
        super().load_state_dict({**state_dict, "state": {}})
        self._memory = {key: list(value) if isinstance(value, list) else value for key, value in state[0].items()}
