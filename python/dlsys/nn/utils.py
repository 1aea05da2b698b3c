"""Gradient clipping under the names of torch.nn.utils."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import missing_names as _missing_names
from ..optim.groups import clip_grad_norm_ as clip_grad_norm_, clip_grad_value_ as clip_grad_value_

if not TYPE_CHECKING:  # for a checker a wrong name stays an error
    __getattr__ = _missing_names(__name__, globals())
