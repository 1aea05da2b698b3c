"""Learning rates that change with the step, by the formulas of torch.optim.lr_scheduler.

A schedule is a function of the step's number and of the learning rate that the group was given: where PyTorch
multiplies the rate on from step to step, here each is computed anew, to the same numbers. Setting a rate compiles
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..checks import flag, integer, number
from ..errors import GraphError
from .optimizer import Optimizer


class LRScheduler:
    """Base of the schedules. Making one sets the optimizer's learning rates to those of step 0.

    Attributes:
        optimizer: the optimizer.
        last_epoch: how often `step` was called.
        base_lrs: for each parameter group the learning rate that it was last given by hand.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Raises GraphError for what is no optimizer."""
        if not isinstance(optimizer, Optimizer):
            raise GraphError(f"{type(self).__name__}: needs an optimizer, not {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.base_lrs: list[float] = [group.initial_lr for group in optimizer.groups]
        self.last_epoch: int = 0
        self._set()

    def lr_at(self, base_lr: float, epoch: int) -> float:
        """The learning rate after `epoch` calls of `step`, for a group whose rate is `base_lr`."""
        raise NotImplementedError

    def step(self) -> None:
        """Go on to the next learning rate: after each epoch, or each batch, as the schedule is meant."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group, as the schedule set it."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands: "last_epoch" and "base_lrs"."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, and set the learning rates of that step. Raises GraphError."""
        name = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, Mapping) or set(state) != {"last_epoch", "base_lrs"}:
            raise GraphError(f'{name}: needs a dictionary of "last_epoch" and "base_lrs"')
        given = state["base_lrs"]
        if not isinstance(given, (list, tuple)) or len(given) != len(self.base_lrs):
            raise GraphError(f"{name}: base_lrs must be a list of {len(self.base_lrs)}, one per parameter group")
        base_lrs = [number(name, "base_lrs", lr) for lr in given]
        self.last_epoch, self.base_lrs = integer(name, "last_epoch", state["last_epoch"], 0), base_lrs
        self._set()

    def _set(self) -> None:
        self.base_lrs += [group.initial_lr for group in self.optimizer.groups[len(self.base_lrs) :]]  # joined since
        self._last_lr = [self.lr_at(base_lr, self.last_epoch) for base_lr in self.base_lrs]
        for group, lr in zip(self.optimizer.groups, self._last_lr, strict=True):
            group.schedule_lr(lr)


class LambdaLR(LRScheduler):
    """base_lr * lr_lambda(epoch)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        if not callable(lr_lambda):
            raise GraphError(f"LambdaLR: lr_lambda must be a function, not {type(lr_lambda).__name__}")
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return base_lr * number("LambdaLR", f"lr_lambda({epoch})", self.lr_lambda(epoch))


class LinearLR(LRScheduler):
    """From base_lr * start_factor in a straight line to base_lr * end_factor at step `total_iters`: a warm-up."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        self.start_factor: float = number("LinearLR", "start_factor", start_factor, most=1)
        self.end_factor: float = number("LinearLR", "end_factor", end_factor, most=1)
        if not self.start_factor:
            raise GraphError("LinearLR: start_factor must be greater than 0")
        self.total_iters: int = integer("LinearLR", "total_iters", total_iters, 1)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        way = min(self.total_iters, epoch) / self.total_iters
        return base_lr * (self.start_factor + (self.end_factor - self.start_factor) * way)


class StepLR(LRScheduler):
    """base_lr * gamma^k, where k counts the spans of `step_size` steps that have passed."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size: int = integer("StepLR", "step_size", step_size, 1)
        self.gamma: float = number("StepLR", "gamma", gamma)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return base_lr * self.gamma ** (epoch // self.step_size)


class CosineAnnealingLR(LRScheduler):
    """From base_lr by half a cosine to eta_min at step T_max, and back (I. Loshchilov, F. Hutter: SGDR, 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max: int = integer("CosineAnnealingLR", "T_max", T_max, 1)
        self.eta_min: float = number("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return _cosine(base_lr, self.eta_min, epoch / self.T_max)


class ExponentialLR(LRScheduler):
    """base_lr * gamma^epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma: float = number("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return base_lr * self.gamma**epoch


class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to max_lr in `pct_start` of all steps, then down to max_lr / div_factor /
    final_div_factor, each by half a cosine (L. N. Smith, N. Topin: Super-Convergence, 2018). Rates that the groups were
    given count nothing."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        cycle_momentum: bool = True,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:
        """Steps are total_steps, or epochs * steps_per_epoch. Raises GraphError; also unless `cycle_momentum` is False:
        that the momentum goes the opposite way, PyTorch's default, is not built."""
        name = "OneCycleLR"
        if flag(name, "cycle_momentum", cycle_momentum):
            raise GraphError(f"{name}: a momentum that changes is not built: pass cycle_momentum=False")
        if total_steps is None:
            total_steps = integer(name, "epochs", epochs, 1) * integer(name, "steps_per_epoch", steps_per_epoch, 1)
        self.total_steps: int = integer(name, "total_steps", total_steps, 1)
        self.max_lr: float = number(name, "max_lr", max_lr)
        self._up = number(name, "pct_start", pct_start, most=1) * self.total_steps - 1  # the step of the largest rate
        if not number(name, "div_factor", div_factor) or not number(name, "final_div_factor", final_div_factor):
            raise GraphError(f"{name}: div_factor and final_div_factor must be greater than 0")
        self._first, self._last = 1 / div_factor, 1 / div_factor / final_div_factor
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        if epoch > self.total_steps:
            raise GraphError(f"OneCycleLR: step {epoch} of a schedule of {self.total_steps} steps")
        if epoch <= self._up:
            return self.max_lr * _cosine(self._first, 1.0, epoch / self._up if self._up > 0 else 1.0)
        rest = self.total_steps - 1.0 - max(self._up, 0.0)
        return self.max_lr * _cosine(1.0, self._last, (epoch - max(self._up, 0.0)) / rest if rest > 0 else 1.0)


def _cosine(start: float, stop: float, way: float) -> float:
    """From start, at way 0, by half a cosine to stop, at way 1."""
    return stop + (start - stop) * (1 + math.cos(math.pi * way)) / 2
