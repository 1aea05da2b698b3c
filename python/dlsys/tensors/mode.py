"""Where gradients are on and off, in PyTorch's words."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import GraphError
from ..scopes import is_grad_enabled as is_grad_enabled
from ..scopes import scopes


def _switch(owner: str, mode: Any) -> bool:
    """True or False as it was given. Raises GraphError for anything else."""
    if not isinstance(mode, (bool, np.bool_)):
        raise GraphError(f"{owner}: takes True or False, not {mode!r}")
    return bool(mode)


class _Mode(contextlib.ContextDecorator):
    """A context or decorator; what is made inside is recorded with gradients on or off, by the thread that entered it:
    several threads may call one decorated function, or enter one mode, at once."""

    _enabled: bool

    def __init__(self) -> None:
        super().__init__()

    def __enter__(self) -> None:
        scopes.modes.append(scopes.no_grad)
        scopes.no_grad = not self._enabled

    def __exit__(self, *error: object) -> None:
        scopes.no_grad = scopes.modes.pop()


class no_grad(_Mode):
    """Inside, results do not require a gradient: none goes through the operators that are called there."""

    _enabled = False


class enable_grad(_Mode):
    """Inside, gradients go through, also within `no_grad`."""

    _enabled = True


class inference_mode(_Mode):
    """Inside, results require no gradient, as within `no_grad`; with `mode=False`, as within `enable_grad`."""

    def __init__(self, mode: bool = True) -> None:
        """Raises GraphError for what is neither True nor False."""
        self._enabled = not _switch("inference_mode", mode)


class set_grad_enabled(_Mode):
    """Gradients on or off from the call on; in a `with` block until its end, as a decorator within the function."""

    def __init__(self, mode: bool) -> None:
        """Raises GraphError for what is neither True nor False."""
        self._enabled = _switch("set_grad_enabled", mode)
        self._at_call: tuple[int, bool] | None = (threading.get_ident(), scopes.no_grad)
        scopes.no_grad = not self._enabled

    def __call__(self, function: Callable[..., Any]) -> Any:
        self._restore()
        return super().__call__(function)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._restore()

    def _restore(self) -> None:
        """Undo what the call did, once and in the thread that made it."""
        if self._at_call is not None and self._at_call[0] == threading.get_ident():
            scopes.no_grad, self._at_call = self._at_call[1], None
