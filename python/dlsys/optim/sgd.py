"""Gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import autodiff as ad
from ..checks import number
from ..errors import GraphError
from .optimizer import Nodes, Optimizer, State, with_decay


class SGD(Optimizer):
    """p -= lr * d, where d = g + weight_decay * p, or with momentum:

    buf = momentum * buf + d; p -= lr * buf, or with `nesterov` p -= lr * (d + momentum * buf) (torch.optim.SGD;
    I. Sutskever et al.: On the importance of initialization and momentum in deep learning, 2013).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        """Args:
            params: Parameters, or parameter groups; see `Optimizer`.
            lr: the learning rate; changed by `lr = ...` or a schedule.
            momentum, weight_decay: >= 0; nesterov needs a momentum.
            dampening: 0, others are not built.

        Raises GraphError.
        """
        if dampening:
            raise GraphError(f"SGD: dampening must be 0, not {dampening!r}: others are not built")
        super().__init__(params, lr, {"momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov})

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        checked = {key: number("SGD", key, options[key]) for key in ("momentum", "weight_decay")}
        if options["nesterov"] and not checked["momentum"]:
            raise GraphError("SGD: nesterov requires a momentum")
        return {**checked, "nesterov": bool(options["nesterov"])}

    def _buffers(self, options: dict[str, Any]) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if options["momentum"] else {}

    def _step(
        self, options: dict[str, Any], parameter: ad.Parameter, gradient: ad.Node, state: State, factors: Nodes
    ) -> tuple[ad.Node, Nodes]:
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        momentum = options["momentum"]
        if not momentum:
            return parameter - gradient * factors["lr"], {}
        buffer = state["momentum_buffer"] * momentum + gradient
        direction = gradient + buffer * momentum if options["nesterov"] else buffer
        return parameter - direction * factors["lr"], {"momentum_buffer": buffer}
