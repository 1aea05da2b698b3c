"""The learning rate schedules under the name of PyTorch's module."""

from __future__ import annotations

from .schedule import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

__all__ = [
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "OneCycleLR",
    "SequentialLR",
    "StepLR",
]
