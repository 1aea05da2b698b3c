"""What lower modules need of higher ones: three functions, which `dlsys/__init__.py` installs.

It runs before every other module of the package and may know all of them. What it installs imports its module when it
is called first. This file imports nothing of dlsys, nor NumPy: every `import dlsys` pays for it.
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
    """Let operators make nodes by `factory(op, inputs, attrs, name)`: as tensors, whatever a program imports."""
    hooks.make_node = factory


def computes_arrays(function: Callable[..., Any]) -> None:
    """Let arithmetic of arrays be `function(symbol, left, right)`: the value as a new Array, or NotImplemented."""
    hooks.compute_arrays = function


def finds_adjoints(function: Callable[..., Any]) -> None:
    """Let the gradient of a graph in an operator's attributes be `function(seeds, nodes)`, see `gradients.adjoints`."""
    hooks.adjoints = function
