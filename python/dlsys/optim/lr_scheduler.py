"""Learning rates that change with the step, by the formulas of torch.optim.lr_scheduler.

A schedule is a function of the step's number and of the learning rate that the group was given: where PyTorch
multiplies the rate on from step to step, here each is computed anew, to the same numbers. Setting a rate compiles
nothing.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import GraphError
from .groups import checked_number
from .optimizer import Optimizer


class LRScheduler:
    """Base of the schedules. Making one sets the optimizer's learning rates to those of step 0.

    Attributes:
        optimizer: the optimizer.
        last_epoch: how often `step` was called.
        base_lrs: for each parameter group the learning rate that it was last given by hand.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        """last_epoch: where to go on from: making the schedule is one more step. Raises GraphError."""
        name = type(self).__name__
        self.optimizer = checked_optimizer(name, optimizer)
        self.base_lrs = [group.initial_lr for group in optimizer.groups]
        self.last_epoch = checked_whole(name, "last_epoch", last_epoch, -1) + 1
        self._set(self.last_epoch)

    def lr_at(self, base_lr: float, epoch: float) -> float:
        """The learning rate after `epoch` calls of `step`, for a group whose rate is `base_lr`."""
        raise NotImplementedError

    def lrs_at(self, base_lrs: Sequence[float], epoch: float) -> list[float]:
        """`lr_at` for every group."""
        return [self.lr_at(base_lr, epoch) for base_lr in base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on to the next learning rate: after each epoch, or each batch, as the schedule is meant; or to that of
        `epoch`, which may lie between two. Raises GraphError for a negative one."""
        at = self.last_epoch + 1 if epoch is None else checked_number(f"{type(self).__name__}.step", "epoch", epoch)
        self.last_epoch = math.floor(at)
        self._set(at)

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
            raise GraphError(
                f"{name}: base_lrs must be a list of {len(self.base_lrs)}, one per parameter group"
            )
        base_lrs = [checked_number(name, "base_lrs", lr) for lr in given]
        self.last_epoch, self.base_lrs = checked_whole(name, "last_epoch", state["last_epoch"], 0), base_lrs
        self._set(self.last_epoch)

    def _set(self, epoch: float) -> None:
        self.base_lrs += [group.initial_lr for group in self.optimizer.groups[len(self.base_lrs) :]]  # joined since
        self._last_lr = self.lrs_at(self.base_lrs, epoch)
        for group, lr in zip(self.optimizer.groups, self._last_lr, strict=True):
            group.schedule_lr(lr)


class LambdaLR(LRScheduler):
    """base_lr * lr_lambda(epoch); a list has a function for each parameter group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        """Raises GraphError for what is neither a function nor such a list."""
        groups = checked_optimizer("LambdaLR", optimizer).groups
        self.lr_lambdas: list[Callable[[float], float]] | None = None
        if isinstance(lr_lambda, (list, tuple)):
            if len(lr_lambda) != len(groups):
                raise GraphError(f"LambdaLR: {len(lr_lambda)} functions for {len(groups)} parameter groups")
            self.lr_lambdas = list(lr_lambda)
        for function in self.lr_lambdas or [lr_lambda]:
            if not callable(function):
                raise GraphError(f"LambdaLR: lr_lambda must be a function, not {type(function).__name__}")
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch)

    def lrs_at(self, base_lrs: Sequence[float], epoch: float) -> list[float]:
        functions = self.lr_lambdas or [self.lr_lambda] * len(base_lrs)
        factors = [function(epoch) for function in functions]
        for factor in factors:
            if isinstance(factor, bool) or not isinstance(factor, numbers.Real):
                raise GraphError(f"LambdaLR: lr_lambda({epoch}) must be a number, it is {factor!r}")
        return [base_lr * factor for base_lr, factor in zip(base_lrs, factors, strict=True)]


