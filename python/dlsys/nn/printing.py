"""A module as text."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

SHOWN = (bool, int, float, str, tuple, type(None))


@functools.cache
def _arguments(kind: Any) -> dict[str, Any]:
    """The arguments of a class's constructor that say what it computes, with their defaults."""
    found = list(inspect.signature(kind.__init__).parameters.values())[1:]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.default for p in found if p.kind not in several and p.name not in ("device", "dtype")}


def settings(module: Any) -> str:
    """The arguments that made a module, as far as it keeps them under their names: those without a default, and others
    that are not their default. Of `bias=True` and its like the Parameter itself, or None, is kept."""
    words = []
    kind: Any = type(module)
    for name, default in _arguments(kind).items():
        value = getattr(module, name, default)
        if isinstance(default, bool):
            value = value is not None and value is not False
        if default is inspect.Parameter.empty and isinstance(value, SHOWN):
            words.append(_shown(value))
        elif isinstance(value, SHOWN) and _shown(value) != _shown(default):
            words.append(f"{name}={_shown(value)}")
    return ", ".join(words)


def _shown(value: Any) -> str:
    """A value as short as it was given."""
    if isinstance(value, tuple) and value and len(set(value)) == 1:
        return _shown(value[0])
    return f"{value:g}" if isinstance(value, float) else repr(value)


def tree(top: Any) -> str:
    """A line for each module below: settings, its own Parameters with shapes, and how many numbers are below. Of one
    that is above its own line, as a module's parent among its attributes, the line tells no more."""
    lines: list[str] = []

    def describe(name: str, module: Any, above: list[Any]) -> None:
        own = ", ".join(f"{key} {list(value.shape)}" for key, value in module._parameters.items())
        count = sum(math.prod(value.shape) for value in module.parameters())
        label = f"{'  ' * len(above)}{f'({name}): ' if name else ''}{module._label()}"
        if any(module is other for other in above):
            lines.append(f"{label}  # above")
            return
        facts = f"{own + '; ' if own else ''}{count:,} parameters" if count else ""
        lines.append(f"{label}  # {facts}" if facts else label)
        for key, child in module._modules.items():
            describe(key, child, [*above, module])

    describe("", top, [])
    return "\n".join(lines)
