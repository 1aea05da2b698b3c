"""Optimizers, learning rate schedules and gradient clipping, after PyTorch's numbers, as nodes of the graph."""

from __future__ import annotations

from . import lr_scheduler
from .groups import ParameterGroup, clip_grad_norm, clip_grad_norm_, global_norm
from .lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, LambdaLR, LinearLR, OneCycleLR, StepLR
from .methods import SGD, Adam, AdamW, RMSprop
from .optimizer import Optimizer
