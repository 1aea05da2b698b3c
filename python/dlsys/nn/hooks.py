"""Functions that a module calls before and after its `forward`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import GraphError

_numbers = itertools.count()


class Hook(NamedTuple):
    """A function, and whether it takes keyword arguments too."""

    function: Callable[..., Any]
    with_kwargs: bool


class RemovableHandle:
    """What registering gives: `remove` takes the hook away again; so does the end of a `with` block."""

    def __init__(self, table: dict[int, Hook], number: int) -> None:
        self._table, self._number = table, number

    def remove(self) -> None:
        """Call the hook no more."""
        self._table.pop(self._number, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


def register(owner: str, table: dict[int, Hook], function: Any, prepend: bool, with_kwargs: bool) -> RemovableHandle:
    """Put a hook into a table, behind the others or before them. Raises GraphError for what is no function."""
    if not callable(function):
        raise GraphError(f"{owner}: a hook must be a function, not {type(function).__name__}")
    number = next(_numbers)
    others = dict(table) if prepend else {}
    for other in others:
        del table[other]
    table[number] = Hook(function, bool(with_kwargs))
    table.update(others)
    return RemovableHandle(table, number)


def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `forward` as the hooks leave them. Raises GraphError."""
    for hook in list(module._forward_pre_hooks.values()):
        if hook.with_kwargs:
            given = hook.function(module, args, kwargs)
            if given is not None:
                if not isinstance(given, tuple) or len(given) != 2:
                    raise GraphError("forward pre-hook: with_kwargs, it must return None or a pair (args, kwargs)")
                args, kwargs = given
        else:
            given = hook.function(module, args)
            if given is not None:
                args = given if isinstance(given, tuple) else (given,)
    return args, kwargs


def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """What `forward` returned as the hooks leave it."""
    for hook in list(module._forward_hooks.values()):
        given = hook.function(module, args, *([kwargs] if hook.with_kwargs else []), output)
        output = output if given is None else given
    return output
