"""Optimizers, learning rate schedules and gradient clipping, after PyTorch's numbers, as nodes of the graph."""

from __future__ import annotations

from . import lr_scheduler as lr_scheduler
from .averages import averages as averages
from .clipping import (
    clip_grad_norm_ as clip_grad_norm_, clip_grad_value_ as clip_grad_value_, global_norm as global_norm,
)
from .groups import ParameterGroup as ParameterGroup
from .lr_scheduler import (
    CosineAnnealingLR as CosineAnnealingLR, ExponentialLR as ExponentialLR, LRScheduler as LRScheduler,
    LambdaLR as LambdaLR, LinearLR as LinearLR, MultiStepLR as MultiStepLR,
    OneCycleLR as OneCycleLR, ReduceLROnPlateau as ReduceLROnPlateau, SequentialLR as SequentialLR, StepLR as StepLR,
)
from .methods import SGD as SGD, Adagrad as Adagrad, Adam as Adam, AdamW as AdamW, RMSprop as RMSprop
from .optimizer import Optimizer as Optimizer
