"""Optimizers that divide each gradient by the root of its running mean square: Adam, AdamW, RMSprop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .. import autodiff as ad
from ..errors import GraphError
from .optimizer import Nodes, Optimizer, checked_number, with_decay


class Adam(Optimizer):
    """With d = g + weight_decay * p, in step t = 1, 2, ...:

    m = beta1 * m + (1 - beta1) * d; v = beta2 * v + (1 - beta2) * d^2;
    p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    (torch.optim.Adam; D. P. Kingma, J. Ba: Adam, ICLR 2015).
    """

    decoupled = False
    """Whether weight decay shrinks the parameter itself, rather than adding to the gradient."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Args:
            parameters: Parameters, or parameter groups; see `Optimizer`.
            lr: the learning rate; changed by `lr = ...` or a schedule.
            betas: how much of the means of gradient and square a step keeps, in [0, 1).
            eps, weight_decay: >= 0.

        Raises GraphError.
        """
        super().__init__(parameters, lr, {"betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        name, betas = type(self).__name__, options["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise GraphError(f"{name}: betas must be two numbers, not {betas!r}")
        checked: dict[str, Any] = {
            key: checked_number(name, key, options[key]) for key in ("eps", "weight_decay")
        }
        return checked | {"betas": tuple(checked_number(name, "betas", beta, below=1.0) for beta in betas)}

    def _buffers(self, options: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _scalars(self, options: dict[str, Any]) -> dict[str, float]:
        return {"step": 0.0}

    def _shared(
        self, options: dict[str, Any], lr: ad.Parameter, scalars: dict[str, ad.Parameter]
    ) -> tuple[Nodes, Nodes]:
        # The order of the paper's section 2: both corrections go into the step size and eps, which are of shape (),
        # so that an element costs one root and one division.
        step = scalars["step"] + 1.0
        root = ad.sqrt_op(_one_minus_power(options["betas"][1], step))
        factors = {
            "step_size": lr * root / _one_minus_power(options["betas"][0], step),
            "eps": root * options["eps"],
        }
        if self.decoupled and options["weight_decay"]:
            factors["kept"] = lr * -options["weight_decay"] + 1.0
        return {"step": step}, factors

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        buffers: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        beta1, beta2 = options["betas"]
        if not self.decoupled:
            gradient = with_decay(parameter, gradient, options["weight_decay"])
        mean = buffers["exp_avg"] * beta1 + gradient * (1 - beta1)
        square = buffers["exp_avg_sq"] * beta2 + gradient * gradient * (1 - beta2)
        kept = parameter * factors["kept"] if "kept" in factors else parameter
        value = kept - mean * factors["step_size"] / (ad.sqrt_op(square) + factors["eps"])
        return value, {"exp_avg": mean, "exp_avg_sq": square}


class AdamW(Adam):
    """Adam, where weight decay is p *= 1 - lr * weight_decay before the step, and no part of the gradient
    (torch.optim.AdamW; I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization, ICLR 2019)."""

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        """As `Adam`. Raises GraphError."""
        super().__init__(parameters, lr, betas, eps, weight_decay)


class RMSprop(Optimizer):
    """With d = g + weight_decay * p:

    v = alpha * v + (1 - alpha) * d^2; p -= lr * d / (sqrt(v) + eps), or with momentum
    buf = momentum * buf + d / (sqrt(v) + eps); p -= lr * buf. `centered` takes the gradient's variance for v:
    a = alpha * a + (1 - alpha) * d; sqrt(v - a^2) (torch.optim.RMSprop; T. Tieleman, G. Hinton: lecture 6.5, 2012).
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        """Args:
            parameters: Parameters, or parameter groups; see `Optimizer`.
            lr: the learning rate; changed by `lr = ...` or a schedule.
            alpha: how much of the mean square a step keeps.
            eps, weight_decay, momentum: >= 0.

        Raises GraphError.
        """
        options = {
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(parameters, lr, options)

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        keys = ("alpha", "eps", "weight_decay", "momentum")
        checked: dict[str, Any] = {key: checked_number("RMSprop", key, options[key]) for key in keys}
        return checked | {"centered": bool(options["centered"])}

    def _buffers(self, options: dict[str, Any]) -> tuple[str, ...]:
        optional = {"momentum_buffer": options["momentum"], "grad_avg": options["centered"]}
        return ("square_avg", *(name for name, used in optional.items() if used))

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        buffers: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        alpha = options["alpha"]
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        square = buffers["square_avg"] * alpha + gradient * gradient * (1 - alpha)
        changed = {"square_avg": square}
        variance = square
        if options["centered"]:
            changed["grad_avg"] = mean = buffers["grad_avg"] * alpha + gradient * (1 - alpha)
            variance = ad.relu_op(square - mean * mean)  # rounding can take it below 0, where the root is NaN
        direction = gradient / (ad.sqrt_op(variance) + options["eps"])
        if options["momentum"]:
            direction = buffers["momentum_buffer"] * options["momentum"] + direction
            changed["momentum_buffer"] = direction
        return parameter - direction * factors["lr"], changed


def _one_minus_power(beta: float, step: ad.Node) -> ad.Node:
    """1 - beta^step, to the rounding of step's dtype: subtracted from 1 as it stands, 0.999^1 would lose five of
    float32's seven digits. By 1 - exp(-2 x) = 2 tanh(x) / (1 + tanh(x)), for x = -log(beta) / 2 * step."""
    tanh = ad.tanh_op(step * (-0.5 * math.log(beta) if beta else 400.0))
    return tanh * 2.0 / (tanh + 1.0)
