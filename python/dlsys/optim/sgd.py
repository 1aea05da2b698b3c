"""Gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import autodiff as ad
from ..errors import GraphError
from .groups import checked_number
from .optimizer import Nodes, Optimizer, is_off, with_decay


class SGD(Optimizer):
    """p -= lr * d, where d = g + weight_decay * p, or with momentum:

    buf = momentum * buf + (1 - dampening) * d; p -= lr * buf, or with `nesterov` p -= lr * (d + momentum * buf).
    In a parameter's first step buf = d (torch.optim.SGD; I. Sutskever et al.: On the importance of initialization and
    momentum in deep learning, 2013).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **idle: Any,
    ) -> None:
        """Args:
            params: Parameters, or parameter groups; see `Optimizer`.
            lr: the learning rate; changed by `lr = ...` or a schedule.
            momentum, dampening, weight_decay: >= 0; nesterov needs a momentum and no dampening.
            maximize: step up the gradient.
            idle: see `Optimizer`.

        Raises GraphError.
        """
        options = {
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, lr, options, idle)

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        checked: dict[str, Any] = {
            key: checked_number("SGD", key, options[key]) for key in ("momentum", "dampening", "weight_decay")
        }
        nesterov = bool(options["nesterov"])
        if nesterov and (not checked["momentum"] or checked["dampening"]):
            raise GraphError("SGD: nesterov requires a momentum and zero dampening")
        return checked | {"nesterov": nesterov, "maximize": bool(options["maximize"])}

    def _buffers(self, options: dict[str, Any]) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if options["momentum"] else {}

    def _scalars(self, options: dict[str, Any]) -> dict[str, float]:
        # Into a buffer of zeros the first gradient goes undampened.
        return {"gradient_weight": 1.0} if options["momentum"] and options["dampening"] else {}

    def _own(self, options: dict[str, Any], shared: Nodes, state: dict[str, ad.Parameter]) -> tuple[Nodes, Nodes]:
        if is_off(options["momentum"]) or not options["dampening"]:
            return {}, shared
        weight = state["gradient_weight"]
        return {"gradient_weight": weight * 0.0 + (1 - options["dampening"])}, {**shared, "weight": weight}

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        state: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        momentum = options["momentum"]
        if is_off(momentum):
            return parameter - gradient * factors["lr"], {}
        weighted = gradient * factors["weight"] if "weight" in factors else gradient
        buffer = state["momentum_buffer"] * momentum + weighted
        direction = gradient + buffer * momentum if options["nesterov"] else buffer
        return parameter - direction * factors["lr"], {"momentum_buffer": buffer}
