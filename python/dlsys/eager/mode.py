"""Where gradients are on and off, in PyTorch's words."""

from __future__ import annotations

import contextlib
from typing import Any

from ..graph import grad_mode, is_grad_enabled


class _Mode(contextlib.ContextDecorator):
    """A context or decorator; what is made inside is recorded with gradients on or off."""

    _enabled: bool

    def __init__(self) -> None:
        self._entered: list[Any] = []

    def __enter__(self) -> None:
        self._entered.append(grad_mode(self._enabled))
        self._entered[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


class no_grad(_Mode):
    """Inside, results do not require a gradient: none goes through the operators that are called there."""

    _enabled = False


class enable_grad(_Mode):
    """Inside, gradients go through, also within `no_grad`."""

    _enabled = True


__all__ = ["enable_grad", "is_grad_enabled", "no_grad"]
