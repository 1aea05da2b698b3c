"""Learning rates that change with the step, by the formulas of torch.optim.lr_scheduler.

A schedule is a function of the step's number and of the learning rate that the group was given: where PyTorch
multiplies the rate on from step to step, here each is computed anew, to the same numbers. Setting a rate compiles
nothing.
"""

from __future__ import annotations

import math
import numbers
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import GraphError
from .optimizer import Optimizer, checked_number


class LRScheduler:
    """Base of the schedules. Making one sets the optimizer's learning rates to those of step 0.

    Attributes:
        optimizer: the optimizer.
        last_epoch: how often `step` was called.
        base_lrs: for each parameter group the learning rate that it was last given by hand.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise GraphError(f"{type(self).__name__}: needs an optimizer, not {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.base_lrs = [group.initial_lr for group in optimizer.groups]
        self.last_epoch = 0
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
        return [self.lr_at(base_lr, self.last_epoch) for base_lr in self.base_lrs]

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
        self.last_epoch, self.base_lrs = _whole(name, "last_epoch", state["last_epoch"], 0), base_lrs
        self._set()

    def _set(self) -> None:
        for group, lr in zip(self.optimizer.groups, self.get_last_lr(), strict=True):
            group.schedule_lr(lr)


class LambdaLR(LRScheduler):
    """base_lr * lr_lambda(epoch)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        if not callable(lr_lambda):
            raise GraphError(f"LambdaLR: lr_lambda must be a function, not {type(lr_lambda).__name__}")
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return base_lr * self.lr_lambda(epoch)


class ConstantLR(LRScheduler):
    """base_lr * factor for the first `total_iters` steps, then base_lr."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5) -> None:
        self.factor = _share("ConstantLR", "factor", factor)
        self.total_iters = _whole("ConstantLR", "total_iters", total_iters, 0)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return base_lr * self.factor if epoch < self.total_iters else base_lr


class LinearLR(LRScheduler):
    """From base_lr * start_factor in a straight line to base_lr * end_factor at step `total_iters`: a warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        self.start_factor = _share("LinearLR", "start_factor", start_factor)
        self.end_factor = _share("LinearLR", "end_factor", end_factor)
        if not self.start_factor:
            raise GraphError("LinearLR: start_factor must be greater than 0")
        self.total_iters = _whole("LinearLR", "total_iters", total_iters, 1)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        way = min(self.total_iters, epoch) / self.total_iters
        return base_lr * (self.start_factor + (self.end_factor - self.start_factor) * way)


class StepLR(LRScheduler):
    """base_lr * gamma^k, where k counts the spans of `step_size` steps that have passed."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size = _whole("StepLR", "step_size", step_size, 1)
        self.gamma = checked_number("StepLR", "gamma", gamma)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return base_lr * self.gamma ** (epoch // self.step_size)


class CosineAnnealingLR(LRScheduler):
    """From base_lr by half a cosine to eta_min at step T_max, and back (I. Loshchilov, F. Hutter: SGDR, 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max = _whole("CosineAnnealingLR", "T_max", T_max, 1)
        self.eta_min = checked_number("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        return self.eta_min + (base_lr - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2


class SequentialLR(LRScheduler):
    """One schedule after the other: the next begins, at its step 0, at each of the milestones."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        self.schedulers = list(schedulers)
        self.milestones = [_whole("SequentialLR", "a milestone", step, 0) for step in milestones]
        if len(self.milestones) != len(self.schedulers) - 1:
            counts = f"{len(self.schedulers)} schedulers and {len(self.milestones)} milestones"
            raise GraphError(f"SequentialLR: {counts}: there must be one milestone between two schedulers")
        if self.milestones != sorted(set(self.milestones)):
            raise GraphError(f"SequentialLR: milestones must increase: {self.milestones}")
        for scheduler in self.schedulers:
            if getattr(scheduler, "optimizer", None) is not optimizer:
                raise GraphError("SequentialLR: every scheduler must be one of the same optimizer")
        super().__init__(optimizer)

    def lr_at(self, base_lr: float, epoch: int) -> float:
        index = bisect_right(self.milestones, epoch)
        begin = self.milestones[index - 1] if index else 0
        return self.schedulers[index].lr_at(base_lr, epoch - begin)


def _share(owner: str, name: str, value: Any) -> float:
    """A number in [0, 1]. Raises GraphError."""
    number = checked_number(owner, name, value)
    if number > 1:
        raise GraphError(f"{owner}: {name} must be between 0 and 1, not {value}")
    return number


def _whole(owner: str, name: str, value: Any, least: int) -> int:
    """An integer of at least `least`. Raises GraphError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise GraphError(f"{owner}: {name} must be an integer >= {least}, not {value!r}")
    return int(value)
