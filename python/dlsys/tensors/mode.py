"""Where gradients are on and off, in PyTorch's words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import graph
from ..errors import GraphError
from ..graph import grad_mode
from ..graph import is_grad_enabled as is_grad_enabled


class _Mode(contextlib.ContextDecorator):
    """A context or decorator; what is made inside is recorded with gradients on or off."""

    _enabled: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Also `@no_grad` without brackets: the function, decorated."""
        made = super().__new__(cls)
        if not (args and callable(args[0])):
            return made
        made.__init__()  # type: ignore[misc]  # Python calls it for what is of the class alone
        return made(args[0])

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


inference_mode = no_grad


class set_grad_enabled(_Mode):
    """Gradients on or off from the call on; in a `with` block until its end, as a decorator within the function."""

    def __init__(self, mode: bool) -> None:
        """Raises GraphError for what is neither True nor False."""
        if not isinstance(mode, (bool, np.bool_)):
            raise GraphError(f"set_grad_enabled: takes True or False, not {mode!r}")
        super().__init__()
        self._before: bool | None = is_grad_enabled()
        self._enabled = bool(mode)
        graph.set_grad_enabled(self._enabled)

    def __call__(self, function: Callable[..., Any]) -> Any:
        self._restore()
        return super().__call__(function)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._restore()

    def _restore(self) -> None:
        """Undo what the call did, once."""
        if self._before is not None:
            graph.set_grad_enabled(self._before)
            self._before = None
