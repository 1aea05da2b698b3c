"""Gradient clipping under the names of torch.nn.utils."""

from __future__ import annotations

from ..optim import clip_grad_norm_ as clip_grad_norm_, clip_grad_value_ as clip_grad_value_