class LinearLR(LRScheduler):
    """From base_lr * start_factor in a straight line to base_lr * end_factor at step `total_iters`: a warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.start_factor = _share("LinearLR", "start_factor", start_factor)
        self.end_factor = _share("LinearLR", "end_factor", end_factor)
        if not self.start_factor:
            raise GraphError("LinearLR: start_factor must be greater than 0")
        self.total_iters = checked_whole("LinearLR", "total_iters", total_iters, 1)
        super().__init__(optimizer, last_epoch)

    def lr_at(self, base_lr: float, epoch: float) -> float:
        way = min(self.total_iters, epoch) / self.total_iters
        return base_lr * (self.start_factor + (self.end_factor - self.start_factor) * way)


class StepLR(LRScheduler):
    """base_lr * gamma^k, where k counts the spans of `step_size` steps that have passed."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size = checked_whole("StepLR", "step_size", step_size, 1)
        self.gamma = checked_number("StepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def lr_at(self, base_lr: float, epoch: float) -> float:
        return base_lr * self.gamma ** (epoch // self.step_size)


class CosineAnnealingLR(LRScheduler):
    """From base_lr by half a cosine to eta_min at step T_max, and back (I. Loshchilov, F. Hutter: SGDR, 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max = checked_whole("CosineAnnealingLR", "T_max", T_max, 1)
        self.eta_min = checked_number("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer, last_epoch)

    def lr_at(self, base_lr: float, epoch: float) -> float:
        return _cosine(base_lr, self.eta_min, epoch / self.T_max)


class ExponentialLR(LRScheduler):
    """base_lr * gamma^epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = checked_number("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def lr_at(self, base_lr: float, epoch: float) -> float:
        return base_lr * self.gamma**epoch


class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to max_lr in `pct_start` of all steps, then down to max_lr / div_factor /
    final_div_factor, each by half a cosine (L. N. Smith, N. Topin: Super-Convergence, 2018). Rates that the groups were
    given count nothing."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Any,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        cycle_momentum: bool = True,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        last_epoch: int = -1,
    ) -> None:
        """max_lr: a number, or one for each parameter group. Steps are total_steps, or epochs * steps_per_epoch. Raises
        GraphError; also unless `cycle_momentum` is False: that the momentum goes the opposite way, PyTorch's default,
        is not built."""
        name = "OneCycleLR"
        groups = checked_optimizer(name, optimizer).groups
        if cycle_momentum:
            raise GraphError(f"{name}: a momentum that changes is not built: pass cycle_momentum=False")
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise GraphError(f"{name}: needs total_steps, or epochs and steps_per_epoch")
            total_steps = checked_whole(name, "epochs", epochs, 1) * checked_whole(
                name, "steps_per_epoch", steps_per_epoch, 1
            )
        self.total_steps = checked_whole(name, "total_steps", total_steps, 1)
        given = max_lr if isinstance(max_lr, (list, tuple)) else [max_lr] * len(groups)
        if len(given) != len(groups):
            raise GraphError(f"{name}: {len(given)} values of max_lr for {len(groups)} parameter groups")
        self.max_lrs = [checked_number(name, "max_lr", number) for number in given]
        for key, value in {"div_factor": div_factor, "final_div_factor": final_div_factor}.items():
            if not checked_number(name, key, value):
                raise GraphError(f"{name}: {key} must be greater than 0")
        self._up = _share(name, "pct_start", pct_start) * self.total_steps - 1  # the step of the largest rate
        self._ends = 1 / div_factor, 1 / div_factor / final_div_factor
        super().__init__(optimizer, last_epoch)

    def lrs_at(self, base_lrs: Sequence[float], epoch: float) -> list[float]:
        if epoch > self.total_steps:
            raise GraphError(f"OneCycleLR: step {epoch} of a schedule of {self.total_steps} steps")
        first, last = self._ends
        if epoch <= self._up:
            share = _cosine(first, 1.0, epoch / self._up if self._up > 0 else 1.0)
        else:
            rest = self.total_steps - 1.0 - max(self._up, 0.0)
            share = _cosine(1.0, last, (epoch - max(self._up, 0.0)) / rest if rest > 0 else 1.0)
        return [lr * share for lr in self.max_lrs]


def _cosine(start: float, stop: float, way: float) -> float:
    """From start, at way 0, by half a cosine to stop, at way 1."""
    return stop + (start - stop) * (1 + math.cos(math.pi * way)) / 2


def checked_optimizer(owner: str, optimizer: Any) -> Optimizer:
    """Raises GraphError for what is none."""
    if not isinstance(optimizer, Optimizer):
        raise GraphError(f"{owner}: needs an optimizer, not {type(optimizer).__name__}")
    return optimizer


def _share(owner: str, name: str, value: Any) -> float:
    """A number in [0, 1]. Raises GraphError."""
    number = checked_number(owner, name, value)
    if number > 1:
        raise GraphError(f"{owner}: {name} must be between 0 and 1, not {value}")
    return number


def checked_whole(owner: str, name: str, value: Any, least: int) -> int:
    """An integer of at least `least`. Raises GraphError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise GraphError(f"{owner}: {name} must be an integer >= {least}, not {value!r}")
    return int(value)
