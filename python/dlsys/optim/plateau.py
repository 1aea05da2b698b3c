"""A learning rate that falls when a measured number no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import GraphError
from .groups import checked_number
from .optimizer import Optimizer
from .schedule import checked_optimizer, checked_whole, of_groups

KEPT = ("last_epoch", "best", "num_bad_epochs", "cooldown_counter", "lrs")


class ReduceLROnPlateau:
    """lr * factor, but not below `min_lr`, when in more than `patience` steps on end the metric was not better than the
    best one before, by `threshold` of it ("rel") or by `threshold` ("abs"); then `cooldown` steps count nothing
    (torch.optim.lr_scheduler.ReduceLROnPlateau).

    Attributes:
        optimizer: the optimizer.
        last_epoch: how often `step` was called.
        best, num_bad_epochs, cooldown_counter: where the schedule stands.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Any = 0.0,
        eps: float = 1e-8,
    ) -> None:
        """mode: whether less ("min") or more ("max") is better. min_lr: a number, or one for each parameter group. eps:
        a change of less is not made. Raises GraphError."""
        name = "ReduceLROnPlateau"
        self.optimizer = checked_optimizer(name, optimizer)
        if mode not in ("min", "max"):
            raise GraphError(f'{name}: mode must be "min" or "max", not {mode!r}')
        if threshold_mode not in ("rel", "abs"):
            raise GraphError(f'{name}: threshold_mode must be "rel" or "abs", not {threshold_mode!r}')
        self.mode, self.threshold_mode = mode, threshold_mode
        self.factor = checked_number(name, "factor", factor, below=1.0)
        self.patience, self.cooldown = (
            checked_whole(name, key, value, 0) for key, value in (("patience", patience), ("cooldown", cooldown))
        )
        self.threshold, self.eps = (
            checked_number(name, key, value) for key, value in (("threshold", threshold), ("eps", eps))
        )
        self.min_lrs = of_groups(name, "min_lr", min_lr, optimizer)
        self.best = math.inf if mode == "min" else -math.inf
        self.last_epoch = self.num_bad_epochs = self.cooldown_counter = 0

    def step(self, metrics: Any) -> None:
        """Go on, by the metric of this epoch: a number, or a tensor of one. Raises GraphError."""
        try:
            current = float(metrics)
        except (TypeError, ValueError):
            kind = type(metrics).__name__
            raise GraphError(f"ReduceLROnPlateau.step: the metric must be a number, not {kind}") from None
        self.last_epoch += 1
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            groups = self.optimizer.groups
            self.min_lrs += self.min_lrs[-1:] * (len(groups) - len(self.min_lrs))  # joined since
            for group, least in zip(groups, self.min_lrs, strict=True):
                lr = max(group.lr * self.factor, least)
                if group.lr - lr > self.eps:
                    group.schedule_lr(lr)

    def _is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            return sign * value > sign * self.best * (1 + sign * self.threshold)
        return sign * value > sign * self.best + self.threshold

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group."""
        return [group.lr for group in self.optimizer.groups]

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands, and the learning rates."""
        return {**{key: getattr(self, key) for key in KEPT[:-1]}, "lrs": self.get_last_lr()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, with its learning rates. Raises GraphError."""
        name = "ReduceLROnPlateau.load_state_dict"
        if not isinstance(state, Mapping) or set(state) != set(KEPT):
            raise GraphError(f"{name}: needs a dictionary of {', '.join(KEPT)}")
        rates = state["lrs"]
        if not isinstance(rates, (list, tuple)) or len(rates) != len(self.optimizer.groups):
            raise GraphError(f"{name}: lrs must be a list of {len(self.optimizer.groups)}, one per parameter group")
        rates = [checked_number(name, "lrs", lr) for lr in rates]
        counts = {key: checked_whole(name, key, state[key], 0) for key in KEPT if key not in ("best", "lrs")}
        self.best = float(state["best"])
        for key, count in counts.items():
            setattr(self, key, count)
        for group, lr in zip(self.optimizer.groups, rates, strict=True):
            group.schedule_lr(lr)
