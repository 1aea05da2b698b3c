"""Gradient clipping under the names of torch.nn.utils."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..errors import no_attribute as _no_attribute
from ..optim.groups import clip_grad_norm_ as clip_grad_norm_, clip_grad_value_ as clip_grad_value_

if not TYPE_CHECKING:  # for a checker a wrong name stays an error

    def __getattr__(name: str) -> NoReturn:
        """Raises AttributeError, which names the nearest, or what to write instead."""
        raise _no_attribute(f"module {__name__!r}", name, globals())
