"""needle's optimizers: its arguments and its momentum, on `dlsys.optim`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import optim
from ..graph import Node
from ..ops import cast_op
from ..optim.groups import Settings
from ..optim.methods import with_decay
from ..optim.optimizer import State, Updated


class Optimizer:
    """Base of the optimizers; `params` is a list of Parameters."""

    def __init__(self, params: Iterable[Any]) -> None:
        self.params: list[Any] = list(params)

    def step(self) -> None:
        """Take one step down the parameters' `grad`; one without is passed over."""
        raise NotImplementedError

    def reset_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.params:
            parameter.grad = None

    def clip_grad_norm(self, max_norm: float = 0.25) -> Any:
        """Scale the gradients so that the norm of all of them is at most `max_norm`; the norm before."""
        return optim.clip_grad_norm_(self.params, max_norm)


class _Steps(Optimizer, optim.Optimizer):
    """needle's arguments and methods of an optimizer of `dlsys.optim`; gradients are cast to the parameters' dtypes."""

    def __init__(self, params: Iterable[Any], defaults: Settings) -> None:
        Optimizer.__init__(self, params)
        optim.Optimizer.__init__(self, self.params, defaults)

    def step(self) -> None:  # type: ignore[override]
        for parameter in self.params:
            if parameter.grad is not None and parameter.grad.dtype != parameter.dtype:
                parameter.grad = cast_op(parameter.grad, parameter.dtype)
        optim.Optimizer.step(self)


class SGD(_Steps):
    """u = momentum * u + (1 - momentum) * (grad + weight_decay * p); p = p - lr * u, with u = 0 at first."""

    def __init__(
        self, params: Iterable[Any], lr: float = 0.01, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def initial(self, group: Settings) -> dict[str, float]:
        return {"u": 0.0} if group["momentum"] else {}

    def update(self, p: Node, g: Node, state: State, lr: Node, step: Node, group: Settings) -> Updated:
        g, momentum = with_decay(p, g, group), group["momentum"]
        u = state["u"] * momentum + g * (1 - momentum) if momentum else g
        return p - u * lr, {"u": u} if momentum else {}


class Adam(_Steps, optim.Adam):
    """m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2 of g = grad + weight_decay * p, both divided by
    1 - beta^t; p = p - lr * m / (sqrt(v) + eps) (Kingma, Ba 2015)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay, "amsgrad": False}
        super().__init__(params, defaults)
