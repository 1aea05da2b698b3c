"""The optimizers: gradient descent with momentum, RMSprop, Adagrad, Adam, AdamW."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

from .. import autodiff as ad
from ..errors import GraphError
from ..graph import Node
from .groups import Settings
from .optimizer import Optimizer, State, Updated


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
        **neutral: Any,
    ) -> None:
        """momentum, weight_decay: >= 0; nesterov needs a momentum. dampening: 0, others are not supported. Raises
        GraphError for an argument out of range."""
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults, dampening=dampening, **neutral)

    def check(self, settings: Settings) -> dict[str, Any]:
        checked = super().check(settings)
        if checked.get("nesterov") and not checked["momentum"]:
            raise GraphError("SGD: nesterov requires a momentum")
        return checked

    def initial(self, group: Settings) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def update(self, p: Node, g: Node, state: State, lr: Node, step: Node, group: Settings) -> Updated:
        g = with_decay(p, g, group)
        if not group["momentum"]:
            return p - g * lr, {}
        buffer = state["momentum_buffer"] * group["momentum"] + g
        direction = g + buffer * group["momentum"] if group["nesterov"] else buffer
        return p - direction * lr, {"momentum_buffer": buffer}


class Adam(Optimizer):
    """With d = g + weight_decay * p, in the group's step t = 1, 2, ...:

    m = beta1 * m + (1 - beta1) * d; v = beta2 * v + (1 - beta2) * d^2;
    p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    (torch.optim.Adam; D. P. Kingma, J. Ba: Adam, ICLR 2015).
    """

    decoupled = False
    """Whether weight decay shrinks the parameter itself, rather than adding to the gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **neutral: Any,
    ) -> None:
        """betas: the decay of the running means of the gradient and of its square in a step, each in [0, 1). eps,
        weight_decay: >= 0. amsgrad: whether v is the largest so far (S. J. Reddi et al.: On the Convergence of Adam,
        ICLR 2018). Raises GraphError for an argument out of range."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, defaults, **neutral)

    def initial(self, group: Settings) -> dict[str, float]:
        return {"step": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0, **({"max_exp_avg_sq": 0.0} if group["amsgrad"] else {})}

    def update(self, p: Node, g: Node, state: State, lr: Node, step: Node, group: Settings) -> Updated:
        beta1, beta2 = group["betas"]
        size, eps, shrink = scalars_of_adam(lr, step, beta1, beta2, group["eps"], group["weight_decay"])
        if not self.decoupled:
            g = with_decay(p, g, group)
        elif group["weight_decay"]:
            p = p * shrink
        mean = state["exp_avg"] * beta1 + g * (1 - beta1)
        square = state["exp_avg_sq"] * beta2 + g * g * (1 - beta2)
        changed = {"exp_avg": mean, "exp_avg_sq": square}
        if group["amsgrad"]:
            square = changed["max_exp_avg_sq"] = ad.maximum_op(state["max_exp_avg_sq"], square)
        return p - mean * size / (ad.sqrt_op(square) + eps), changed


class AdamW(Adam):
    """Adam, where weight decay is p *= 1 - lr * weight_decay before the step, and no part of the gradient
    (torch.optim.AdamW; I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization, ICLR 2019)."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **neutral: Any,
    ) -> None:
        """As `Adam`."""
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **neutral)


class RMSprop(Optimizer):
    """With d = g + weight_decay * p:

    v = alpha * v + (1 - alpha) * d^2; p -= lr * d / (sqrt(v) + eps), or with momentum
    buf = momentum * buf + d / (sqrt(v) + eps); p -= lr * buf (torch.optim.RMSprop; T. Tieleman, G. Hinton: lecture 6.5,
    2012).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        **neutral: Any,
    ) -> None:
        """alpha: the decay of the running mean of the squares in a step. eps, weight_decay, momentum: >= 0. Raises
        GraphError for an argument out of range."""
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, defaults, **neutral)

    def initial(self, group: Settings) -> dict[str, float]:
        return {"square_avg": 0.0, **({"momentum_buffer": 0.0} if group["momentum"] else {})}

    def update(self, p: Node, g: Node, state: State, lr: Node, step: Node, group: Settings) -> Updated:
        g = with_decay(p, g, group)
        square = state["square_avg"] * group["alpha"] + g * g * (1 - group["alpha"])
        direction = g / (ad.sqrt_op(square) + group["eps"])
        if not group["momentum"]:
            return p - direction * lr, {"square_avg": square}
        buffer = state["momentum_buffer"] * group["momentum"] + direction
        return p - buffer * lr, {"square_avg": square, "momentum_buffer": buffer}


class Adagrad(Optimizer):
    """With d = g + weight_decay * p, in the group's step t = 1, 2, ...:

    v += d^2; p -= lr / (1 + (t - 1) lr_decay) * d / (sqrt(v) + eps) (torch.optim.Adagrad; J. Duchi et al.: Adaptive
    Subgradient Methods, 2011).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **neutral: Any,
    ) -> None:
        """lr_decay, weight_decay, eps: >= 0. initial_accumulator_value: v before the first step, >= 0. Raises
        GraphError for an argument out of range."""
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, defaults | {"initial_accumulator_value": initial_accumulator_value}, **neutral)

    def initial(self, group: Settings) -> dict[str, float]:
        return {"step": 0.0, "sum": group["initial_accumulator_value"]}

    def update(self, p: Node, g: Node, state: State, lr: Node, step: Node, group: Settings) -> Updated:
        g, rate = with_decay(p, g, group), rate_of_adagrad(lr, step, group["lr_decay"]) if group["lr_decay"] else lr
        total = state["sum"] + g * g
        return p - g * rate / (ad.sqrt_op(total) + group["eps"]), {"sum": total}


def with_decay(p: Node, g: Node, group: Settings) -> Node:
    """The gradient of the loss plus weight_decay / 2 * |p|^2."""
    return g + p * group["weight_decay"] if group["weight_decay"] else g


# What all elements of all parameters of a group read: nodes of shape (), which are made once for a step.


@functools.lru_cache(maxsize=8)
def rate_of_adagrad(lr: Node, step: Node, lr_decay: float) -> Node:
    """lr / (1 + (step - 1) lr_decay)."""
    return lr / ((step - 1.0) * lr_decay + 1.0)


@functools.lru_cache(maxsize=8)
def scalars_of_adam(
    lr: Node, step: Node, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Node, Node, Node]:
    """Adam's step size and eps, both with the bias corrections, in the order of the paper's section 2, so that an
    element costs one root and one division; and the factor of decoupled weight decay."""
    root = ad.sqrt_op(one_minus_power(beta2, step))
    return lr * root / one_minus_power(beta1, step), root * eps, lr * -weight_decay + 1.0


def one_minus_power(beta: float, step: Node) -> Node:
    """1 - beta^step to the rounding of step's dtype: subtracted from 1 as it stands, 0.999^1 would lose five of
    float32's seven digits. By 1 - exp(-2 x) = 2 tanh(x) / (1 + tanh(x)), for x = -log(beta) / 2 * step."""
    tanh = ad.tanh_op(step * (-0.5 * math.log(beta) if beta else 400.0))
    return tanh * 2.0 / (tanh + 1.0)
