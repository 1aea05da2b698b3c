"""The optimizers: gradient descent with momentum, RMSprop, Adagrad, Adam, AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from .. import autodiff as ad
from ..checks import flag, number
from ..errors import GraphError
from .optimizer import Nodes, Optimizer, State, with_decay, zeros

Made = TypeVar("Made", bound=Optimizer)


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
        """See `Optimizer`. momentum, weight_decay: >= 0; nesterov needs a momentum. dampening: 0, others are not
        supported. Raises GraphError for an argument out of range."""
        if number("SGD", "dampening", dampening):
            raise GraphError(f"SGD: dampening must be 0, not {dampening!r}: others are not supported")
        super().__init__(params, lr, {"momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov})

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        checked = {key: number("SGD", key, options[key]) for key in ("momentum", "weight_decay")}
        nesterov = flag("SGD", "nesterov", options["nesterov"])
        if nesterov and not checked["momentum"]:
            raise GraphError("SGD: nesterov requires a momentum")
        return {**checked, "nesterov": nesterov}

    def _init(self, parameter: ad.Parameter, options: dict[str, Any]) -> dict[str, np.ndarray]:
        return {"momentum_buffer": zeros(parameter)} if options["momentum"] else {}

    def _update(
        self, parameter: ad.Node, gradient: ad.Node, state: State, scalars: Nodes, options: dict[str, Any]
    ) -> tuple[ad.Node, Nodes]:
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        momentum = options["momentum"]
        if "momentum_buffer" not in state:
            return parameter - gradient * scalars["lr"], {}
        buffer = state["momentum_buffer"] * momentum + gradient
        direction = gradient + buffer * momentum if options["nesterov"] else buffer
        return parameter - direction * scalars["lr"], {"momentum_buffer": buffer}


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
    ) -> None:
        """See `Optimizer`. betas: the decay of the running means of the gradient and of its square in a step, each in
        [0, 1). eps, weight_decay: >= 0. amsgrad: whether v is the largest so far (S. J. Reddi et al.: On the
        Convergence of Adam, ICLR 2018). Raises GraphError for an argument out of range."""
        super().__init__(params, lr, {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad})

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        name, betas = type(self).__name__, options["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise GraphError(f"{name}: betas must be two numbers, not {betas!r}")
        checked: dict[str, Any] = {key: number(name, key, options[key]) for key in ("eps", "weight_decay")}
        checked["amsgrad"] = flag(name, "amsgrad", options["amsgrad"])
        return checked | {"betas": tuple(number(name, "betas", beta, below=1.0) for beta in betas)}

    def _init(self, parameter: ad.Parameter, options: dict[str, Any]) -> dict[str, np.ndarray]:
        return {
            "step": np.zeros((), parameter.dtype),
            "exp_avg": zeros(parameter),
            "exp_avg_sq": zeros(parameter),
            **({"max_exp_avg_sq": zeros(parameter)} if options["amsgrad"] else {}),
        }

    def _scalars(self, lr: ad.Node, step: ad.Node | None, options: dict[str, Any]) -> Nodes:
        # The order of the paper's section 2: both corrections go into the step size and eps, which are of shape (),
        # so that an element costs one root and one division.
        assert step is not None
        root = ad.sqrt_op(one_minus_power(options["betas"][1], step))
        size = lr * root / one_minus_power(options["betas"][0], step)
        shrink = {"shrink": lr * -options["weight_decay"] + 1.0} if self.decoupled and options["weight_decay"] else {}
        return {"step_size": size, "eps": root * options["eps"], **shrink}

    def _update(
        self, parameter: ad.Node, gradient: ad.Node, state: State, scalars: Nodes, options: dict[str, Any]
    ) -> tuple[ad.Node, Nodes]:
        beta1, beta2 = options["betas"]
        if not self.decoupled:
            gradient = with_decay(parameter, gradient, options["weight_decay"])
        mean = state["exp_avg"] * beta1 + gradient * (1 - beta1)
        square = state["exp_avg_sq"] * beta2 + gradient * gradient * (1 - beta2)
        shrunk = parameter * scalars["shrink"] if "shrink" in scalars else parameter
        changed = {"exp_avg": mean, "exp_avg_sq": square}
        if options["amsgrad"]:
            square = changed["max_exp_avg_sq"] = ad.maximum_op(state["max_exp_avg_sq"], square)
        return shrunk - mean * scalars["step_size"] / (ad.sqrt_op(square) + scalars["eps"]), changed


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
    ) -> None:
        """As `Adam`."""
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)


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
    ) -> None:
        """See `Optimizer`. alpha: the decay of the running mean of the squares in a step. eps, weight_decay, momentum:
        >= 0. Raises GraphError for an argument out of range."""
        options = {"alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, lr, options)

    def _init(self, parameter: ad.Parameter, options: dict[str, Any]) -> dict[str, np.ndarray]:
        names = ["square_avg", "momentum_buffer"] if options["momentum"] else ["square_avg"]
        return {name: zeros(parameter) for name in names}

    def _update(
        self, parameter: ad.Node, gradient: ad.Node, state: State, scalars: Nodes, options: dict[str, Any]
    ) -> tuple[ad.Node, Nodes]:
        alpha = options["alpha"]
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        square = state["square_avg"] * alpha + gradient * gradient * (1 - alpha)
        direction = gradient / (ad.sqrt_op(square) + options["eps"])
        if "momentum_buffer" not in state:
            return parameter - direction * scalars["lr"], {"square_avg": square}
        buffer = state["momentum_buffer"] * options["momentum"] + direction
        return parameter - buffer * scalars["lr"], {"square_avg": square, "momentum_buffer": buffer}


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
    ) -> None:
        """See `Optimizer`. lr_decay, weight_decay, eps: >= 0. initial_accumulator_value: v before the first step, >= 0.
        Raises GraphError for an argument out of range."""
        options = {"lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, lr, options | {"initial_accumulator_value": initial_accumulator_value})

    def _init(self, parameter: ad.Parameter, options: dict[str, Any]) -> dict[str, np.ndarray]:
        first = options["initial_accumulator_value"]
        return {"step": np.zeros((), parameter.dtype), "sum": zeros(parameter) + zeros(parameter).dtype.type(first)}

    def _scalars(self, lr: ad.Node, step: ad.Node | None, options: dict[str, Any]) -> Nodes:
        assert step is not None
        return {"lr": lr / ((step - 1.0) * options["lr_decay"] + 1.0) if options["lr_decay"] else lr}

    def _update(
        self, parameter: ad.Node, gradient: ad.Node, state: State, scalars: Nodes, options: dict[str, Any]
    ) -> tuple[ad.Node, Nodes]:
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        total = state["sum"] + gradient * gradient
        return parameter - gradient * scalars["lr"] / (ad.sqrt_op(total) + options["eps"]), {"sum": total}


def one_minus_power(beta: float, step: ad.Node) -> ad.Node:
    """1 - beta^step to the rounding of step's dtype: subtracted from 1 as it stands, 0.999^1 would lose five of
    float32's seven digits. By 1 - exp(-2 x) = 2 tanh(x) / (1 + tanh(x)), for x = -log(beta) / 2 * step."""
    tanh = ad.tanh_op(step * (-0.5 * math.log(beta) if beta else 400.0))
    return tanh * 2.0 / (tanh + 1.0)
