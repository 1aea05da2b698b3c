"""A whole program as one TIR function, to read: it calls every kernel in order, each on its place in the arena.

It takes the given arrays, feeds and parameters, and the arena. `print(step.script())` shows the program with every
offset. What runs is the same list of calls as a table, see `runner`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx

from ..graph import Shape
from .runner import Call, Place

SYMBOL = "step"
ARENA = "arena"


def step_function(
    given: Sequence[tuple[Shape, str]],
    arena_bytes: int,
    calls: Sequence[Call],
    names: Sequence[str],
) -> tirx.PrimFunc:
    """`step(*given, arena)`, which makes the calls. `names` are those of the given arrays."""
    arrays = [
        tirx.decl_buffer(shape, dtype, name=_identifier(label, i), data_alignment=4)
        for i, ((shape, dtype), label) in enumerate(zip(given, names, strict=True))
    ]
    arena = tirx.decl_buffer((max(arena_bytes, 1),), "uint8", name=ARENA)
    statements: list[Any] = []
    views: dict[Place, Any] = {}

    def view(place: Place) -> Any:
        if place.base is not None and place.offset == 0 and given[place.base] == (place.shape, place.dtype):
            return arrays[place.base]
        if place not in views:
            views[place] = _view(arena if place.base is None else arrays[place.base], place, statements)
        return views[place]

    for call in calls:
        arguments = [view(place) for place in call.places]
        statements.append(tirx.Evaluate(tirx.call_packed(call.symbol, *arguments)))
    body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
    function = tirx.PrimFunc([*arrays, arena], body)
    return function.with_attr("global_symbol", SYMBOL)


def _view(memory: Any, place: Place, statements: list[Any]) -> Any:
    """A buffer at the place. Its pointer is moved there, since kernels refuse arrays with a byte offset."""
    number = len(statements) // 2
    index: tuple[int, ...] = (place.offset,)
    if place.base is not None:
        number, extents = place.offset // np.dtype(place.dtype).itemsize, [int(extent) for extent in memory.shape]
        index = tuple(int(i) for i in np.unravel_index(number, extents)) if extents else ()
    first = memory[index]
    address = tirx.address_of(first)
    pointer = tirx.Var(f"p{number}", address.ty)
    statements.append(tirx.Bind(pointer, address))
    buffer = tirx.decl_buffer(place.shape, place.dtype, name=f"v{number}", data_alignment=4)
    statements.append(tirx.DeclBuffer(buffer, data=pointer))
    return buffer


def _identifier(name: str, number: int) -> str:
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"{text or 'array'}_{number}"
