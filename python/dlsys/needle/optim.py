"""needle's optimizers: each step sets the parameters' values anew; their state is kept by parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph import Node
from ..ops import cast_op, div_byconst_op, sqrt_op
from ..tensors import evaluate, leaf, no_grad


class Optimizer:
    """Base of the optimizers; `params` is a list of Parameters."""

    def __init__(self, params: Iterable[Any]) -> None:
        self.params = list(params)

    def step(self) -> None:
        """Take one step down the parameters' `grad`; one without is passed over."""
        raise NotImplementedError

    def reset_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.params:
            parameter.grad = None

    def clip_grad_norm(self, max_norm: float = 0.25) -> np.float64:
        """Scale the gradients so that the norm of all of them is at most `max_norm`; the norm before."""
        given = [parameter for parameter in self.params if parameter.grad is not None]
        gradients: Any = evaluate([parameter.grad for parameter in given])
        norm = np.float64(np.sqrt(sum(float((g.numpy().astype("float64") ** 2).sum()) for g in gradients)))
        scale = min(1.0, max_norm / (norm + 1e-6))
        for parameter in given:
            parameter.grad = parameter.grad.detach() * scale
        return norm

    def _set(self, values: dict[Any, Node], *states: tuple[dict[Any, Any], dict[Any, Node]]) -> None:
        """Compute new values of parameters and of their state, and let them have these."""
        nodes = [cast_op(node, parameter.dtype) for parameter, node in values.items()]
        nodes += [node for _, changed in states for node in changed.values()]
        arrays: Any = iter(evaluate(nodes))
        for parameter in values:
            parameter.cell.give(next(arrays))
        for state, changed in states:
            state.update({parameter: leaf(next(arrays)) for parameter in changed})


class SGD(Optimizer):
    """u = momentum * u + (1 - momentum) * (grad + weight_decay * p); p = p - lr * u, with u = 0 at first."""

    def __init__(
        self, params: Iterable[Any], lr: float = 0.01, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.u: dict[Any, Any] = {}

    def step(self) -> None:
        with no_grad():
            values, moved = {}, {}
            for p in self.params:
                if p.grad is not None:
                    grad = p.grad + p * self.weight_decay if self.weight_decay else p.grad
                    u = grad * (1 - self.momentum) if self.momentum else grad
                    moved[p] = u = self.u[p] * self.momentum + u if p in self.u and self.momentum else u
                    values[p] = p - u * self.lr
            self._set(values, (self.u, moved if self.momentum else {}))


class Adam(Optimizer):
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
        super().__init__(params)
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay = lr, beta1, beta2, eps, weight_decay
        self.t = 0
        self.m: dict[Any, Any] = {}
        self.v: dict[Any, Any] = {}

    def step(self) -> None:
        self.t += 1
        with no_grad():
            values, first, second = {}, {}, {}
            for p in self.params:
                if p.grad is not None:
                    grad = p.grad + p * self.weight_decay if self.weight_decay else p.grad
                    m, v = grad * (1 - self.beta1), grad * grad * (1 - self.beta2)
                    first[p] = m = self.m[p] * self.beta1 + m if p in self.m else m
                    second[p] = v = self.v[p] * self.beta2 + v if p in self.v else v
                    scale = sqrt_op(div_byconst_op(v, 1 - self.beta2**self.t)) + self.eps
                    values[p] = p - div_byconst_op(m, 1 - self.beta1**self.t) / scale * self.lr
            self._set(values, (self.m, first), (self.v, second))
