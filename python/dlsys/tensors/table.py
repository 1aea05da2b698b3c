"""The table of functions of tensors. Each is written once, with PyTorch's name and arguments:

    @function
    def square(x: Tensor) -> Tensor:
        return x * x

So it is a method, `x.square()`, and a function that takes an array or a number in the tensor's place, which
`dlsys/__init__.py` and `nn.functional` name. `tools/stubs.py` writes `methods.pyi`, by which type checkers know the
methods.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from ..graph import Handle
from ..ops import replay
from .arguments import node_of
from .creation import NEUTRAL
from .typing import ArrayLike

P = ParamSpec("P")
R = TypeVar("R")
TABLE: dict[str, Callable[..., Any]] = {}
"""The functions that are methods, by name."""
NUMPYS = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's words for PyTorch's, which every function takes as well."""


@overload
def function(body: Callable[Concatenate[Any, P], R], /) -> Callable[Concatenate[ArrayLike, P], R]: ...
@overload
def function(
    *, at_once: bool = False, method: bool = True
) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[Concatenate[ArrayLike, P], R]]: ...
def function(body: Callable[..., Any] | None = None, /, *, at_once: bool = False, method: bool = True) -> Any:
    """Decorates a function whose first argument is a tensor. It may read the tensors' types: called before they are
    known, it is called again when they are, see `ops.replay`.

    Args:
        at_once: whether it is called now in any case: it reads values, calls only what waits itself, or returns other
            things than one tensor.
        method: whether it is a method too.
    """
    if body is None:
        return functools.partial(function, at_once=at_once, method=method)
    call = body if at_once else replay.function(on_tensors=True)(body)
    parameters = inspect.signature(body).parameters
    first = next(iter(parameters))
    known = {**NUMPYS, "input": first}
    renamed = {word: ours for word, ours in known.items() if ours in parameters and word not in parameters}

    @functools.wraps(body)
    def called(*args: Any, **words: Any) -> Any:
        if words:
            words = {renamed.get(word, word): value for word, value in words.items() if word not in NEUTRAL}
            if not args and first in words:
                args = (words.pop(first),)
        if args and not isinstance(args[0], Handle):
            args = node_of(args[0]), *args[1:]
        return call(*args, **words)

    if method:
        TABLE[body.__name__] = called
    return called


def row(of: Callable[..., R], name: str, doc: str | None = None, at_once: bool = False) -> Callable[..., R]:
    """A function of the table by a name and documentation of its own."""
    of.__name__ = of.__qualname__ = name
    of.__doc__ = of.__doc__ if doc is None else doc
    return function(at_once=at_once)(of)
