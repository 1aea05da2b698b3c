"""Learning rates that go up and down, are multiplied on, or made of several schedules at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GraphError
from .groups import checked_number
from .optimizer import Optimizer
from .schedule import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    PolynomialLR,
    StepLR,
    checked_optimizer,
    checked_whole,
    of_groups,
)


class CyclicLR(LRScheduler):
    """From base_lr in a straight line up to max_lr in `step_size_up` steps, down again in `step_size_down`, and so on
    (L. N. Smith: Cyclical Learning Rates for Training Neural Networks, 2017).

    mode: "triangular"; "triangular2", each cycle half as high as that before; "exp_range", the height times gamma^step.
    scale_fn takes their place: the height times scale_fn of the cycle's number, from 1 on, or with `scale_mode`
    "iterations" of the step's. With `cycle_momentum` the momentum, or the first of the betas, goes the opposite way.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Any,
        max_lr: Any,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.8,
        max_momentum: Any = 0.9,
        last_epoch: int = -1,
    ) -> None:
        """base_lr, max_lr, base_momentum, max_momentum: a number, or one for each parameter group; step_size_down None
        is step_size_up. With `cycle_momentum` make it before the optimizer's `update` or `minimize`. Raises GraphError;
        also with `cycle_momentum` for an optimizer that has neither momentum nor betas."""
        name = "CyclicLR"
        groups = checked_optimizer(name, optimizer).groups
        self._up = checked_whole(name, "step_size_up", step_size_up, 1)
        down = self._up if step_size_down is None else checked_whole(name, "step_size_down", step_size_down, 1)
        self._span = self._up + down
        self.gamma = gamma = checked_number(name, "gamma", gamma)
        modes: dict[str, tuple[Callable[[float], float], str]] = {
            "triangular": (lambda cycle: 1.0, "cycle"),
            "triangular2": (lambda cycle: 1 / 2 ** (cycle - 1), "cycle"),
            "exp_range": (lambda step: gamma**step, "iterations"),
        }
        if scale_fn is None and mode not in modes:
            raise GraphError(f"{name}: mode must be one of {', '.join(modes)}, not {mode!r}")
        if scale_mode not in ("cycle", "iterations"):
            raise GraphError(f'{name}: scale_mode must be "cycle" or "iterations", not {scale_mode!r}')
        self._scale, self._scale_mode = modes[mode] if scale_fn is None else (scale_fn, scale_mode)
        self._varied = next((key for key in ("momentum", "betas") if key in groups[0].options), None)
        if cycle_momentum and self._varied is None:
            told = f"{type(optimizer).__name__} has neither momentum nor betas: pass cycle_momentum=False"
            raise GraphError(f"{name}: {told}")
        self._varied = self._varied if cycle_momentum else None
        self.max_lrs = of_groups(name, "max_lr", max_lr, optimizer)
        self.base_momentums = of_groups(name, "base_momentum", base_momentum, optimizer)
        self.max_momentums = of_groups(name, "max_momentum", max_momentum, optimizer)
        for group, lr in zip(groups, of_groups(name, "base_lr", base_lr, optimizer), strict=True):
            group.lr = lr
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: float) -> float:
        """Where the rate is between its least, at 0, and its most."""
        cycle = math.floor(1 + epoch / self._span)
        way = 1 + epoch / self._span - cycle
        share = self._up / self._span
        height = way / share if way <= share else (way - 1) / (share - 1)
        return height * self._scale(cycle if self._scale_mode == "cycle" else epoch)

    def lrs_at(self, base_lrs: Sequence[float], epoch: float) -> list[float]:
        height = self._height(epoch)
        return [least + (most - least) * height for least, most in zip(base_lrs, self.max_lrs, strict=True)]

    def _vary(self, epoch: float) -> None:
        if self._varied is not None:
            height = self._height(epoch)
            limits = zip(self.optimizer.groups, self.base_momentums, self.max_momentums, strict=True)
            for group, least, most in limits:
                key = "beta1" if self._varied == "betas" else "momentum"
                group.vary(key, most - (most - least) * height)


class MultiplicativeLR(LRScheduler):
    """base_lr * lr_lambda(1) * ... * lr_lambda(epoch); a list has a function for each parameter group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        """Raises GraphError for what is neither a function nor such a list."""
        groups = checked_optimizer("MultiplicativeLR", optimizer).groups
        functions = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * len(groups)
        if len(functions) != len(groups):
            raise GraphError(f"MultiplicativeLR: {len(functions)} functions for {len(groups)} parameter groups")
        for function in functions:
            if not callable(function):
                raise GraphError(f"MultiplicativeLR: lr_lambda must be a function, not {type(function).__name__}")
        self.lr_lambdas = functions
        self._products = [[1.0] for _ in functions]
        super().__init__(optimizer, last_epoch)

    def lrs_at(self, base_lrs: Sequence[float], epoch: float) -> list[float]:
        steps = math.floor(epoch)
        for function, products in zip(self.lr_lambdas, self._products, strict=True):
            while len(products) <= steps:
                products.append(products[-1] * function(len(products)))
        return [lr * products[steps] for lr, products in zip(base_lrs, self._products, strict=True)]


_FACTORS = (ConstantLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, MultiplicativeLR, PolynomialLR, StepLR)


class ChainedScheduler(LRScheduler):
    """base_lr times the factors of several schedules at once."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        """schedulers: of one optimizer, each a factor of base_lr: not those of a least or a largest rate of their own.
        Raises GraphError."""
        self.schedulers = list(schedulers)
        if not self.schedulers:
            raise GraphError("ChainedScheduler: needs at least one schedule")
        for scheduler in self.schedulers:
            is_factor = isinstance(scheduler, _FACTORS)
            if not is_factor and not (isinstance(scheduler, CosineAnnealingLR) and scheduler.eta_min == 0):
                told = f"{type(scheduler).__name__} is no factor of the learning rate that it is given"
                raise GraphError(f"ChainedScheduler: {told}")
        found = self.schedulers[0].optimizer if optimizer is None else optimizer
        if any(scheduler.optimizer is not found for scheduler in self.schedulers):
            raise GraphError("ChainedScheduler: every scheduler must be one of the same optimizer")
        super().__init__(found)

    def lrs_at(self, base_lrs: Sequence[float], epoch: float) -> list[float]:
        factors = [scheduler.lrs_at([1.0] * len(base_lrs), epoch) for scheduler in self.schedulers]
        return [lr * math.prod(each) for lr, each in zip(base_lrs, zip(*factors, strict=True), strict=True)]
