"""Optimizers of Adam's family with other corrections, and Adadelta: Adamax, NAdam, RAdam."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .. import autodiff as ad
from ..errors import GraphError
from .adaptive import one_minus_power
from .groups import checked_number
from .optimizer import Nodes, Optimizer, with_decay


class _Moments(Optimizer):
    """What keeps a mean of the gradient, `exp_avg`, and one of its size. With `decoupled_weight_decay` weight decay is
    p *= 1 - lr * weight_decay before the step, and no part of the gradient."""

    _size = "exp_avg_sq"

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        name, betas = type(self).__name__, options["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise GraphError(f"{name}: betas must be two numbers, not {betas!r}")
        flags = ("maximize", "decoupled_weight_decay")
        found = {key: value for key, value in options.items() if key not in flags and key != "betas"}
        checked: dict[str, Any] = {key: checked_number(name, key, value) for key, value in found.items()}
        checked["betas"] = tuple(checked_number(name, "betas", beta, below=1.0) for beta in betas)
        return checked | {key: bool(options[key]) for key in flags if key in options}

    def _buffers(self, options: dict[str, Any]) -> dict[str, float]:
        return {"exp_avg": 0.0, self._size: 0.0}

    def _scalars(self, options: dict[str, Any]) -> dict[str, float]:
        return {"step": 0.0}

    def _decayed(
        self, options: dict[str, Any], parameter: ad.Parameter, gradient: ad.Node, factors: Nodes
    ) -> tuple[ad.Node, ad.Node]:
        """The parameter and the gradient with their weight decay."""
        if options.get("decoupled_weight_decay") and options["weight_decay"]:
            return parameter * (factors["lr"] * -options["weight_decay"] + 1.0), gradient
        return parameter, with_decay(parameter, gradient, options["weight_decay"])

    def _means(
        self, options: dict[str, Any], gradient: ad.Node, state: dict[str, ad.Parameter]
    ) -> tuple[ad.Node, ad.Node]:
        beta1, beta2 = options["betas"]
        mean = state["exp_avg"] * beta1 + gradient * (1 - beta1)
        return mean, state["exp_avg_sq"] * beta2 + gradient * gradient * (1 - beta2)


class Adamax(_Moments):
    """With d = g + weight_decay * p, in the parameter's own step t = 1, 2, ...:

    m = beta1 * m + (1 - beta1) * d; u = max(beta2 * u, |d| + eps); p -= lr / (1 - beta1^t) * m / u
    (torch.optim.Adamax; D. P. Kingma, J. Ba: Adam, ICLR 2015, section 7).
    """

    _size = "exp_inf"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **idle: Any,
    ) -> None:
        """As `Adam`. Raises GraphError."""
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, lr, options, idle)

    def _own(self, options: dict[str, Any], shared: Nodes, state: dict[str, ad.Parameter]) -> tuple[Nodes, Nodes]:
        step = state["step"] + 1.0
        return {"step": step}, {**shared, "size": shared["lr"] / one_minus_power(options["betas"][0], step)}

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        state: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        beta1, beta2 = options["betas"]
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        mean = state["exp_avg"] * beta1 + gradient * (1 - beta1)
        largest = ad.maximum_op(state["exp_inf"] * beta2, ad.abs_op(gradient) + options["eps"])
        return parameter - mean * factors["size"] / largest, {"exp_avg": mean, "exp_inf": largest}


class NAdam(_Moments):
    """Adam with Nesterov's momentum. With d = g + weight_decay * p, in the parameter's own step t = 1, 2, ...:

    mu_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2), P_t = mu_1 * ... * mu_t; m, v as of Adam;
    p -= lr * ((1 - mu_t) / (1 - P_t) * d + mu_(t+1) / (1 - P_(t+1)) * m) / (sqrt(v / (1 - beta2^t)) + eps)
    (torch.optim.NAdam; T. Dozat: Incorporating Nesterov Momentum into Adam, 2016).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **idle: Any,
    ) -> None:
        """As `Adam`, momentum_decay >= 0; decoupled_weight_decay: as of `AdamW`. Raises GraphError."""
        options = {
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, lr, options, idle)

    def _scalars(self, options: dict[str, Any]) -> dict[str, float]:
        return {"step": 0.0, "mu_product": 1.0}

    def _own(self, options: dict[str, Any], shared: Nodes, state: dict[str, ad.Parameter]) -> tuple[Nodes, Nodes]:
        step, lr, beta1 = state["step"] + 1.0, shared["lr"], options["betas"][0]

        def momentum(at: ad.Node) -> ad.Node:
            share = ad.exp_op(at * (math.log(0.96) * options["momentum_decay"]))
            return (1.0 - share * 0.5) * beta1

        now, later = momentum(step), momentum(step + 1.0)
        product = state["mu_product"] * now
        factors = {
            **shared,
            "of_gradient": lr * (1.0 - now) / (1.0 - product),
            "of_mean": lr * later / (1.0 - product * later),
            "correction": ad.sqrt_op(one_minus_power(options["betas"][1], step)),
        }
        return {"step": step, "mu_product": product}, factors

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        state: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        kept, gradient = self._decayed(options, parameter, gradient, factors)
        mean, square = self._means(options, gradient, state)
        size = ad.sqrt_op(square) / factors["correction"] + options["eps"]
        direction = gradient * factors["of_gradient"] + mean * factors["of_mean"]
        return kept - direction / size, {"exp_avg": mean, "exp_avg_sq": square}


