"""Optimizers, learning rate schedules and gradient clipping, after PyTorch's numbers, as nodes of the graph."""

from __future__ import annotations

from .adaptive import Adam, AdamW, RMSprop
from .clip import clip_grad_norm, clip_grad_norm_, clip_grad_value, clip_grad_value_, global_norm
from .optimizer import Optimizer, ParameterGroup
from .schedule import ConstantLR, CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR, StepLR
from .sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "ConstantLR",
    "CosineAnnealingLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "Optimizer",
    "ParameterGroup",
    "RMSprop",
    "SequentialLR",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value",
    "clip_grad_value_",
    "global_norm",
]
