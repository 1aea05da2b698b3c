"""Functions of higher modules that lower ones call; `dlsys/__init__.py` installs them.

`dlsys/__init__.py` runs before every other module of the package and may import all of them. An installed function
imports its module at its first call. This file imports nothing of dlsys, nor NumPy, so that `import dlsys` is fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Hooks:
    """The functions that are installed.

    Attributes:
        operate: (method, node, *others) -> the result of Python's operator of nodes, see `ops.operators`.
        settled: (handle) -> the leaf that it names, once what it named is computed.
        type_of: (node, "shape" or "dtype") -> that of a node whose type follows from declarations, see `replay`.
        compute_arrays: (symbol, left, right) -> the value as a new Array, or NotImplemented.
        adjoints: (seeds, nodes) -> see `gradients.adjoints`, for the gradient of a graph in an operator's attributes.
        gradient_as_tuple: (gradient, node) -> see `Op.gradient_as_tuple`.
        random_numbers: () -> NumPy's generator with a new stream of `dlsys.random.default_generator`.
    """

    operate: Callable[..., Any]
    settled: Callable[..., Any]
    type_of: Callable[..., Any]
    compute_arrays: Callable[..., Any]
    adjoints: Callable[..., Any]
    gradient_as_tuple: Callable[..., Any]
    random_numbers: Callable[..., Any]


hooks: _Hooks = _Hooks()


def install(name: str, load: Callable[[], Callable[..., Any]]) -> None:
    """Let a function of `hooks` be the one that `load` returns, which is called at its first call."""

    installed = vars(hooks)

    def first(*args: Any) -> Any:
        installed[name] = found = load()
        return found(*args)

    installed[name] = first