class RAdam(_Moments):
    """Adam whose size is left out while its variance is too large. With m, v and d as of Adam, in the parameter's own
    step t = 1, 2, ..., R = 2 / (1 - beta2) - 1 and r = R - 2 t beta2^t / (1 - beta2^t):

    p -= lr * m / (1 - beta1^t), and where r > 5 times sqrt((r - 4) (r - 2) R / ((R - 4) (R - 2) r)) *
    sqrt(1 - beta2^t) / (sqrt(v) + eps) (torch.optim.RAdam; L. Liu et al.: On the Variance of the Adaptive Learning
    Rate and Beyond, ICLR 2020).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **idle: Any,
    ) -> None:
        """As `Adam`; decoupled_weight_decay: as of `AdamW`. Raises GraphError."""
        options = {
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, lr, options, idle)

    def _own(self, options: dict[str, Any], shared: Nodes, state: dict[str, ad.Parameter]) -> tuple[Nodes, Nodes]:
        # In float64, as float32 would lose most of r's digits, which is the difference of numbers about R.
        step = state["step"] + 1.0
        t = ad.cast_op(step, "float64")
        beta1, beta2 = options["betas"]
        limit = 2 / (1 - beta2) - 1
        gain = limit / ((limit - 4) * (limit - 2)) if limit > 5 else 0.0  # r < R
        rest = one_minus_power(beta2, t)
        r = limit - t * 2.0 * (1.0 - rest) / rest
        is_sure = r > 5.0
        sure = ad.where_op(is_sure, r, 6.0)
        rectified = ad.cast_like_op(ad.sqrt_op((sure - 4.0) * (sure - 2.0) / sure * gain * rest), step)
        size = shared["lr"] / one_minus_power(beta1, step)
        factors = {"rectified": ad.where_op(is_sure, size * rectified, 0.0), "plain": ad.where_op(is_sure, 0.0, size)}
        return {"step": step}, {**shared, **factors}

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        state: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        kept, gradient = self._decayed(options, parameter, gradient, factors)
        mean, square = self._means(options, gradient, state)
        size = factors["rectified"] / (ad.sqrt_op(square) + options["eps"]) + factors["plain"]
        return kept - mean * size, {"exp_avg": mean, "exp_avg_sq": square}


class Adadelta(Optimizer):
    """With d = g + weight_decay * p:

    v = rho * v + (1 - rho) * d^2; s = sqrt(u + eps) / sqrt(v + eps) * d; u = rho * u + (1 - rho) * s^2; p -= lr * s
    (torch.optim.Adadelta; M. D. Zeiler: ADADELTA, 2012).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **idle: Any,
    ) -> None:
        """Args:
            params: Parameters, or parameter groups; see `Optimizer`.
            lr: the learning rate; changed by `lr = ...` or a schedule.
            rho: how much of the mean squares a step keeps, in [0, 1).
            eps, weight_decay: >= 0.
            maximize: step up the gradient.
            idle: see `Optimizer`.

        Raises GraphError.
        """
        options = {"rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, lr, options, idle)

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        checked: dict[str, Any] = {
            key: checked_number("Adadelta", key, options[key]) for key in ("eps", "weight_decay")
        }
        checked["rho"] = checked_number("Adadelta", "rho", options["rho"], below=1.0)
        return checked | {"maximize": bool(options["maximize"])}

    def _buffers(self, options: dict[str, Any]) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def _step(
        self,
        options: dict[str, Any],
        parameter: ad.Parameter,
        gradient: ad.Node,
        state: dict[str, ad.Parameter],
        factors: Nodes,
    ) -> tuple[ad.Node, Nodes]:
        rho, eps = options["rho"], options["eps"]
        gradient = with_decay(parameter, gradient, options["weight_decay"])
        square = state["square_avg"] * rho + gradient * gradient * (1 - rho)
        delta = ad.sqrt_op(state["acc_delta"] + eps) / ad.sqrt_op(square + eps) * gradient
        moved = state["acc_delta"] * rho + delta * delta * (1 - rho)
        return parameter - delta * factors["lr"], {"square_avg": square, "acc_delta": moved}
