"""A module as text."""

from __future__ import annotations

import math
from typing import Any


def tree(top: Any) -> str:
    """A line for each module below: settings, its own Parameters with shapes, and how many numbers are below."""
    lines: list[str] = []

    def describe(name: str, module: Any, depth: int) -> None:
        own = ", ".join(f"{key} {list(value.shape)}" for key, value in module._parameters.items())
        count = sum(math.prod(value.shape) for value in module.parameters())
        label = f"{'  ' * depth}{f'({name}): ' if name else ''}{module._label()}"
        facts = f"{own + '; ' if own else ''}{count:,} parameters" if count else ""
        lines.append(f"{label}  # {facts}" if facts else label)
        for key, child in module._modules.items():
            describe(key, child, depth + 1)

    describe("", top, 0)
    return "\n".join(lines)
