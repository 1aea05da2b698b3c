"""Three functions of higher modules that lower ones call; `dlsys/__init__.py` installs them.

`dlsys/__init__.py` runs before every other module of the package and may import all of them. An installed function
imports its module at its first call. This file imports nothing of dlsys, nor NumPy, so that `import dlsys` is fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Hooks:
    """The functions that are installed."""

    make_node: Callable[..., Any]
    compute_arrays: Callable[..., Any]
    adjoints: Callable[..., Any]


hooks: _Hooks = _Hooks()


def makes_nodes(factory: Callable[..., Any]) -> None:
    """Operators make nodes by `factory(op, inputs, attrs, name)`, which makes tensors."""
    hooks.make_node = factory


def computes_arrays(function: Callable[..., Any]) -> None:
    """Arithmetic of arrays calls `function(symbol, left, right)`, which returns a new Array, or NotImplemented."""
    hooks.compute_arrays = function


def finds_adjoints(function: Callable[..., Any]) -> None:
    """The gradient of a graph in an operator's attributes, a loop's body, is `function(seeds, nodes)`, which is
    `gradients.adjoints`."""
    hooks.adjoints = function
