"""Learning rates that change with the step, by the formulas of torch.optim.lr_scheduler.

A schedule is a function of a group's initial learning rate and the number of the step; PyTorch multiplies the last rate
by a factor instead, and the numbers are the same. A class gives the function PyTorch's name and checks the arguments.
Setting a rate compiles nothing.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ..checks import integer, number, word
from ..errors import GraphError
from ..scopes import scopes
from .optimizer import Optimizer


class Schedule:
    """The base of schedules: sets an optimizer's learning rates.

    Attributes:
        optimizer: the optimizer.
        last_epoch: how often `step` was called.
    """

    kept: ClassVar[tuple[str, ...]]
    """The attributes that change: the schedule's state."""
    last_epoch: int

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise GraphError(f"{type(self).__name__}: needs an optimizer, not {type(optimizer).__name__}")
        self.optimizer = optimizer

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at step {self.last_epoch}, rates {self.get_last_lr()}>"

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state; the rates are in the optimizer's."""
        return {key: getattr(self, key) for key in self.kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises GraphError for another state."""
        name = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, Mapping) or set(state) != set(self.kept):
            raise GraphError(f"{name}: needs a dictionary of " + ", ".join(f'"{key}"' for key in self.kept))
        vars(self).update(self._checked(name, state))

    def _checked(self, owner: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state as it is used. Raises GraphError for wrong values."""
        return state


class LRScheduler(Schedule):
    """Base of the schedules that are a function of the step. Making one sets the optimizer's rates to those of step 0.

    Attributes:
        lr_at: (base_lr, n) -> the learning rate after n calls of `step`, for a group whose initial rate is base_lr.
        base_lrs: each parameter group's initial rate, the one that was last set by hand.
    """

    kept = ("last_epoch", "base_lrs")

    def __init__(self, optimizer: Optimizer, lr_at: Callable[[float, int], float], last_epoch: int = -1) -> None:
        """Begins with the step behind `last_epoch`. Raises GraphError for an argument that is no optimizer."""
        super().__init__(optimizer)
        self.lr_at = lr_at
        self.base_lrs: list[float] = []
        self.last_epoch = integer(type(self).__name__, "last_epoch", last_epoch, -1)
        self.step()

    def step(self) -> None:
        """Set the next learning rate; call it after each epoch, or after each batch, in whichever unit the schedule
        counts."""
        if scopes.recording is not None:  # after each run
            scopes.recording.each_call.append(self.step)
            return
        self.last_epoch += 1
        self._set()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, and set the learning rates of its step. Raises GraphError for another state."""
        super().load_state_dict(state)
        self._set()

    def _checked(self, owner: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
        given, count = state["base_lrs"], len(self.base_lrs)
        if not isinstance(given, (list, tuple)) or len(given) != count:
            raise GraphError(f"{owner}: base_lrs must be a list of {count}, one per parameter group")
        base_lrs = [number(owner, "base_lrs", lr) for lr in given]
        return {"last_epoch": integer(owner, "last_epoch", state["last_epoch"], 0), "base_lrs": base_lrs}

    def _set(self) -> None:
        """Sets each group's rate to that of this step; a group that has joined since begins with its own."""
        groups = self.optimizer.param_groups
        self.base_lrs = [*self.base_lrs, *(group["initial_lr"] for group in groups[len(self.base_lrs) :])]
        for group, base_lr in zip(groups, self.base_lrs, strict=True):
            group.change({"lr": self.lr_at(base_lr, self.last_epoch)})


class LambdaLR(LRScheduler):
    """base_lr * lr_lambda(epoch)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        if not callable(lr_lambda):
            raise GraphError(f"LambdaLR: lr_lambda must be a function, not {type(lr_lambda).__name__}")
        super().__init__(optimizer, lambda lr, n: lr * number("LambdaLR", f"lr_lambda({n})", lr_lambda(n)), last_epoch)


class ExponentialLR(LRScheduler):
    """base_lr * gamma^epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        factor = number("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer, lambda lr, n: lr * factor**n, last_epoch)


class StepLR(LRScheduler):
    """base_lr * gamma^k, where k counts the spans of `step_size` steps that have passed."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        span, factor = integer("StepLR", "step_size", step_size, 1), number("StepLR", "gamma", gamma)
        super().__init__(optimizer, lambda lr, n: lr * factor ** (n // span), last_epoch)


class MultiStepLR(LRScheduler):
    """base_lr * gamma^k, where k counts the `milestones`, a list, that have been reached."""

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        if not isinstance(milestones, Iterable):
            raise GraphError(f"MultiStepLR: milestones must be a list of integers, not {milestones!r}")
        places = sorted(integer("MultiStepLR", "a milestone", n, 0) for n in milestones)
        factor = number("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer, lambda lr, n: lr * factor ** bisect.bisect_right(places, n), last_epoch)


class LinearLR(LRScheduler):
    """From base_lr * start_factor in a straight line to base_lr * end_factor at step `total_iters`: a warm-up."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        name = "LinearLR"
        first, last = number(name, "start_factor", start_factor, most=1), number(name, "end_factor", end_factor, most=1)
        if not first:
            raise GraphError(f"{name}: start_factor must be greater than 0")
        count = integer(name, "total_iters", total_iters, 1)
        super().__init__(optimizer, lambda lr, n: lr * line(first, last, min(count, n) / count), last_epoch)


class CosineAnnealingLR(LRScheduler):
    """From base_lr by half a cosine to eta_min at step T_max, and back (I. Loshchilov, F. Hutter: SGDR, 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        name = "CosineAnnealingLR"
        half, least = integer(name, "T_max", T_max, 1), number(name, "eta_min", eta_min)
        super().__init__(optimizer, lambda lr, n: cosine(lr, least, n / half), last_epoch)


class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to max_lr in `pct_start` of all steps, then down to max_lr / div_factor /
    final_div_factor, each by half a cosine, or in a straight line (L. N. Smith, N. Topin: Super-Convergence, 2018). The
    momentum stays as it is: PyTorch's with `cycle_momentum=False`. The groups' own rates are not used."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        *,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        last_epoch: int = -1,
    ) -> None:
        """The number of steps is total_steps, or epochs * steps_per_epoch; `anneal_strategy` is "cos" or "linear".
        Raises GraphError for an argument out of range."""
        name = "OneCycleLR"
        between = cosine if word(name, "anneal_strategy", anneal_strategy, ("cos", "linear")) == "cos" else line
        if total_steps is None:
            total_steps = integer(name, "epochs", epochs, 1) * integer(name, "steps_per_epoch", steps_per_epoch, 1)
        total, most = integer(name, "total_steps", total_steps, 1), number(name, "max_lr", max_lr)
        peak = number(name, "pct_start", pct_start, most=1) * total - 1  # the step of the largest rate
        if not number(name, "div_factor", div_factor) or not number(name, "final_div_factor", final_div_factor):
            raise GraphError(f"{name}: div_factor and final_div_factor must be greater than 0")

        first, last = most / div_factor, most / div_factor / final_div_factor

        def lr_at(base_lr: float, n: int) -> float:
            if n > total:
                raise GraphError(f"{name}: step {n} of a schedule of {total} steps")
            if n <= peak:
                return between(first, most, n / peak if peak > 0 else 1.0)
            rest = total - 1.0 - max(peak, 0.0)
            return between(most, last, (n - max(peak, 0.0)) / rest if rest > 0 else 1.0)

        super().__init__(optimizer, lr_at, last_epoch)


class SequentialLR(LRScheduler):
    """Schedules one after another: each counts its steps from its milestone on, the first one from 0."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        """Raises GraphError unless there is one milestone less than schedules of this optimizer, in ascending order."""
        parts = list(schedulers)
        if any(not isinstance(part, LRScheduler) or part.optimizer is not optimizer for part in parts):
            raise GraphError("SequentialLR: takes schedules of the optimizer that it is given")
        starts = [integer("SequentialLR", "a milestone", n, 0) for n in milestones]
        if len(starts) != len(parts) - 1 or starts != sorted(starts):
            raise GraphError(f"SequentialLR: {len(parts)} schedules and the milestones {starts}")

        def lr_at(base_lr: float, n: int) -> float:
            place = bisect.bisect_right(starts, n)
            return parts[place].lr_at(base_lr, n - [0, *starts][place])

        super().__init__(optimizer, lr_at, last_epoch)


class ReduceLROnPlateau(Schedule):
    """The rates times `factor`, after more than `patience` steps in which the metric became no better.

    Better is smaller than the best one, or larger with mode="max", by `threshold`: of its size ("rel") or as it is
    ("abs"). After a change the next `cooldown` steps do not count. Rates stay above `min_lr`, one or one per group, and
    do not change by `eps` or less. Attributes: mode, best, num_bad_epochs, cooldown_counter, last_epoch.
    """

    kept = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        """Raises GraphError for an argument out of range."""
        super().__init__(optimizer)
        name, count = "ReduceLROnPlateau", len(optimizer.param_groups)
        self.mode: str = word(name, "mode", mode, ("min", "max"))
        self._sign = 1 if self.mode == "min" else -1
        self._factor, self._eps = number(name, "factor", factor, below=1.0), number(name, "eps", eps)
        self._patience, self._cooldown = integer(name, "patience", patience, 0), integer(name, "cooldown", cooldown, 0)
        self._is_relative = word(name, "threshold_mode", threshold_mode, ("rel", "abs")) == "rel"
        self._threshold = number(name, "threshold", threshold)
        least = list(min_lr) if isinstance(min_lr, (list, tuple)) else [min_lr] * count
        if len(least) != count:
            raise GraphError(f"{name}: {len(least)} numbers min_lr for {count} groups")
        self._least = [number(name, "min_lr", lr) for lr in least]
        self.best: float = self._sign * math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def step(self, metrics: Any) -> None:
        """Count an epoch with this metric, a number or a tensor of one, and change the rates where it is time. Raises
        GraphError for a metric that is no number."""
        try:
            metric = float(metrics)
        except (TypeError, ValueError):
            raise GraphError(f"ReduceLROnPlateau.step: the metric must be a number, not {metrics!r}") from None
        self.last_epoch += 1
        margin = self._sign * self._threshold
        bound = self.best * (1 - margin) if self._is_relative else self.best - margin
        if self._sign * metric < self._sign * bound:
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self._patience:
            for group, least in zip(self.optimizer.param_groups, self._least, strict=True):
                if group["lr"] - (lr := max(group["lr"] * self._factor, least)) > self._eps:
                    group.change({"lr": lr})
            self.cooldown_counter, self.num_bad_epochs = self._cooldown, 0


def line(start: float, stop: float, way: float) -> float:
    """From start, at way 0, in a straight line to stop, at way 1."""
    return start + (stop - start) * way


def cosine(start: float, stop: float, way: float) -> float:
    """From start, at way 0, by half a cosine to stop, at way 1."""
    return stop + (start - stop) * (1 + math.cos(math.pi * way)) / 2
