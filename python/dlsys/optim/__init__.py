"""Optimizers, learning rate schedules and gradient clipping, after PyTorch's numbers, as nodes of the graph."""

from __future__ import annotations

from . import lr_scheduler
from .adaptive import Adam, AdamW, RMSprop
from .clip import clip_grad_norm, clip_grad_norm_, global_norm
from .groups import ParameterGroup
from .lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, LinearLR, LRScheduler, OneCycleLR, StepLR
from .optimizer import Optimizer
from .sgd import SGD
